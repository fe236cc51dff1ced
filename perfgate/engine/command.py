"""The command line and the environment of a server. Pure: both sides get them from the same inputs.

The environment is an allow-list. Of perfgate's own environment only what a program needs to find its tools, its
language and its GPUs is handed on; no token, no variable of the runner, no NCCL variable that is not configured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfgate.config.model import FlagValue

HANDED_ON = frozenset({"PATH", "LANG", "TZ", "LD_LIBRARY_PATH"})
HANDED_ON_PREFIXES = ("LC_", "CUDA_", "NVIDIA_")
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
FIXED = {
    "USER": "perfgate",
    "LOGNAME": "perfgate",
    "SPT_NOENV": "1",  # setproctitle would wipe /proc/PID/environ, which proves what a rank was given
    "PYTHONUNBUFFERED": "1",  # a log line is there when it is written
    "PYTHONHASHSEED": "0",  # one lottery less between launches
    "PYTHONNOUSERSITE": "1",
}


def server_command(
    python: Path,
    flags: Mapping[str, FlagValue],
    *,
    model: str,
    revision: str | None = None,
    draft: str | None = None,
    draft_revision: str | None = None,
    port: int,
    seed: int = 1,
) -> tuple[str, ...]:
    """`python -m sglang.launch_server …`. `flags` as in the configuration, names with or without underscores.

    A revision is told of a model on the hub; a folder has none.
    """
    own: dict[str, FlagValue] = {
        "model-path": model,
        "revision": revision if _on_hub(model) else None,
        "speculative-draft-model-path": draft,
        "speculative-draft-model-revision": draft_revision if _on_hub(draft) else None,
        "host": "127.0.0.1",
        "port": port,
    }
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    every = {"random-seed": seed, **given, **own}
    return (str(python), "-m", "sglang.launch_server", *_options(every))


def _on_hub(model: str | None) -> bool:
    return model is not None and not model.startswith("/")


def _options(flags: Mapping[str, FlagValue]) -> Iterable[str]:
    for name, value in flags.items():
        if value is None or value is False:
            continue
        yield f"--{name}"
        if isinstance(value, list):
            yield from map(str, value)
        elif value is not True:
            yield str(value)


@dataclass(frozen=True, kw_only=True)
class EnvironmentParts:
    """What a server's environment is made of; later parts win over earlier ones."""

    python: Path  # its folder comes first on PATH
    path_entries: Sequence[Path]  # for PYTHONPATH: the probe's, then the build's
    home: Mapping[str, str]  # HOME and the caches in it
    hf_home: Path | None = None
    build: Mapping[str, str] = field(default_factory=dict)
    recipe: Mapping[str, str] = field(default_factory=dict)  # the box's variables are in it
    nccl: Mapping[str, str] = field(default_factory=dict)
    probe: Mapping[str, str] = field(default_factory=dict)
    tmp: Path | None = None  # instead of the HOME's, where /tmp is private


def child_environment(own: Mapping[str, str], parts: EnvironmentParts) -> dict[str, str]:
    """The whole environment of a server. `own`: perfgate's environment, of which little is handed on."""
    handed_on = {name: value for name, value in own.items() if name in HANDED_ON or name.startswith(HANDED_ON_PREFIXES)}
    environment = {**handed_on, **parts.build, **parts.recipe, **parts.nccl, **parts.probe, **FIXED, **OFFLINE}
    environment |= parts.home
    if parts.hf_home is not None:
        environment["HF_HOME"] = str(parts.hf_home)
    if parts.tmp is not None:
        environment["TMPDIR"] = str(parts.tmp)
    search = [str(parts.python.parent), environment.get("PATH", "/usr/bin:/bin")]
    environment["PATH"] = ":".join(search)
    environment["PYTHONPATH"] = ":".join(map(str, parts.path_entries))
    return dict(sorted(environment.items()))
