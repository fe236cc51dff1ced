"""Starts the probe in every Python process of the server, then runs the user's own sitecustomize.

Python runs only the first `sitecustomize` on its path. This one stands in front of it, so it owes the next one its
turn, whatever happens to the probe: users keep their NCCL settings there. After that, nothing on `sys.path` shows that
this directory was ever there.
"""
# pathlib would cost every Python process of the server some milliseconds:
# ruff: noqa: PTH100, PTH118, PTH120, PTH121

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import machinery, util

Chained = Callable[["tuple[str, str | None] | None"], None]


def leave_the_path(own: str) -> None:
    """Takes this directory off sys.path: whoever looks for the next sitecustomize must not find this one again."""
    sys.path[:] = [entry for entry in sys.path if not _same(entry, own)]


def _same(entry: str, own: str) -> bool:
    try:
        return entry == own or os.path.samefile(entry, own)
    except (OSError, TypeError, ValueError):
        return False


def start_probe(own: str) -> Chained | None:
    """The probe's package lies in the directory above and gets a name of its own. None where it is off."""
    root = os.path.dirname(own)
    try:
        spec = util.spec_from_file_location(
            "perfgate_probe", os.path.join(root, "start.py"), submodule_search_locations=[root]
        )
        assert spec is not None
        assert spec.loader is not None
        module = util.module_from_spec(spec)
        sys.modules["perfgate_probe"] = module
        spec.loader.exec_module(module)
        begin: Callable[[str], Chained | None] = module.begin
        return begin(os.path.abspath(__file__))
    except Exception as error:  # noqa: BLE001 (a failing probe steps aside)
        sys.stderr.write(f"perfgate probe: off: {type(error).__name__}: {error}\n")
        return None


def run_next() -> tuple[str, str | None] | None:
    """Runs the sitecustomize that Python would have run without this one, and as Python would have: an error in it is
    told on stderr and start-up goes on. Returns its path and the error; None where there is no other."""
    for entry in list(sys.path):
        spec = machinery.PathFinder.find_spec("sitecustomize", [entry])
        if spec is None or spec.loader is None or not spec.origin:
            continue
        module = util.module_from_spec(spec)
        mine = sys.modules["sitecustomize"]
        sys.modules["sitecustomize"] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # noqa: BLE001 (as the site module does)
            sys.modules["sitecustomize"] = mine
            text = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"Error in sitecustomize; set PYTHONVERBOSE for traceback:\n{text}\n")
            return spec.origin, text
        return spec.origin, None
    return None


def main() -> None:
    own = os.path.dirname(os.path.abspath(__file__))
    leave_the_path(own)
    chained = start_probe(own)
    ran = run_next()
    if chained is not None:
        chained(ran)


if "perfgate_probe" not in sys.modules:  # a second copy further down the path is no user's
    main()
