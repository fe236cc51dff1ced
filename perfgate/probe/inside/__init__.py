"""The probe: phase timers and proof of environment, inside the server's own processes.

It runs in a stranger's Python (3.10 or newer), as a stranger's user, and uses the standard library only. It is
installed by one entry in front of PYTHONPATH and a few variables; no file of SGLang is touched:

    PYTHONPATH=<probe_path()>:…        its `sitecustomize` starts the probe and runs the next one on the path
    PERFGATE_PROBE_DIR=<directory>     one JSONL file for each process that imports sglang

The same files are two packages: `perfgate.probe.inside` here, `perfgate_probe` in the server, which never sees the
rest of perfgate. How it works inside: `start` (activation) → `hooks` (patches modules as they load, by the table in
`targets`) → `timers` (marks of a cycle) → `journal` (the file); `readings` and `proof` say what a process ran with.
A failing probe says why in its file, once on stderr, and steps aside: it must never break or slow the server.
"""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEFAULT_MAX_BYTES = 64 * 1024 * 1024  # of one process's file: some 350,000 cycles


def probe_path() -> Path:
    """The directory that must come first on the server's PYTHONPATH. Its parent must be readable, too."""
    return HERE / "path"


def copy_probe(to: Path) -> Path:
    """Copies the probe below `to` and returns the copy's PYTHONPATH entry: for a user who cannot read perfgate's own
    files. Both sides must be given the same copy, or copies made by the same perfgate."""
    root = to / "perfgate_probe"
    shutil.copytree(HERE, root, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return root / "path"


def probe_environment(
    probe_dir: Path, *, launch: str = "", max_bytes: int = DEFAULT_MAX_BYTES, timers: bool = True, toggle: bool = False
) -> dict[str, str]:
    """The variables that switch the probe on, beside PYTHONPATH.

    `probe_dir` must exist and be writable by the server's user. `launch` is a word that every file of this launch
    repeats, so that two servers sharing a directory by mistake are told apart. `timers` False: proof only. `toggle`:
    timers obey the first byte of `<probe_dir>/toggle` ("0" is off), for measuring their own cost.
    """
    return {
        "PERFGATE_PROBE_DIR": str(probe_dir),
        "PERFGATE_PROBE_LAUNCH": launch,
        "PERFGATE_PROBE_MAX_BYTES": str(max_bytes),
        "PERFGATE_PROBE_TIMERS": "1" if timers else "0",
        "PERFGATE_PROBE_TOGGLE": "1" if toggle else "0",
    }
