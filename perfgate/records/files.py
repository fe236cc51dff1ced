"""The files of a run: facts.jsonl (appended, fsynced) and result.json (replaced whole)."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from perfgate.errors import Exit, PerfgateError
from perfgate.records.facts import FACT_KINDS, FACTS_VERSION, Fact
from perfgate.records.result import Result

F = TypeVar("F", bound=Fact)

FACTS_FILE = "facts.jsonl"
RESULT_FILE = "result.json"


class CannotWrite(PerfgateError):
    """The disk is full, or will not have it: the box's fault, not of what was asked for."""

    exit_code = Exit.CANNOT


def short_hash(text: str, length: int = 12) -> str:
    """A stable public name for something that must not be shown."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@cache
def boot_id() -> str:
    try:
        return short_hash(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    except OSError:
        return "unknown"


def fact_to_line(fact: Fact) -> str:
    body = {"v": FACTS_VERSION, "kind": fact.kind, **dataclasses.asdict(fact)}
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


_RESULT: TypeAdapter[Result] = TypeAdapter(Result)
_FACTS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in FACT_KINDS.items()}


def fact_from_line(line: str, where: str) -> Fact | None:
    """The fact on a line; None for a kind this version does not know."""
    try:
        body = json.loads(line)
    except ValueError as error:
        raise PerfgateError("not a JSON line", where=where, remedy="the file was altered; measure again") from error
    if not isinstance(body, dict):
        raise PerfgateError("not a fact", where=where, remedy="the file was altered; measure again")
    version = body.pop("v", None)
    if not isinstance(version, int) or version > FACTS_VERSION:
        raise PerfgateError(
            f"facts version {version!r}, this perfgate reads up to {FACTS_VERSION}",
            where=where,
            remedy="use a newer perfgate",
        )
    kind = FACT_KINDS.get(str(body.pop("kind", "")))
    if kind is None:
        return None
    try:
        fact: Fact = _FACTS[kind.kind].validate_python(body)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise PerfgateError(
            f"{kind.kind}: {place}: {first['msg']}", where=where, remedy="the file was altered; measure again"
        ) from error
    return fact


def read_facts(run: Path) -> list[Fact]:
    """All facts of a run directory, in order. A last line cut off by a crash is ignored."""
    path = run / FACTS_FILE
    try:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1].decode()  # before decoding: the cut may lie within a character
    except FileNotFoundError as error:
        raise PerfgateError("no facts.jsonl here", where=str(run), remedy="give the directory of a run") from error
    except (OSError, UnicodeDecodeError) as error:
        raise PerfgateError(f"cannot be read: {error}", where=str(path)) from error
    facts = [fact_from_line(line, f"{path}:{number}") for number, line in enumerate(whole.split("\n"), 1) if line]
    return [fact for fact in facts if fact is not None]


class FactsWriter:
    """Appends facts, each on disk before `append` returns. One writer at a time; a torn tail is cut off on opening."""

    def __init__(self, run: Path) -> None:
        run.mkdir(parents=True, exist_ok=True)
        self.path = run / FACTS_FILE
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise PerfgateError("another perfgate is writing this run", where=str(self.path)) from error
        self._cut_torn_tail()
        for partial in run.glob(".*.partial"):  # of a writer that was killed
            partial.unlink(missing_ok=True)

    def _cut_torn_tail(self) -> None:
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.ftruncate(self._file, whole)

    def append(self, fact: F) -> F:
        """Stamps and writes one fact; returns it as written."""
        stamped = dataclasses.replace(fact, t=utc_now(), mono=time.monotonic(), boot=boot_id())
        line = fact_to_line(stamped).encode(errors="replace")  # a variable of the box may hold what is no UTF-8
        size = os.fstat(self._file).st_size
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._file, view) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, size)  # no half-written line stays
            raise CannotWrite(
                f"facts cannot be written: {error.strerror}",
                where=str(self.path),
                remedy="free some space, then --resume",
            ) from error
        return stamped

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_whole(path: Path, text: str) -> None:
    """Replaces a file in one step: readers see the old one or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise CannotWrite(f"cannot be written: {error.strerror}", where=str(path), remedy="free some space") from error


def result_to_json(result: Result) -> str:
    return json.dumps(dataclasses.asdict(result), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def result_from_json(text: str | bytes, where: str) -> Result:
    """A validated Result; strangers may have written the text."""
    try:
        result = _RESULT.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "result"
        raise PerfgateError(
            f"{place}: {first['msg']}", where=where, remedy="judge the run again with this perfgate"
        ) from error
    return result


def write_result(run: Path, result: Result) -> None:
    write_whole(run / RESULT_FILE, result_to_json(result))


def read_result(run: Path) -> Result:
    path = run / RESULT_FILE
    try:
        return result_from_json(path.read_bytes(), str(path))
    except OSError as error:
        raise PerfgateError("no result.json here", where=str(run), remedy=f"perfgate judge {run}") from error
