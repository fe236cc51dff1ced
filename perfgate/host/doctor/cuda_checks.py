"""Whether confined code can use the GPUs, and compile for them as SGLang does while it serves."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfgate.config.model import BoxFile, ResolvedRecipe
from perfgate.host import cuda_trial
from perfgate.host.inputs import named_in
from perfgate.host.sandbox import OUTER_ENVIRONMENT, UNCONFINED, Confinement, confine, interpreter_folders
from perfgate.records import Check

SCRIPT = Path(cuda_trial.__file__)
TRIAL_S = 120.0  # eight contexts take a few seconds
NODES = "sudo nvidia-modprobe -u -c=0; ls -l /dev/nvidia*"


def wake_gpus(environment: Mapping[str, str]) -> None:
    """Touches CUDA outside of any sandbox: some device nodes appear only then, by a set-user-ID program of the driver,
    which cannot work inside."""
    if shutil.which("nvidia-modprobe", path=OUTER_ENVIRONMENT["PATH"]) and os.geteuid() == 0:
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["nvidia-modprobe", "-u", "-c=0"], env=OUTER_ENVIRONMENT, timeout=TRIAL_S, check=False)
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        _answer(UNCONFINED, environment, "init")


def cuda_check(confinement: Confinement, environment: Mapping[str, str], gpus: int) -> Check:
    """cuInit, memory and peer access on all GPUs, as servers will have them."""
    try:
        found = _answer(confinement, environment)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        found = {"error": str(error).splitlines()[0]}
    where = f"in isolation ({confinement})"
    if "error" in found:
        return Check(
            name="cuda",
            status="fail",
            text=f"the GPUs cannot be used {where}: {found['error']}",
            why="a server would find no GPU",
            remedy=NODES,
        )
    if found["gpus"] != gpus:
        return Check(
            name="cuda",
            status="fail",
            text=f"{found['gpus']} of {gpus} GPUs can be used {where}",
            why="a server would start with fewer ranks, or not at all",
            remedy=f"{NODES}; compare CUDA_VISIBLE_DEVICES in the box file",
        )
    peers = "" if gpus == 1 else f", peer access between {found['peers']} of {found['pairs']} pairs"
    return Check(name="cuda", status="ok", text=f"{gpus} GPUs answer {where}{peers}")


def _answer(confinement: Confinement, environment: Mapping[str, str], *arguments: str) -> dict[str, Any]:
    """The script goes in the command: the confined user may not see where perfgate lies."""
    given = {name: environment[name] for name in ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES") if name in environment}
    python = _python_of(confinement)
    argv = confine(
        [str(python), "-I", "-S", "-c", SCRIPT.read_text(), *arguments],
        {"PATH": OUTER_ENVIRONMENT["PATH"], **given},
        confinement=confinement,
        readable=(*interpreter_folders(python), *named_in(given)),
        cwd=Path("/"),
    )
    done = subprocess.run(
        argv, env=OUTER_ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TRIAL_S
    )
    if done.returncode != 0:
        raise ValueError((done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1])
    answer = json.loads(done.stdout)
    return answer if isinstance(answer, dict) else {"error": "it gave no answer"}


def _python_of(confinement: Confinement) -> Path:
    """perfgate's own may be nobody else's to read."""
    system = shutil.which("python3", path=OUTER_ENVIRONMENT["PATH"])
    return Path(system) if confinement.sole_user is not None and system else Path(sys.executable)


# ------------------------------------------------------------------------------------------------ compilers


def compiler_checks(
    box: BoxFile, recipes: Iterable[ResolvedRecipe], *, python: str, search: str, driver_cuda: str | None
) -> Iterator[Check]:
    """SGLang compiles while it serves: JIT kernels with nvcc, Triton with a C compiler and Python's own headers."""
    path = ":".join([*box.tools.values(), *_cuda_home(box), search])
    nvcc, compiler = shutil.which("nvcc", path=path), shutil.which("cc", path=path) or shutil.which("gcc", path=path)
    found = nvcc_version(nvcc) if nvcc else None
    if nvcc is None:
        major = (driver_cuda or "13").partition(".")[0]
        yield _cannot_compile(
            "nvcc is not found",
            f"sudo apt-get install cuda-toolkit-{major}; name its folder: tools: {{nvcc: /usr/local/cuda/bin}}",
        )
    elif found and driver_cuda and int(found.partition(".")[0]) > int(driver_cuda.partition(".")[0]):
        yield _cannot_compile(
            f"nvcc is of CUDA {found}, the driver serves up to {driver_cuda}",
            "install a newer driver, or an older toolkit",
        )
    if compiler is None or shutil.which("c++", path=path) is None:
        yield _cannot_compile("no C and C++ compiler", "sudo apt-get install gcc g++")
    own = shutil.which(f"python{python}", path=":".join(box.tools.values()))
    if own and not _has_headers(own):
        yield _cannot_compile(
            f"{own} has no Python.h",
            f"sudo apt-get install python{python}-dev, or take it out of `tools`: uv brings one",
        )
    binding = [recipe.name for recipe in recipes if recipe.flags.get("numa-node") is not None]
    if binding and shutil.which("numactl", path=path) is None:
        yield _cannot_compile(
            f"numactl is not found, and {', '.join(binding)} binds ranks to NUMA nodes", "sudo apt-get install numactl"
        )


def cuda_mismatch(nvcc: str | None, torch_cuda: str | None) -> str | None:
    """Why code compiled by this nvcc is not for torch's CUDA. Both as "13.0"; None where they go together."""
    if nvcc is None or torch_cuda is None or nvcc.partition(".")[0] == torch_cuda.partition(".")[0]:
        return None
    return f"nvcc is of CUDA {nvcc}, torch of CUDA {torch_cuda}: SGLang's kernels would not compile"


def nvcc_version(nvcc: str) -> str | None:
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=TRIAL_S, check=False).stdout
        if match := re.search(r"release (\d+\.\d+)", told):
            return match[1]
    return None


def _cuda_home(box: BoxFile) -> list[str]:
    return [f"{box.env['CUDA_HOME']}/bin"] if "CUDA_HOME" in box.env else []


def _has_headers(python: str) -> bool:
    code = "import os, sysconfig; print(os.path.exists(sysconfig.get_paths()['include'] + '/Python.h'))"
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=TRIAL_S, check=False)
        return done.stdout.strip() == "True"
    return False


def _cannot_compile(text: str, remedy: str) -> Check:
    return Check(
        name="compilers",
        status="fail",
        text=text,
        why="SGLang compiles kernels while it starts, and would fail there",
        remedy=remedy,
    )
