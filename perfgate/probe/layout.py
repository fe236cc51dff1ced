"""Checks the probe's target table against a tree of SGLang by reading its source: nothing is imported or run.

`perfgate probe --check-tree PATH` says before any GPU minute is spent whether the probe will find its phases in a
commit, and what moved where it will not.
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from perfgate.errors import PerfgateError
from perfgate.probe.inside.targets import (
    BY_MODULE,
    COLLECTIVE,
    CYCLE,
    DECODE,
    OLDEST,
    SPECULATIVE,
    TARGETS,
    Target,
    expected_in,
    release_of,
)

SEARCHED = ("sglang/srt/speculative/", "sglang/srt/managers/", "sglang/srt/distributed/")  # where a class may move to
MAX_SOURCE = 4 * 2**20  # of one file
METHODS = frozenset(target.method for target in TARGETS)
OWNERS = frozenset(target.owner for target in TARGETS)
_WORKER = re.compile(r"Worker(?:V\d+)?$")
_ABSTRACT = re.compile(r"Base|Abstract|_")


@dataclass(frozen=True)
class ClassLayout:
    bases: tuple[str, ...]
    methods: tuple[str, ...]  # plain functions of its own, of those the table names
    others: tuple[str, ...] = ()  # named by the table, but properties, static methods or the like


@dataclass(frozen=True)
class ModuleLayout:
    classes: Mapping[str, ClassLayout]
    functions: tuple[str, ...]
    calls: tuple[str, ...]  # method names of the table that are called in it


@dataclass(frozen=True)
class Layout:
    """Names of a tree, no source: what the table is checked against, and what tests record of a release."""

    version: str | None
    modules: Mapping[str, ModuleLayout]
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # class of the table → module it was found in instead
    untimed: tuple[str, ...] = ()  # "NGRAMWorker (ngram_worker)": workers of speculation that have no row

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str) -> Layout:
        body = json.loads(text)
        return Layout(
            version=body["version"],
            modules={
                module: ModuleLayout(
                    classes={
                        name: ClassLayout(tuple(of["bases"]), tuple(of["methods"]), tuple(of["others"]))
                        for name, of in layout["classes"].items()
                    },
                    functions=tuple(layout["functions"]),
                    calls=tuple(layout["calls"]),
                )
                for module, layout in body["modules"].items()
            },
            elsewhere=body["elsewhere"],
            untimed=tuple(body.get("untimed", ())),
        )


@dataclass(frozen=True)
class MissingRow:
    """One row of the table that a tree does not have. `code`: no_module, no_class, no_method, not_plain, not_called."""

    code: str
    family: str
    phase: str
    place: str
    text: str


def check_tree(path: Path) -> list[MissingRow]:
    """What moved in a checkout, an installed or unpacked package, or a wheel. Empty: every row is in its place.

    Raises PerfgateError where there is no SGLang.
    """
    return check_layout(read_layout(path))


def check_layout(layout: Layout) -> list[MissingRow]:
    """A tree whose release is not known has a method under one of the names it ever had, not under all of them."""
    checked = [(target, _check(target, layout)) for target in TARGETS if _expected(target, layout)]
    there = {(target.family, target.phase) for target, finding in checked if finding is None}
    return [
        finding
        for target, finding in checked
        if finding is not None and (layout.version is not None or (target.family, target.phase) not in there)
    ]


def tree_report(path: Path) -> str:
    """For people: whether the probe will find its phases in this tree, and what moved where it will not."""
    layout = read_layout(path)
    release = f"SGLang {layout.version}" if layout.version else "SGLang (a checkout: rows of today's releases)"
    if layout.version is not None and release_of(layout.version) < release_of(OLDEST):
        return f"{release}: older than {OLDEST}, the first release that the probe knows; nothing is said of it"
    findings = check_layout(layout)
    lines = [f"{release}: every method the probe times is in its place"]
    if findings:
        lines = [f"{release}: {len(findings)} of the probe's methods moved"]
        lines += [f"  {finding.family} {finding.phase}: {finding.text}" for finding in findings]
    if lost := sorted(unusable(findings)):
        lines.append(f"verify_ms or decode_ms will be absent for: {', '.join(lost)}")
    if layout.untimed:
        lines.append(f"not timed, having no rows: {', '.join(layout.untimed)}")
    lines.append("not timed: speculation under pipeline parallelism (pp-size above 1) has no verify numbers")
    return "\n".join(lines)


def unusable(findings: Iterable[MissingRow]) -> set[str]:
    """The families whose verify (or decode step) will not be found."""
    return {finding.family for finding in findings if finding.phase in ("verify", DECODE)}


# ------------------------------------------------------------------------------------------------ checking


def _check(target: Target, layout: Layout) -> MissingRow | None:
    module = layout.modules.get(target.module)
    if module is None:
        return _finding("no_module", target, f"{target.module} is not there{_instead(target, layout)}")
    if target.owner is None:
        if target.method in module.functions:
            return None
        return _finding("no_method", target, f"{target.module} has no function {target.method}")
    if target.owner not in module.classes:
        return _finding("no_class", target, f"{target.module} has no class {target.owner}{_instead(target, layout)}")
    return _check_method(target, layout)


def _check_method(target: Target, layout: Layout) -> MissingRow | None:
    home = _home_of(target, layout)
    if home is None:
        near = ", ".join(_who_has(target.method, layout.modules[target.module]))
        hint = f"; there is one in {near}" if near else ""
        return _finding("no_method", target, f"{target.owner} has no method {target.method}{hint}")
    place, of = home
    if target.method in of.others:
        return _finding("not_plain", target, f"{target.owner}.{target.method} is no plain method; it cannot be timed")
    if target.phase in (CYCLE, DECODE, COLLECTIVE) or target.method in layout.modules[place].calls:
        return None
    return _finding("not_called", target, f"nothing in {place} calls {target.method} any more")


def _expected(target: Target, layout: Layout) -> bool:
    """By the release; in a tree without one, the rows of today and those whose class is there."""
    if layout.version is not None:
        return expected_in(target, layout.version)
    module = layout.modules.get(target.module)
    return target.until is None or (module is not None and target.owner in module.classes)


def _home_of(target: Target, layout: Layout) -> tuple[str, ClassLayout] | None:
    """The module and class in which the method is written, looking upwards through base classes of the table."""
    everything = {name: (module, of) for module, at in layout.modules.items() for name, of in at.classes.items()}
    waiting = [str(target.owner)]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop(0)
        if name in seen or name not in everything:
            continue
        seen.add(name)
        module, of = everything[name]
        if target.method in (*of.methods, *of.others):
            return module, of
        waiting += of.bases
    return None


def _who_has(method: str, module: ModuleLayout) -> Iterator[str]:
    return (name for name, of in module.classes.items() if method in of.methods)


def _instead(target: Target, layout: Layout) -> str:
    module = layout.elsewhere.get(target.owner or "")
    return f"; {target.owner} is in {module}" if module else ""


def _finding(code: str, target: Target, text: str) -> MissingRow:
    return MissingRow(code, target.family, target.phase, target.place, text)


# ------------------------------------------------------------------------------------------------ reading


def read_layout(path: Path) -> Layout:
    """The names a tree has. Files that are no Python any more count as not there."""
    sources = dict(_sources(path))
    if not any(name.startswith("sglang/srt/") for name in sources):
        raise PerfgateError("no SGLang here", where=str(path), remedy="give a checkout, a package directory or a wheel")
    modules: dict[str, ModuleLayout] = {}
    elsewhere: dict[str, str] = {}
    workers: dict[str, tuple[str, list[str]]] = {}
    wanted = {target.owner: target.module for target in TARGETS if target.owner}
    for name, source in sorted(sources.items()):
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if module in BY_MODULE:
            modules[module] = _module_layout(tree)
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and wanted.get(node.name) not in (None, module):
                elsewhere[node.name] = module
            if isinstance(node, ast.ClassDef) and module.startswith(SPECULATIVE):
                workers[node.name] = module.removeprefix(SPECULATIVE), [_last_name(base) for base in node.bases]
    return Layout(_version(path), modules, elsewhere, tuple(_untimed(workers)))


def _untimed(workers: Mapping[str, tuple[str, list[str]]]) -> Iterator[str]:
    """Classes that are workers by their names, and neither have a row nor inherit from one that has."""
    for name, (module, _) in sorted(workers.items()):
        if _WORKER.search(name) and not _ABSTRACT.match(name) and not _has_row(name, workers):
            yield f"{name} ({module})"


def _has_row(name: str, workers: Mapping[str, tuple[str, list[str]]]) -> bool:
    waiting, seen = [name], set[str]()
    while waiting:
        one = waiting.pop()
        if one in OWNERS and one != "TpModelWorker":
            return True
        if one in workers and one not in seen:
            seen.add(one)
            waiting += workers[one][1]
    return False


def _last_name(base: ast.expr) -> str:
    return ast.unparse(base).rpartition(".")[2]


def _module_layout(tree: ast.Module) -> ModuleLayout:
    classes = {node.name: _class_layout(node) for node in tree.body if isinstance(node, ast.ClassDef)}
    called = {
        node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    return ModuleLayout(
        classes={name: of for name, of in classes.items() if of.methods or of.others or name in OWNERS},
        functions=tuple(sorted(_named(tree.body))),
        calls=tuple(sorted(called & METHODS)),
    )


def _class_layout(node: ast.ClassDef) -> ClassLayout:
    bases = [_last_name(base) for base in node.bases]
    functions = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name in METHODS]
    bound = [item for item in functions if any(_binds_otherwise(decorator) for decorator in item.decorator_list)]
    plain = {item.name for item in functions} - {item.name for item in bound}
    return ClassLayout(tuple(bases), tuple(sorted(plain)), tuple(sorted({item.name for item in bound})))


def _binds_otherwise(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).rpartition(".")[2] in {"property", "cached_property", "staticmethod", "classmethod"}


def _named(body: list[ast.stmt]) -> set[str]:
    return {item.name for item in body if isinstance(item, ast.FunctionDef)} & METHODS


def _sources(path: Path) -> Iterator[tuple[str, str]]:
    """`sglang/srt/….py` → text, of the packages where targets are or may move to."""
    if path.suffix == ".whl" and path.is_file():
        yield from _wheel_sources(path)
        return
    root = next((root for root in (path / "python", path, path.parent) if (root / "sglang" / "srt").is_dir()), None)
    if root is None:
        return
    for part in SEARCHED:
        for file in sorted((root / part).rglob("*.py")):
            if file.is_file() and file.stat().st_size <= MAX_SOURCE:
                yield file.relative_to(root).as_posix(), file.read_text(encoding="utf-8", errors="replace")


def _wheel_sources(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with zipfile.ZipFile(path) as wheel:
            for item in wheel.infolist():
                if (
                    item.filename.startswith(SEARCHED)
                    and item.filename.endswith(".py")
                    and item.file_size <= MAX_SOURCE
                ):
                    yield item.filename, wheel.read(item).decode("utf-8", errors="replace")
    except (zipfile.BadZipFile, OSError, RuntimeError) as error:
        raise PerfgateError("not a readable wheel", where=str(path)) from error


def _version(path: Path) -> str | None:
    """Of a wheel by its name, of an installed package by its metadata; a checkout has none."""
    if path.suffix == ".whl" and path.is_file() and (match := re.match(r"sglang-([^-]+)-", path.name)):
        return match[1]
    for root in (path, path.parent):
        for info in sorted(root.glob("sglang-*.dist-info")):
            return info.name.removeprefix("sglang-").removesuffix(".dist-info")
    return None
