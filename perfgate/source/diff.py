"""What a diff means for a measurement: what has to be built anew, which recipe it touches, or that nothing can change.

Paths decide, by the `table`; of a few files only what has changed in them does: `python/pyproject.toml` counts where
what it asks to install differs, the kernel package's where more than its version does.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perfgate.errors import PerfgateError
from perfgate.source.patterns import matches_any
from perfgate.source.pins import PYPROJECT, PinChange, pin_changes, read_pins
from perfgate.source.rust import WORKSPACE_LOCK, WORKSPACE_MANIFEST, same_but_members, same_for_tree_core
from perfgate.source.table import (
    JIT,
    KERNEL,
    KERNEL_PROJECTS,
    KERNEL_PYTHON,
    NOTHING,
    PYTHON,
    RUST,
    SPECULATIVE,
    TREE_CORE_CRATES,
    TUNED,
    group_of,
)

KERNEL_PYPROJECTS = tuple(f"{project}/pyproject.toml" for project in KERNEL_PROJECTS)
_READ = (PYPROJECT, *KERNEL_PYPROJECTS, WORKSPACE_LOCK, WORKSPACE_MANIFEST)
"""Files of which the content decides, where it is given."""

Contents = Mapping[str, tuple[bytes | None, bytes | None]]
"""path → its content at base and at head; None where it is not there."""

_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class DiffClass:
    """The kinds combine; none of them: nothing to measure. `deciding` holds the paths behind each, sorted."""

    python: bool = False
    environment: bool = False
    kernel: bool = False
    kernel_python: bool = False  # of the kernel package nothing but Python files: no compiler is needed
    rust: bool = False
    jit: bool = False  # code compiled at run time: both sides' JIT caches start cold
    tuned: bool = False  # pins or tuned code touched: autotune results of before do not hold
    speculative: bool = False
    deciding: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what it is, in words → paths
    pins: tuple[PinChange, ...] = ()
    reason: str = ""  # one sentence

    @property
    def kinds(self) -> tuple[str, ...]:
        python = ["python"] if self.python or self.kernel_python else []
        return (*python, *(kind for kind in ("environment", "kernel", "rust") if getattr(self, kind)))

    @property
    def name(self) -> str:
        """For the plan: "nothing", or the kinds joined by "+"."""
        return "+".join(self.kinds) or "nothing"

    @property
    def nothing(self) -> bool:
        return not self.kinds

    def order(self, recipes: Mapping[str, bool]) -> tuple[str, ...]:
        """Recipes, most touched first. `recipes`: name → whether it speculates, in the order of the configuration."""
        if not self.speculative:
            return tuple(recipes)
        return tuple(sorted(recipes, key=lambda name: not recipes[name]))


def deciding_files(paths: Iterable[str]) -> tuple[str, ...]:
    """Those paths of a diff whose contents `classify` looks at."""
    changed = set(paths)
    return tuple(path for path in _READ if path in changed)


def classify(
    paths: Iterable[str], *, ignore: Sequence[str] = (), contents: Contents | None = None, cpu_serves: bool = False
) -> DiffClass:
    """What the changed paths of a diff mean. `ignore`: more patterns with nothing to measure; they win.

    A file whose content decides counts as changed where its content is not given or cannot be read.
    """
    changed = sorted(set(paths))
    known = contents or {}
    pins, pins_unknown = _pins(*known.get(PYPROJECT, (None, None))) if PYPROJECT in changed else ((), False)
    deciding: dict[str, tuple[str, ...]] = {}
    left_out: dict[str, tuple[str, ...]] = {}
    for path in changed:
        found = group_of(path, cpu_serves=cpu_serves)
        kind, what = found.kind, found.what
        if matches_any(path, ignore):
            kind, what = NOTHING, "ignored by perfgate.yml"
        elif path == PYPROJECT:
            unchanged = not pins and not pins_unknown
            kind, what = (NOTHING, "a pyproject.toml that asks for the same") if unchanged else ("environment", "")
        elif kind != NOTHING and (why := _unchanged_in_effect(path, changed, known)):
            kind, what = NOTHING, why
        group, name = (left_out, what) if kind == NOTHING else (deciding, kind)
        group[name] = (*group.get(name, ()), path)
    touched = [path for found in deciding.values() for path in found]
    return DiffClass(
        python=PYTHON in deciding,
        environment="environment" in deciding,
        kernel=KERNEL in deciding,
        kernel_python=KERNEL_PYTHON in deciding,
        rust=RUST in deciding,
        jit=any(matches_any(path, JIT) for path in touched),
        tuned="environment" in deciding or any(matches_any(path, TUNED) for path in touched),
        speculative=any(matches_any(path, SPECULATIVE) for path in touched),
        deciding=deciding,
        left_out=left_out,
        pins=pins,
        reason=_reason(changed, deciding, left_out, pins),
    )


def _unchanged_in_effect(path: str, changed: Sequence[str], contents: Contents) -> str:
    """In words, why a changed file changes nothing that is compiled; empty where it may.

    Without its content: a version.py that changed means a new version, and a lock changes with a crate's manifest.
    """
    if path in KERNEL_PYPROJECTS:
        bumped = f"{path.removesuffix('pyproject.toml')}python/sgl_kernel/version.py" in changed
        same = _same_but_version(*contents[path]) if path in contents else bumped
        return "version numbers of the kernel package" if same else ""
    if path in (WORKSPACE_LOCK, WORKSPACE_MANIFEST):
        if path in contents:
            compare = same_for_tree_core if path == WORKSPACE_LOCK else same_but_members
            same = compare(*contents[path])
        else:
            crates = [other.rpartition("/")[0] for other in changed if other.endswith("/Cargo.toml")]
            same = any(crate != "rust" and crate not in TREE_CORE_CRATES for crate in crates) and not any(
                other.startswith(tuple(f"{crate}/" for crate in TREE_CORE_CRATES)) for other in changed
            )
        return "pins of Rust crates that are off unless asked for" if same else ""
    return ""


def _same_but_version(base: bytes | None, head: bytes | None) -> bool:
    """Whether two pyproject.toml files differ in their project's version at most."""
    if base is None or head is None:
        return False
    try:
        documents = [tomllib.loads(content.decode()) for content in (base, head)]
        for document in documents:
            document.get("project", {}).pop("version", None)
    except (ValueError, AttributeError, RecursionError):
        return False
    return documents[0] == documents[1]


def _pins(base: bytes | None, head: bytes | None) -> tuple[tuple[PinChange, ...], bool]:
    """Pins that changed, and whether it cannot be known."""
    if base is None or head is None:
        return (), True
    try:
        return pin_changes(read_pins(base), read_pins(head)), False
    except PerfgateError:
        return (), True


def _reason(
    changed: Sequence[str],
    deciding: Mapping[str, tuple[str, ...]],
    left_out: Mapping[str, tuple[str, ...]],
    pins: Sequence[PinChange],
) -> str:
    if not changed:
        return "The two commits have the same tree."
    if not deciding:
        parts = [f"{what} ({_listed(paths)})" for what, paths in left_out.items()]
        return f"Nothing that a server runs was changed: {'; '.join(parts)}."
    parts = [f"{_WORDS[kind]} ({_listed(deciding[kind])})" for kind in _WORDS if kind in deciding]
    if pins:
        parts.append(f"pins {', '.join(map(str, pins[:_SHOWN]))}")
    return f"The diff touches {'; '.join(parts)}."


_WORDS = {
    "kernel": "the kernels",
    "kernel_python": "Python code of the kernel package",
    "rust": "the Rust extensions",
    "environment": "what is installed",
    "python": "Python code",
}


def _listed(paths: Sequence[str]) -> str:
    """A few paths in words. They are a stranger's: escaped where they are shown."""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
