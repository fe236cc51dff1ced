"""Private HOMEs and what may grow in them: JIT caches, one set per side's tree and environment.

Base and head share nothing that either can write. Written by PR code, so read here without following a link, without
opening anything but regular files, and within limits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfgate.build import BuiltSide
from perfgate.records.files import write_whole
from perfgate.store.entries import companion
from perfgate.store.folders import Store
from perfgate.store.strangers import own_folder


@dataclass(frozen=True)
class Home:
    path: Path
    launches: Mapping[str, int]  # what was served → launches that have warmed it for that so far

    def cold_for(self, served: str) -> bool:
        """`served`: a name for flags and model. Others compile other kernels, so they do not count."""
        return served not in self.launches

    @property
    def variables(self) -> Mapping[str, str]:
        """What sends every cache that SGLang and its libraries know into this HOME, on old versions and new."""
        cache = self.path / ".cache"
        return {
            "HOME": str(self.path),
            "XDG_CACHE_HOME": str(cache),
            "XDG_CONFIG_HOME": str(self.path / ".config"),
            "TMPDIR": str(self.path / "tmp"),
            "SGLANG_CACHE_DIR": str(cache / "sglang"),
            "SGLANG_DG_CACHE_DIR": str(cache / "deep_gemm"),
            "DG_JIT_CACHE_DIR": str(cache / "deep_gemm"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TORCH_EXTENSIONS_DIR": str(cache / "torch_extensions"),
            "TILELANG_CACHE_DIR": str(cache / "tilelang"),
            "FLASHINFER_WORKSPACE_BASE": str(self.path),
            "CUDA_CACHE_PATH": str(cache / "cuda"),
            "HF_MODULES_CACHE": str(cache / "hf_modules"),  # code that a model brings
            "TVM_FFI_CACHE_DIR": str(cache / "tvm-ffi"),
        }


def home_for(store: Store, built: BuiltSide) -> Home:
    """The HOME of a side's tree in its environment, held until the store is closed."""
    name = f"{built.tree.name[:16]}-{built.key[:16]}"
    if not store.entry("homes", name).exists():
        companion(store.entry("homes", name), "launches").unlink(missing_ok=True)
    home = read_home(store.use("homes", name))
    own_folder(home.path / "tmp")
    return home


def read_home(path: Path) -> Home:
    """A HOME that is held already, as it is now; open to us, though the last server may have locked it."""
    path.chmod(0o700)
    return Home(path, _launches(path))


def mark_warm(home: Home, served: str) -> Home:
    """After a launch that served: the code that it needs is compiled from now on."""
    launches = _launches(home.path)
    launches[served] = launches.get(served, 0) + 1
    write_whole(companion(home.path, "launches"), json.dumps(launches))
    return Home(home.path, launches)


def _launches(path: Path) -> dict[str, int]:
    try:
        counts = json.loads(companion(path, "launches").read_text())
    except (OSError, ValueError):
        return {}
    return counts if isinstance(counts, dict) else {}
