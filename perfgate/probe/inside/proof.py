"""What a rank is and which libraries it has loaded, asked of modules that are loaded already. Imports nothing heavy:
every answer may be None, and a question that fails is only left out."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from .readings import file_hash

DISTRIBUTIONS = (
    "sglang",
    "torch",
    "triton",
    "flashinfer-python",
    "sgl-kernel",
    "sglang-kernel",
    "sgl-deep-gemm",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "transformers",
)
NCCL_LIBRARY = re.compile(r"(/\S*lib(?:nccl|rccl)\.so\S*)$")


def asked(question: Callable[[], Any]) -> Any:
    """The answer, or None where asking fails."""
    try:
        return question()
    except Exception:  # noqa: BLE001 (strangers' code of any release answers)
        return None


def rank() -> dict[str, int]:
    """Ranks of this process: `world` (torch.distributed) and `tp`, `pp` where SGLang knows them."""
    state: Any = sys.modules.get("sglang.srt.distributed.parallel_state")
    distributed: Any = sys.modules.get("torch.distributed")
    answers = {
        "world": asked(lambda: distributed.get_rank() if distributed.is_initialized() else None),
        "size": asked(lambda: distributed.get_world_size() if distributed.is_initialized() else None),
        "tp": asked(lambda: state.get_tensor_model_parallel_rank()),
        "pp": asked(lambda: state.get_pp_group().rank_in_group),
    }
    return {name: answer for name, answer in answers.items() if isinstance(answer, int)}


def device_of(worker: Any) -> str | None:
    """The device of a worker: "cuda", "cpu", "xpu", …; None where it does not say."""
    for path in ("device", "model_runner.device", "server_args.device", "target_worker.device"):
        found: Any = worker
        for name in path.split("."):
            found = asked(partial(getattr, found, name))
        if found is not None:
            return str(found)[:64]
    return None


def device_name() -> str | None:
    """Index and name of the GPU in use, e.g. "3 NVIDIA RTX PRO 6000"."""
    torch: Any = sys.modules.get("torch")
    if not asked(lambda: torch.cuda.is_initialized()):
        return None
    index = asked(lambda: torch.cuda.current_device())
    return f"{index} {asked(lambda: torch.cuda.get_device_name(index))}"


def versions() -> dict[str, str]:
    """Of Python, CUDA and the distributions that decide about speed; `sglang_path` is where it was imported from."""
    torch: Any = sys.modules.get("torch")
    found = {"python": sys.version.split()[0]}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError, ValueError, OSError):
            found[name] = metadata.version(name)
    answers = {
        "torch": asked(lambda: torch.__version__),  # with its +cu130, unlike the distribution's
        "cuda": asked(lambda: torch.version.cuda),
        "sglang_path": asked(lambda: str(Path(str(sys.modules["sglang"].__file__)).parent)),
        "sgl_kernel_path": asked(lambda: str(sys.modules["sgl_kernel"].__file__)),
    }
    found.update({name: str(answer) for name, answer in answers.items() if answer})
    return found


def nccl_libraries() -> list[dict[str, str | None]]:
    """Every libnccl mapped into this process: torch and SGLang may have loaded two. Hashing takes a while."""
    try:
        maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    paths = sorted({match[1] for line in maps if (match := NCCL_LIBRARY.search(line))})[:8]
    return [{"path": path, "version": asked(partial(_version, path)), "hash": file_hash(path)} for path in paths]


def _version(path: str) -> str | None:
    """Asked of the library itself, which is loaded already: RTLD_NOLOAD loads nothing."""
    library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    number = ctypes.c_int()
    if library.ncclGetVersion(ctypes.byref(number)) != 0:
        return None
    major, rest = divmod(number.value, 10000)
    return f"{major}.{rest // 100}.{rest % 100}"
