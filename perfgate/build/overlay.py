"""The tree that a server imports: a commit's files, their bytecode, and what was compiled for them.

The tree is read-only to the server, so without bytecode every process of every launch would compile SGLang anew. It
lies where Python looks for it, beside the sources, valid whatever their times: the folder's manifest watches both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perfgate.build.steps import BuildStep, Runner, StepFailed
from perfgate.host.sandbox import interpreter_folders
from perfgate.records import Commit
from perfgate.source.repository import Repository, Worktree
from perfgate.store.folders import Store
from perfgate.store.strangers import content_of, take_tree

_NOT_SERVED = r"/(multimodal_gen|tests?)/"
"""A third of SGLang's files, which no server of a language model imports."""


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """What is added to a commit's files. `version`: of the interpreter that will import them, e.g. "3.12.4"."""

    python: Path
    version: str
    compiled: Path | None = None  # folder of extension modules, laid over the tree's python folder

    @property
    def label(self) -> str:
        minor = ".".join(self.version.split(".")[:2])
        return f"py{minor}-{content_of(self.compiled).hash[:8]}" if self.compiled else f"py{minor}"

    def lay(self, repository: Repository, commit: Commit, store: Store, runner: Runner) -> Worktree:
        """The tree to serve from, made once. The caller keeps its hold."""

        def finish(place: Path, final: Path) -> None:
            if self.compiled:
                take_tree(self.compiled, place / "python", replacing=True)
            bytecode(runner, self.python, place / "python", final / "python")

        return repository.worktree(commit, store.folder("trees"), variant=self.label, finish=finish)


def bytecode(runner: Runner, python: Path, folder: Path, final: Path) -> None:
    """Compiles Python files below `folder`, which will be called `final`.

    Without `site`, so that no `.pth` file runs. Best effort: the rest is compiled, or fails, when it is imported.
    """
    argv = [
        *(str(python), "-I", "-S", "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"),
        *("-x", _NOT_SERVED, "-s", str(folder), "-p", str(final), str(folder)),
    ]
    step = BuildStep(
        what="compile bytecode",
        argv=argv,
        environment={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        cwd=folder,
        theirs=True,
        readable=interpreter_folders(python),
        writable=(folder,),
    )
    try:
        runner.run(step)
    except StepFailed as failed:
        if failed.code is None:
            raise
