"""Where NCCL settings may come from besides perfgate, and whether NCCL carries the all-reduce at all.

A tuning that lives in somebody's shell, or in a file that NCCL reads by itself, is either lost (the servers get an
allow-list) or works unseen. Both are told by name. NCCL looks for its file at `NCCL_CONF_FILE`, else at `.nccl.conf`
in the home that the user database names (whatever HOME says), and then at `/etc/nccl.conf`; a file never overrides a
variable.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from perfgate.host.nccl import variables_in_file
from perfgate.host.public import public

PREFIX = "NCCL_"
HARMLESS = frozenset({"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_CONF_FILE"})
ETC = Path("/etc/nccl.conf")


@dataclass(frozen=True, kw_only=True)
class Stray:
    """An NCCL setting on the box that perfgate does not pass on."""

    name: str
    value: str
    where: str
    file: bool  # NCCL reads it by itself, so servers have it; a variable of perfgate's own environment they have not

    def __str__(self) -> str:
        effect = (
            "NCCL reads it in every server behind perfgate's back"
            if self.file
            else "servers run without it, because they get only what the box file and perfgate.yml name"
        )
        return f"{self.name}={self.value} in {self.where}: {effect}"


def stray_settings(
    given: Mapping[str, str], environment: Mapping[str, str] | None = None, files: Iterable[Path] = ()
) -> tuple[Stray, ...]:
    """`given`: the NCCL variables that servers get; `environment`: perfgate's own; `files`: see `nccl_files`."""
    own = os.environ if environment is None else environment
    return (*_stray_variables(given, own), *_stray_in_files(given, files))


def missing_files(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Files that NCCL's variables name (topology, graph, tuner, plugin) and that are not there, a sentence each."""
    return tuple(
        f"{name} names {value}, which is not there"
        for name, value in variables.items()
        if value.startswith("/") and not Path(value).exists()
    )


def nccl_files(environment: Mapping[str, str] | None = None, users: Iterable[str] = ()) -> tuple[Path, ...]:
    """The NCCL configuration files that exist for perfgate's user and for `users` (who runs PR code)."""
    own = os.environ if environment is None else environment
    named = [Path(own["NCCL_CONF_FILE"])] if own.get("NCCL_CONF_FILE") else []
    homes = [home / ".nccl.conf" for home in _homes(users)]
    return tuple(dict.fromkeys(path for path in (*named, *homes, ETC) if _is_file(path)))


def _stray_variables(given: Mapping[str, str], own: Mapping[str, str]) -> Iterator[Stray]:
    for name, value in sorted(own.items()):
        if name.startswith(PREFIX) and name not in HARMLESS and given.get(name) != value:
            yield Stray(name=name, value=value, where="perfgate's own environment", file=False)


def _stray_in_files(given: Mapping[str, str], files: Iterable[Path]) -> Iterator[Stray]:
    for path in files:
        for name, value in variables_in_file(path):
            if name not in given:
                yield Stray(name=name, value=value, where=str(path), file=True)


def _homes(users: Iterable[str]) -> Iterator[Path]:
    with suppress(KeyError):
        yield Path(pwd.getpwuid(os.getuid()).pw_dir)
    for user in users:
        with suppress(KeyError):
            yield Path(pwd.getpwnam(user).pw_dir)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


# ------------------------------------------------------------------------------------------------ all-reduce

Route = Literal["none", "nccl", "custom", "fusion", "pcie_ipc", "unknown"]

SENTENCES: Mapping[Route, str] = {
    "none": "one rank: there is no all-reduce, and NCCL settings have no effect",
    "nccl": "all-reduce goes through NCCL: its settings count",
    "custom": "small all-reduces go through SGLang's custom all-reduce: NCCL settings hardly count in decoding",
    "fusion": "all-reduce is fused by FlashInfer: NCCL settings hardly count in decoding",
    "pcie_ipc": "small all-reduces go through FlashInfer's PCIe IPC all-reduce: NCCL settings hardly count in decoding",
    "unknown": "which all-reduce was active is not known",
}

SPOKEN: tuple[tuple[str, Route], ...] = (
    (r"PCIe-IPC all-reduce enabled", "pcie_ipc"),
    (r"FlashInfer AllReduce Fusion enabled|FlashInfer workspace initialized for rank", "fusion"),
    (r"All-reduce call path: NCCL|[Cc]ustom ?[Aa]ll-?[Rr]educe\w* is disabled", "nccl"),
    (r"\[AR\] Using \w*Custom|Registering \d+ cuda graph addresses", "custom"),
)
"""What a server's log says of what its all-reduce came to, releases 0.5.8 to 0.5.23 (read in their source); the first
that is found counts. What was asked for (server_args) counts for nothing."""

FUSION_FAILED = re.compile(r"Failed to initialize FlashInfer workspace(?: \(backend=\w{1,40}\))?: ([^\n]{0,300})")
FUSION_OFF = "Disabling flashinfer allreduce fusion permanently"

MAX_LOG = 8 * 1024 * 1024  # all of this is said while the server starts


@dataclass(frozen=True)
class AllReduce:
    route: Route
    tuning_matters: bool | None
    sentence: str
    prevented: str | None = None  # why FlashInfer's fusion, which was tried, is off


def all_reduce_of(ranks: int, flags: Mapping[str, Any], log: str = "") -> AllReduce:
    """Which all-reduce a launch used: from its number of ranks, SGLang's flags (with dashes), and its log's text."""
    failed = _fusion_failed(log) if ranks > 1 else None
    route = _route(ranks, flags, log, fusion=failed is None)
    return AllReduce(route, None if route == "unknown" else route == "nccl", SENTENCES[route], failed)


def _fusion_failed(log: str) -> str | None:
    """One rank is enough: all or none fuse."""
    if FUSION_OFF not in log:
        return None
    found = FUSION_FAILED.search(log)
    reason = found[1].removesuffix(f"{FUSION_OFF}.").rstrip(" .") if found else "the log does not say why"
    by_box = " (kernel.yama.ptrace_scope forbids pidfd_getfd)" if "pidfd_getfd" in reason else ""
    return f"{public(reason)}{by_box}"


def all_reduce_in(ranks: int, flags: Mapping[str, Any], log: Path) -> AllReduce:
    """The same, reading the log's first megabytes."""
    try:
        with log.open("rb") as file:
            text = file.read(MAX_LOG).decode(errors="replace")
    except OSError:
        text = ""
    return all_reduce_of(ranks, flags, text)


def _route(ranks: int, flags: Mapping[str, Any], log: str, *, fusion: bool) -> Route:
    if ranks <= 1:
        return "none"
    for pattern, route in SPOKEN:
        if (fusion or route != "fusion") and re.search(pattern, log):
            return route
    return "nccl" if flags.get("disable-custom-all-reduce") else "unknown"
