"""What a process ran with: its variables, its command line, and the files that can change NCCL's mind.

Three readings of the variables are told apart (DESIGN: given, at start, effective); `given` is known to who started
the server. Values under names that sound like secrets are replaced by a hash, which still compares.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

PREFIXES = ("NCCL_", "SGLANG_", "CUDA_")
SECRET = re.compile(r"(API_?KEY|_KEY|_TOKEN|SECRET|PASSWORD|CREDENTIALS?)$", re.IGNORECASE)
HASHED = "sha256:"
SECRET_FLAG = re.compile(r"^--?[\w-]*(key|token|secret|password)$", re.IGNORECASE)  # not --max-total-tokens
MAX_NAMES = 512
MAX_VALUE = 4096


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The NCCL_*, SGLANG_* and CUDA_* variables, in order of name."""
    names = sorted(name for name in environment if name.startswith(PREFIXES))[:MAX_NAMES]
    return {clean(name): shown(name, environment[name]) for name in names}


def effective() -> dict[str, str]:
    """The variables as C code sees them now. NCCL adds those of its configuration files by `setenv`, which
    `os.environ` does not notice."""
    names = {name for name in os.environ if name.startswith(PREFIXES)}
    for path in nccl_files(os.environ):
        names.update(_names_in(path))
    return variables(_as_c_sees_them(names))


def _as_c_sees_them(names: Iterable[str]) -> dict[str, str]:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    getenv.argtypes = [ctypes.c_char_p]
    seen = {}
    for name in names:
        value = getenv(name.encode())
        if value is not None:
            seen[name] = value.decode("utf-8", "backslashreplace")
    return seen


def nccl_files(environment: Mapping[str, str]) -> list[str]:
    """Configuration files NCCL reads: NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf."""
    own = environment.get("NCCL_CONF_FILE") or environment.get("HOME", "") + "/.nccl.conf"
    return [path for path in (own, "/etc/nccl.conf") if Path(path).is_file()]


def _names_in(path: str) -> set[str]:
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            lines = file.read(65536).splitlines()
    except OSError:
        return set()
    names = {line.split("=", 1)[0].strip() for line in lines if "=" in line and not line.lstrip().startswith("#")}
    return {name for name in names if name.startswith("NCCL_")}


def unhashed_secret(name: str, value: str) -> bool:
    """Whether the value may be a secret, and is not the hash of one already."""
    return bool(SECRET.search(name)) and not value.startswith(HASHED)


def shown(name: str, value: str) -> str:
    """The value, or its hash where it may be a secret."""
    if SECRET.search(name) and value:
        return HASHED + hashlib.sha256(value.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return clean(value)


def clean(text: str) -> str:
    """Text that any JSON reader takes: bytes that are no UTF-8 are spelled out, and it is not endless."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_VALUE else text[:MAX_VALUE] + "…"


def command_line() -> list[str]:
    """argv as the interpreter got it, without secrets."""
    hidden: list[str] = []
    secret_next = False
    for word in sys.orig_argv[:MAX_NAMES]:
        flag, equals, _ = word.partition("=")
        if secret_next:
            hidden.append("***")
        elif equals and SECRET_FLAG.match(flag):
            hidden.append(clean(flag) + "=***")
        else:
            hidden.append(clean(word))
        secret_next = not equals and bool(SECRET_FLAG.match(word))
    return hidden


def title() -> str:
    """The process's title: `sglang::scheduler_TP0` once setproctitle has replaced the command line."""
    try:
        with Path("/proc/self/cmdline").open("rb") as file:
            return file.read(4096).split(b"\0")[0].decode("utf-8", "replace").strip()
    except OSError:
        return ""


def file_hash(path: str, max_bytes: int = 2**30) -> str | None:
    """SHA-256 of a file; None where it cannot be read or is larger than `max_bytes`."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_size > max_bytes:
                return None
            while chunk := file.read(2**20):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()
