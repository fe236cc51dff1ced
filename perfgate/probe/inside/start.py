"""Activation, at the start of every Python process of the server: cheap, for most of them never import sglang.

Loaded by `path/sitecustomize.py` under the name `perfgate_probe`. It keeps a copy of the environment, waits for
`import sglang` and only then opens a file and loads the rest of the probe.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

ROOT = "PERFGATE_PROBE_ROOT"  # pid of the launch's first process; set by it, inherited by the others

Chained = Callable[["tuple[str, str | None] | None"], None]


def begin(sitecustomize: str) -> Chained | None:
    """Arms the probe where PERFGATE_PROBE_DIR is set. Returns what to call after the user's sitecustomize has run."""
    directory = os.environ.get("PERFGATE_PROBE_DIR")
    if not directory:
        return None
    waiting = _UntilSglang(directory, sitecustomize)
    sys.meta_path.insert(0, waiting)
    return waiting.chained


class _UntilSglang:
    """A finder that finds nothing: it notices the first `import sglang` and hands over to `hooks`."""

    def __init__(self, directory: str, sitecustomize: str) -> None:
        self.directory = directory
        self.sitecustomize = sitecustomize
        self.entry = dict(os.environ)
        self.ran: tuple[str, str | None] | None = None
        self.root = os.environ.setdefault(ROOT, str(os.getpid())) == str(os.getpid())

    def chained(self, ran: tuple[str, str | None] | None) -> None:
        self.ran = ran
        if sys.meta_path[:1] != [self] and self in sys.meta_path:  # the user's may have put its own finder in front
            sys.meta_path.remove(self)
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "sglang" or name.startswith("sglang."):
            sys.meta_path.remove(self)
            self._hand_over()
        return None

    def _hand_over(self) -> None:
        try:
            from . import process

            process.start(self.directory, self.sitecustomize, self.entry, self.ran, self.root)
        except Exception as error:  # noqa: BLE001 (a failing probe steps aside)
            sys.stderr.write(f"perfgate probe: off: {type(error).__name__}: {error}\n")
