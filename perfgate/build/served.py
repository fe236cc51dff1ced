"""A side ready to serve: checked to import the commit's code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfgate.build import BuiltSide
from perfgate.build.origin import OriginAnswer, ask, check_origin, read_answer
from perfgate.build.steps import Runner
from perfgate.host.sandbox import interpreter_folders
from perfgate.host.temporary import temporary_folder
from perfgate.records import Side


def verify_origin(built: BuiltSide, runner: Runner) -> OriginAnswer:
    """Asks the side's Python, with the server's own PYTHONPATH, where sglang comes from; WrongOrigin if elsewhere."""
    with temporary_folder("origin") as folder:
        readable = (built.tree, *built.readable, *interpreter_folders(built.python))
        answer = read_answer(runner.run(ask(built.python, built.path_entries, folder, readable)))
    check_origin(answer, built.tree)
    return answer


def fixed_side(
    side: Side,
    tree: Path,
    python: Path,
    *,
    key: str,
    runner: Runner,
    before: tuple[Path, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> BuiltSide:
    """A side in an environment that a profile fixed. `before`: entries of PYTHONPATH before the tree's, e.g. a shim's.

    Raises WrongOrigin where `import sglang` would not give the tree's code.
    """
    built = BuiltSide(
        side=side,
        key=key,
        python=python,
        tree=tree,
        path_entries=(*before, tree / "python"),
        environment=environment or {},
        readable=(*before, *interpreter_folders(python)),
        cached=True,
    )
    answer = verify_origin(built, runner)
    return BuiltSide(**{**vars(built), "versions": {**answer.versions, "python": answer.python}})
