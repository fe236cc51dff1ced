"""NVML without a GPU: a real `libnvidia-ml.so.1`, built from C, that real pynvml loads and that plays scenes.

For another process: `environment(library, scene)`. For this one: `load(library)` before pynvml looks for it; the
loader then finds the library by its name. A scene may be rewritten while a process runs.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.needs import require

SOURCE = Path(__file__).with_name("nvml_standin.c")
CUDA_SOURCE = Path(__file__).with_name("cuda_standin.c")
LIBRARY = "libnvidia-ml.so.1"
CUDA = "libcuda.so.1"
POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE, IDLE = 0x4, 0x8, 0x20, 0x40, 0x80, 0x1
LOST = 15

BOX = {"driver": "590.48.01", "cuda": "13010"}

CARD: Mapping[str, object] = {
    "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "vbios": "98.02.8D.00.03",
    "memory_total_mib": 97887,
    "power_limit_mw": 600000,
    "power_default_mw": 600000,
    "persistence": 1,
    "compute_mode": 0,
    "ecc": 1,
    "mig": 0,
    "sm_max_mhz": 2430,
    "mem_max_mhz": 12481,
    "pcie_gen_max": 5,
    "pcie_width_max": 16,
    "pcie_gen_card": 5,
    "pcie_width": 16,
    "pcie_replays": 0,
    "thermal_ns": 0,
    "topology": 50,
}
"""What the story's cards say of themselves, at rest and under load."""

REST: Mapping[str, object] = {
    "sm_mhz": 180,
    "mem_mhz": 405,
    "temperature_c": 29,
    "power_mw": 24000,
    "pcie_gen": 1,
    "memory_used_mib": 2,
    "pstate": 8,
    "reasons": hex(IDLE),
}

LOAD: Mapping[str, object] = {
    "sm_mhz": 2320,
    "mem_mhz": 12481,
    "temperature_c": 36,
    "power_mw": 231000,
    "pcie_gen": 5,
    "memory_used_mib": 88000,
    "pstate": 1,
    "reasons": "0x0",
}


@dataclass(frozen=True)
class Scene:
    """Lines of a scene file. `every` holds for all GPUs, `one` for single ones, `box` for the machine."""

    count: int = 8
    every: Mapping[str, object] = field(default_factory=lambda: {**CARD, **REST})
    one: Mapping[int, Mapping[str, object]] = field(default_factory=dict)
    box: Mapping[str, object] = field(default_factory=lambda: dict(BOX))

    def all(self, **changes: object) -> Scene:
        return replace(self, every={**self.every, **changes})

    def gpu(self, index: int, **changes: object) -> Scene:
        return replace(self, one={**self.one, index: {**self.one.get(index, {}), **changes}})

    def machine(self, **changes: object) -> Scene:
        return replace(self, box={**self.box, **changes})

    def without(self, *functions: str) -> Scene:
        return self.machine(unsupported=",".join(functions))

    def linked(self, links: int = 18) -> Scene:
        """Cards with NVLink, all up, behind a switch that is set up."""
        return self.all(nvlinks=links, nvlinks_all=links, fabric=3)

    def loaded(self) -> Scene:
        return self.all(**LOAD)

    def text(self) -> str:
        pairs = {**self.box, "count": self.count}
        pairs |= {f"gpu.{key}": value for key, value in self.every.items()}
        for index in range(self.count):
            pairs |= {
                f"gpu{index}.uuid": f"GPU-{index:08d}-c0de-4bad-8bad-00000000cafe",
                f"gpu{index}.serial": f"165012400{index:04d}",
                f"gpu{index}.bus_id": f"00000000:{0x11 + 0x10 * index:02X}:00.0",
            }
            near = range(index // 4 * 4, index // 4 * 4 + 4)  # four to a socket
            pairs |= {f"gpu{index}.topology{other}": 40 for other in near if other != index}
        for index, changes in self.one.items():
            pairs |= {f"gpu{index}.{key}": value for key, value in changes.items()}
        return "".join(f"{key}={value}\n" for key, value in pairs.items())

    def beside(self, launches: Sequence[tuple[Path, Scene]]) -> str:
        """This scene, and after it others: each begins when its path appears and ends when the next one does."""
        return self.text() + "".join(f"[if {path}]\n{scene.text()}" for path, scene in launches)

    def write(self, path: Path) -> Path:
        """In one step, so that a reader never meets half a scene."""
        partial = path.with_suffix(".partial")
        partial.write_text(self.text())
        partial.replace(path)
        return path


HEALTHY = Scene()


def build(folder: Path) -> Path:
    """The library in `folder`, and CUDA's beside it. Needs a C compiler."""
    folder.chmod(0o755)  # pytest makes folders for their owner alone
    build_cuda(folder)
    return _compiled(folder / LIBRARY, SOURCE)


def build_cuda(folder: Path, **defined: str) -> Path:
    """A driver's library; `defined`: see its source."""
    return _compiled(folder / CUDA, CUDA_SOURCE, *(f"-D{name}={value}" for name, value in defined.items()))


def _compiled(library: Path, source: Path, *more: str) -> Path:
    require("gcc")
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{library.name}"]
    subprocess.run(["gcc", *flags, *more, "-o", library, source], check=True)
    return library


def nvcc(folder: Path, release: str = "13.0") -> Path:
    """A folder with an nvcc that says what it is, and no more."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvcc"
    program.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
    program.chmod(0o755)
    return folder


def load(library: Path) -> None:
    """Into this process, once and for all: `CDLL("libnvidia-ml.so.1")` finds what is loaded under that name."""
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def environment(library: Path, scene: Path) -> dict[str, str]:
    """Variables for another process."""
    paths = [str(library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"LD_LIBRARY_PATH": ":".join(filter(None, paths)), "NVML_SCENE": str(scene)}
