"""What a diff means for a measurement: what has to be built anew, which recipe it touches, or that nothing can change.

Paths decide, by the table below; `python/pyproject.toml` only where what it asks to install differs. A path that the
table does not know is measured: a list of what is harmless can be trusted only where it is explicit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perfgate.errors import PerfgateError
from perfgate.source.patterns import matches_any
from perfgate.source.pins import PYPROJECT, PinChange, pin_changes, read_pins

KERNEL_PROJECTS = ("python/sglang/kernels/aot", "sgl-kernel")
"""Where the kernel package's source is, newest place first."""

NOTHING = (
    *("*.md", "*.rst", "*.ipynb"),
    *("docs*/**", "test/**", "tests/**", "benchmark/**", "examples/**", "assets/**", "scripts/**", "docker/**"),
    *("3rdparty/**", "playground/**", "experimental/**", "sgl-model-gateway/**", "sgl-router/**"),
    *(".github/**", ".devcontainer/**", ".claude/**", ".gitignore", ".gitattributes", ".gitmodules"),
    *(".pre-commit-config.yaml", ".isort.cfg", ".codespellrc", ".editorconfig", ".coveragerc", ".dockerignore"),
    *("/LICENSE", "/Makefile", "/CODEOWNERS"),
    *("python/sglang/multimodal_gen/**", "python/pyproject_*.toml", "python/LICENSE"),
    *(f"{project}/{part}" for project in KERNEL_PROJECTS for part in ("tests/**", "benchmark/**", "pyproject_*.toml")),
)
KERNEL = tuple(f"{project}/**" for project in KERNEL_PROJECTS)
RUST = ("rust/**", "proto/**", "/python/setup.py")
JIT = ("python/sglang/jit_kernel/**", "python/sglang/kernels/jit/**", "python/sglang/srt/**/jit_kernel/**")
SPECULATIVE = ("python/sglang/srt/speculative/**", "*eagle*", "*speculative*", "spec_*", "*_spec_*")
TUNED = (
    *("*autotune*", "*flashinfer*", *JIT, *KERNEL),
    *("python/sglang/srt/layers/moe/**", "python/sglang/srt/layers/quantization/**"),
    "python/sglang/srt/model_executor/**",  # it starts the tuning and chooses its shapes
)
"""Code whose tuned choices may differ after the diff: autotune results of before must not be handed to it."""

_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class DiffClass:
    """The kinds combine; none of them: nothing to measure. `deciding` holds the paths behind each, sorted."""

    python: bool = False
    environment: bool = False
    kernel: bool = False
    rust: bool = False
    jit: bool = False  # code compiled at run time: both sides' JIT caches start cold
    tuned: bool = False  # pins or tuned code touched: autotune results of before do not hold
    speculative: bool = False
    deciding: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pins: tuple[PinChange, ...] = ()
    reason: str = ""  # one sentence

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in ("python", "environment", "kernel", "rust") if getattr(self, kind))

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


def classify(
    paths: Iterable[str],
    *,
    ignore: Sequence[str] = (),
    base_pyproject: bytes | None = None,
    head_pyproject: bytes | None = None,
) -> DiffClass:
    """What the changed paths of a diff mean. `ignore`: more patterns with nothing to measure; they win.

    A pyproject.toml that is missing or cannot be read counts as changed pins; its side's build will say more.
    """
    changed = sorted(set(paths))
    left = [path for path in changed if not matches_any(path, (*NOTHING, *ignore))]
    pins, pins_unknown = _pins(base_pyproject, head_pyproject) if PYPROJECT in left else ((), False)
    deciding: dict[str, tuple[str, ...]] = {}
    for path in left:
        kind = _kind(path, environment=bool(pins) or pins_unknown)
        if kind:
            deciding[kind] = (*deciding.get(kind, ()), path)
    touched = [path for found in deciding.values() for path in found]
    return DiffClass(
        python="python" in deciding,
        environment="environment" in deciding,
        kernel="kernel" in deciding,
        rust="rust" in deciding,
        jit=any(matches_any(path, JIT) for path in touched),
        tuned="environment" in deciding or any(matches_any(path, TUNED) for path in touched),
        speculative=any(matches_any(path, SPECULATIVE) for path in touched),
        deciding=deciding,
        pins=pins,
        reason=_reason(changed, deciding, pins),
    )


def _kind(path: str, *, environment: bool) -> str | None:
    if path == PYPROJECT:
        return "environment" if environment else None
    if matches_any(path, KERNEL):
        return "kernel"
    if matches_any(path, RUST):
        return "rust"
    return "python"


def _pins(base: bytes | None, head: bytes | None) -> tuple[tuple[PinChange, ...], bool]:
    """Pins that changed, and whether something else did or cannot be known."""
    if base is None or head is None:
        return (), True
    try:
        before, after = read_pins(base), read_pins(head)
    except PerfgateError:
        return (), True
    return pin_changes(before, after), before.requires_python != after.requires_python


def _reason(changed: Sequence[str], deciding: Mapping[str, tuple[str, ...]], pins: Sequence[PinChange]) -> str:
    if not changed:
        return "The two commits have the same tree."
    if not deciding:
        return f"Nothing that a server runs was changed: {_listed(changed)}."
    parts = [f"{_WORDS[kind]} ({_listed(deciding[kind])})" for kind in _WORDS if kind in deciding]
    if pins:
        parts.append(f"pins {', '.join(map(str, pins[:_SHOWN]))}")
    return f"The diff touches {'; '.join(parts)}."


_WORDS = {
    "kernel": "the kernels",
    "rust": "the Rust extensions",
    "environment": "what is installed",
    "python": "Python code",
}


def _listed(paths: Sequence[str]) -> str:
    """A few paths in words. They are a stranger's: escaped where they are shown."""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
