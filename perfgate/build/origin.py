"""Where an environment imports `sglang` from, and the versions that matter in it: asked of its own interpreter.

An orphaned `site-packages/sglang/` without `__init__.py`, an old wheel, a `.pth` file: each can answer `import sglang`
with code that nobody meant. So the interpreter is asked with the very PYTHONPATH that the server gets. Starting it
runs what the environment's `.pth` files say, hence it is confined, and its answer is read as a stranger's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.build.steps import BuildStep
from perfgate.errors import Exit, PerfgateError
from perfgate.text import visible

DISTRIBUTIONS = (
    *("torch", "sgl-kernel", "sglang-kernel", "flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"),
    *("triton", "transformers", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "sgl-deep-gemm", "xgrammar", "sglang"),
)

_MARK = "perfgate-origin:"
_ASK = f"""
import importlib.metadata as m, importlib.util as u, json, platform, sys
def version(name):
    try: found = m.distribution(name)
    except m.PackageNotFoundError: return None
    try: local = "file://" in (found.read_text("direct_url.json") or "")
    except Exception: local = False
    return found.version + (" (built here)" if local else "")
spec = u.find_spec("sglang")
print("{_MARK}" + json.dumps({{
    "origin": spec and spec.origin,
    "package": bool(spec and spec.submodule_search_locations is not None),
    "python": platform.python_version(),
    "prefix": sys.base_prefix,
    "versions": {{name: version(name) for name in sys.argv[1:]}},
}}))
"""


class WrongOrigin(PerfgateError):
    """`import sglang` would not give the commit's code."""

    exit_code = Exit.CANNOT


@dataclass(frozen=True)
class OriginAnswer:
    origin: Path | None
    package: bool
    python: str
    prefix: Path
    versions: Mapping[str, str]


def ask(python: Path, path_entries: Sequence[Path], cwd: Path, readable: Sequence[Path] = ()) -> BuildStep:
    """The step that asks. `readable`: whatever else the interpreter needs."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(cwd),
        "PYTHONPATH": os.pathsep.join(map(str, path_entries)),
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
    }
    argv = [str(python), "-c", _ASK, *DISTRIBUTIONS]
    return BuildStep(
        what="where sglang is imported from",
        argv=argv,
        environment=environment,
        cwd=cwd,
        theirs=True,
        readable=(*path_entries, *readable),
        writable=(cwd,),
    )


def read_answer(output: str) -> OriginAnswer:
    """The last answer in an output that others may have written into."""
    lines = [line for line in output.splitlines() if line.startswith(_MARK)]
    try:
        body = json.loads(lines[-1].removeprefix(_MARK)) if lines else None
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("versions"), dict):
        raise WrongOrigin("the environment's Python does not say where sglang comes from")
    return OriginAnswer(
        origin=_path(body.get("origin")),
        package=body.get("package") is True,
        python=_short(body.get("python")),
        prefix=Path(_short(body.get("prefix"), 4096)),
        versions={
            name: _short(version)
            for name in DISTRIBUTIONS
            if isinstance(version := body["versions"].get(name), str) and version
        },
    )


def _path(value: Any) -> Path | None:
    """A path that the file system can be asked about: without NUL, and without lone surrogates."""
    try:
        return Path(os.fsdecode(os.fsencode(value))) if isinstance(value, str) and "\0" not in value else None
    except UnicodeEncodeError:
        return None


def _resolved(path: Path) -> Path | None:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a loop of links: RuntimeError up to Python 3.12
        return None


def _short(value: Any, limit: int = 80) -> str:
    return visible(value, limit) if isinstance(value, str) else ""


def check_origin(answer: OriginAnswer, tree: Path) -> Path:
    """The file that `import sglang` runs; WrongOrigin where it does not lie in the tree's own python/sglang."""
    wanted = tree.resolve() / "python" / "sglang"
    if answer.origin is None:
        found = "a folder without __init__.py" if answer.package else "nothing"
    elif _resolved(answer.origin) in (wanted / "__init__.py", *(wanted / f"__init__.{kind}" for kind in ("pyc", "so"))):
        return answer.origin
    else:
        found = visible(str(answer.origin), 200)
    raise WrongOrigin(
        f"`import sglang` finds {found}, not the commit's code", where=str(wanted), remedy="remove that copy of sglang"
    )
