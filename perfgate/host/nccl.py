"""What NCCL itself reported, read from its debug log (`NCCL_DEBUG=INFO`, `NCCL_DEBUG_FILE` per process).

The log may be huge, cut off, of several processes mixed line by line or in the middle of lines, and of any NCCL
release from 2.1x to 2.3x. It is read once, in blocks; equal lines of a block are looked at once and counted, and only
what is asked for is kept, so time and memory stay bounded whatever the log holds. Known forms:

    host:pid:tid [dev] NCCL INFO NCCL_PROTO set by environment to LL
    host:pid:tid [dev] NCCL INFO NCCL_BUFFSIZE set by environment to 16777216.
    host:pid:tid [dev] NCCL INFO Invalid value x for NCCL_NTHREADS, using default -2.
    host:pid:tid [dev] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC
    host:pid:tid [dev] NCCL INFO 24 coll channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer
    host:pid:tid [dev] NCCL INFO Pattern 4, crossNic 0, nChannels 8, bw 20.0/20.0, type PHB/PIX, sameChannels 1
    host:pid:tid [dev] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 3 nranks 8 cudaDev 3 … commId 0x2 - Init COMPLETE
    host:pid:tid [dev] NCCL INFO comm 0x1 rank 3 nranks 8 cudaDev 3 busId 11000 commId 0x2 - Init COMPLETE   (to 2.19)
    host:pid:tid [dev] NCCL INFO AllReduce: 32768 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..7}
    host:pid:tid [dev] NCCL INFO Enabled NCCL Func/Proto/Algo Matrix: (and a table)
    [time] host:pid:tid [dev] file:line NCCL WARN …
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from perfgate.host.public import public

BLOCK = 4 * 1024 * 1024
MARK = b"NCCL INFO "
LONGEST_LINE, LONGEST_MESSAGE, LONGEST_PREFIX = 64 * 1024, 2048, 200  # NCCL cuts its own messages at 1 KiB
MAX_RANKS, MAX_NAMES, MAX_CHOICES, MAX_LINKS, MAX_WARNINGS, MAX_VALUE = 256, 256, 256, 32, 32, 512
MAX_BYTES = 512 << 20  # of all files of a launch; a sparse file says that it holds terabytes
MAX_FILE_BYTES = 64 << 20
MAX_MESSAGES = 500_000  # different ones that matter; a forged log could hold millions

PREFIX = re.compile(rb"([^\s:]*):(\d+):\d+ \[(-?\d+)\] $")
SET = re.compile(rb"(NCCL_\w{1,100}) set by environment to (.*)")
INVALID = re.compile(rb"Invalid value (.*?) for (NCCL_\w{1,100}), using default (-?\d+)")
LINK = re.compile(rb"Channel \d+(?:/\d+)? : .* via (\S+)")
CHANNELS = re.compile(rb"(\d+) coll channels.*?(\d+) p2p channels,")
PATTERN = re.compile(rb"Pattern \d+, .*type (\S+?),")
COMPLETE = re.compile(rb"(?:ncclCommInit\w*|comm) .*?rank (\d+) n[rR]anks (\d+) .*Init COMPLETE")
COMM_ID = re.compile(rb"commId (0x[0-9a-f]+)")
CHOICE = re.compile(rb"(?:(\w+): +)?(\d+) Bytes -> Algo (\w+) proto (\w+)")
MATRIX_HEAD = re.compile(rb" *Function \|(.*)\|(.*)")
MATRIX_ROW = re.compile(rb" *(\w+) \|([ \d]+)\|([ \d]+)$")
WARNING = re.compile(rb"NCCL WARN (.*)")
VERSION = re.compile(rb"NCCL version (\d[\w.+-]{0,40})")
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")  # by number, nccl_tuner.h
PROTOCOLS = ("LL", "LL128", "SIMPLE")


@dataclass(frozen=True, kw_only=True)
class NcclRank:
    """One process, as NCCL saw it."""

    pid: int
    rank: int | None  # in its largest communicator
    device: int | None
    variables: Mapping[str, str]  # that NCCL says it took from the environment
    invalid: Mapping[str, str]  # name → the value it refused
    coll_channels: int | None
    p2p_channels: int | None
    links: Mapping[str, int]  # "P2P/IPC" → how many connections
    communicators: int


@dataclass(frozen=True, kw_only=True)
class NcclReport:
    ranks: tuple[NcclRank, ...] = ()
    versions: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()  # kinds of path between GPUs in the graphs that were found: "PHB/PIX"
    matrix: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)  # allowed, by function
    choices: Mapping[str, str] = field(default_factory=dict)  # "AllReduce 32768" → "RING/LL"
    warnings: tuple[str, ...] = ()

    def as_facts(self) -> dict[str, Any]:
        """For `records.LaunchEnd.facts_from_log["nccl"]`."""
        return asdict(self)


def read_nccl_logs(paths: Iterable[Path]) -> NcclReport:
    """One report of all the files of a launch. A file that cannot be read is left out."""
    reader, left = _LogReader(), MAX_BYTES
    for path in sorted(paths):
        try:
            with path.open("rb") as file:
                left -= reader.read(file, min(left, MAX_FILE_BYTES))
        except OSError:
            continue
    return reader.report()


@dataclass
class _Seen:
    """What is known of one process while reading."""

    device: int | None = None
    rank: int | None = None
    size: int = 0
    variables: dict[str, str] = field(default_factory=dict)
    invalid: dict[str, str] = field(default_factory=dict)
    channels: tuple[int, int] | None = None
    links: dict[str, int] = field(default_factory=dict)
    communicators: set[bytes] = field(default_factory=set)


Handler = Callable[[_Seen, bytes, int], None]
"""Takes what is known of the sender, the message, and how many times it stands in the block."""


class _LogReader:
    """Splits a line at NCCL's mark: the text of a message follows a mark, its sender stands before it.

    Usually a line holds one mark; where processes wrote into the same file it may hold several.
    """

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._hosts: set[bytes] = set()
        self._versions: dict[str, None] = {}
        self._paths: dict[str, None] = {}
        self._matrix: dict[str, Mapping[str, tuple[str, ...]]] = {}
        self._matrix_names: tuple[list[str], list[str]] | None = None
        self._choices: dict[str, str] = {}
        self._warnings: dict[str, None] = {}
        self._messages_left = MAX_MESSAGES
        self._handlers: Mapping[bytes, Handler] = {
            b"NCCL": self._variable,
            b"Inva": self._invalid,
            b"Chan": self._link,
            b"Patt": self._pattern,
            b"nccl": self._complete,
            b"comm": self._complete,
        }

    def read(self, file: BinaryIO, most: int) -> int:
        """So many bytes at most, from the beginning: there NCCL says what it took and chose. How many it was."""
        rest, left = b"", most
        while block := file.read(min(BLOCK, left)):
            left -= len(block)
            whole, end, tail = (rest + block).rpartition(b"\n")
            rest = tail if len(tail) <= LONGEST_LINE else b""
            if end:
                self._block(whole)
        self._block(rest)
        return most - left

    def report(self) -> NcclReport:
        also = frozenset(host.decode(errors="replace") for host in self._hosts)
        return NcclReport(
            ranks=tuple(_rank(pid, seen) for pid, seen in sorted(self._seen.items())),
            versions=tuple(self._versions),
            paths=tuple(self._paths),
            matrix=dict(self._matrix),
            choices=dict(self._choices),
            warnings=tuple(public(text, also) for text in self._warnings),
        )

    def _block(self, block: bytes) -> None:
        for line, times in Counter(block.split(b"\n")).items():
            if MARK in line:
                self._marked(line, times)
            elif b"NCCL" in line or b" |" in line:
                self._unmarked(line)

    def _marked(self, line: bytes, times: int) -> None:
        for before, message in pairwise(line.split(MARK)):
            handler = self._handlers.get(message[:4])
            if handler is None and (b" Bytes -> Algo " in message or b"coll channels" in message):
                handler = self._choice_or_channels
            if handler is not None and self._messages_left:
                self._messages_left -= 1
                self._handle(handler, before, message, times)

    def _unmarked(self, line: bytes) -> None:
        line = line[:LONGEST_MESSAGE]
        if found := WARNING.search(line):
            _keep(self._warnings, _text(found[1]), None, MAX_WARNINGS)
        elif found := VERSION.search(line):
            _keep(self._versions, _text(found[1]), None)
        elif found := MATRIX_HEAD.match(line):
            self._matrix_names = _text(found[1]).split(), _text(found[2]).split()
        elif self._matrix_names and (found := MATRIX_ROW.match(line)):
            protocols, algorithms = self._matrix_names
            allowed = {
                "protocols": _allowed_names(protocols, found[2]),
                "algorithms": _allowed_names(algorithms, found[3]),
            }
            _keep(self._matrix, _text(found[1]), allowed)

    def _handle(self, handler: Handler, before: bytes, message: bytes, times: int) -> None:
        sender = PREFIX.search(before[-LONGEST_PREFIX:])
        if sender is None:
            return
        pid = int(sender[2])
        seen = self._seen.get(pid)
        if seen is None:
            if len(self._seen) >= MAX_RANKS:
                return
            seen = self._seen[pid] = _Seen()
            if before == sender[0]:
                self._hosts.add(sender[1])
        if (device := int(sender[3])) or seen.device is None:
            seen.device = device  # helper threads of NCCL say 0 whatever the device
        handler(seen, self._unbroken(message), times)

    def _unbroken(self, message: bytes) -> bytes:
        """A message less the sender of the next one, where that broke into its line."""
        if len(message) > LONGEST_MESSAGE:
            return message[:LONGEST_MESSAGE]
        broken = PREFIX.search(message, max(0, len(message) - LONGEST_PREFIX))
        if broken is None:
            return message
        host = max((h for h in self._hosts if broken[1].endswith(h)), key=len, default=broken[1])
        return message[: broken.end(1) - len(host)]

    def _variable(self, seen: _Seen, message: bytes, _times: int) -> None:
        if found := SET.match(message):
            value = _text(found[2])
            whole_number = value.endswith(".") and value[:-1].lstrip("-").isdecimal()
            _keep(seen.variables, _text(found[1]), value[:-1] if whole_number else value)
        elif found := VERSION.match(message):
            _keep(self._versions, _text(found[1]), None)

    def _invalid(self, seen: _Seen, message: bytes, _times: int) -> None:
        if found := INVALID.match(message):
            _keep(seen.invalid, _text(found[2]), _text(found[1]))

    def _link(self, seen: _Seen, message: bytes, times: int) -> None:
        if found := LINK.match(message):
            kind = _text(found[1])
            _keep(seen.links, kind, seen.links.get(kind, 0) + times, MAX_LINKS)

    def _pattern(self, _seen: _Seen, message: bytes, _times: int) -> None:
        if found := PATTERN.match(message):
            _keep(self._paths, _text(found[1]), None)

    def _complete(self, seen: _Seen, message: bytes, _times: int) -> None:
        if not (found := COMPLETE.search(message)):
            return
        rank, size = int(found[1]), int(found[2])
        if size > seen.size:
            seen.rank, seen.size = rank, size
        if (name := COMM_ID.search(message)) and len(seen.communicators) < MAX_NAMES:
            seen.communicators.add(name[1])

    def _choice_or_channels(self, seen: _Seen, message: bytes, _times: int) -> None:
        if found := CHOICE.search(message):
            function, size, algorithm, protocol = map(_text, found.groups())
            chosen = f"{_named(ALGORITHMS, algorithm)}/{_named(PROTOCOLS, protocol)}"
            _keep(self._choices, f"{function or '?'} {size}", chosen, MAX_CHOICES)
        elif found := CHANNELS.search(message):
            seen.channels = int(found[1]), int(found[2])


def _rank(pid: int, seen: _Seen) -> NcclRank:
    return NcclRank(
        pid=pid,
        rank=seen.rank,
        device=seen.device,
        variables=dict(sorted(seen.variables.items())),
        invalid=dict(sorted(seen.invalid.items())),
        coll_channels=seen.channels[0] if seen.channels else None,
        p2p_channels=seen.channels[1] if seen.channels else None,
        links=dict(seen.links),
        communicators=len(seen.communicators),
    )


def _keep(where: dict[str, Any], name: str, value: Any, limit: int = MAX_NAMES) -> None:
    """The newest value of a name; new names only up to a limit."""
    if name in where or len(where) < limit:
        where[name] = value


def _text(raw: bytes | None) -> str:
    return (raw or b"")[:MAX_VALUE].decode(errors="replace").strip()


def _named(names: tuple[str, ...], word: str) -> str:
    """Older releases wrote numbers."""
    if word.isdecimal():
        return names[int(word)] if int(word) < len(names) else word
    return word.upper()


def _allowed_names(names: list[str], row: bytes) -> tuple[str, ...]:
    return tuple(name for name, flag in zip(names, row.split(), strict=False) if flag != b"0")


def variables_in_file(path: Path) -> Iterator[tuple[str, str]]:
    """The NAME=value lines of an NCCL configuration file (`/etc/nccl.conf` and the like), as NCCL reads them."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield name, value
