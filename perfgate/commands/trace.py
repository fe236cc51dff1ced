"""`perfgate trace`: which commit a checkout was at when logs were written."""

from __future__ import annotations

import dataclasses
import json
import os
import time as clock
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from perfgate.blame.trace import dirty, told
from perfgate.blame.trace.history import Checkouts, Move
from perfgate.blame.trace.log import read_log
from perfgate.blame.trace.placing import Clocks, Placed, place
from perfgate.errors import PerfgateError

MARGIN_S = 3 * 3600
"""Moves of HEAD this long before the first and after the last log belong to the picture."""
LOCALTIME = Path("/etc/localtime")


def trace(repo: Path, logs: Sequence[Path], zone: str | None, *, now: float | None = None) -> told.Trace:
    now = clock.time() if now is None else now
    checkouts = Checkouts(repo, now)
    histories = checkouts.histories()
    found = [log for path in logs for log in read_log(path)]
    placed = place(found, histories, Clocks(local_zone(), given_zone(zone), now))
    times = [one.began if one.began is not None else one.ended for one in placed]
    known = [time for time in times if time is not None] or [now]
    ends = [one.ended for one in placed if one.ended is not None] or known
    moves = [
        _brought(checkouts, history.path, move)
        for history in histories
        for move in history.moves_between(min(known) - MARGIN_S, max(*known, *ends) + MARGIN_S)
    ]
    named = {
        text: sha
        for one in placed
        for text in (*one.log.fingerprint.versions, *one.log.fingerprint.images)
        if (sha := checkouts.named(text)) is not None
    }
    shas = {sha for one in placed for sha in one.may_be} | set(named.values())
    return told.Trace(
        placed=placed,
        moves=tuple(sorted(moves, key=lambda brought: brought.move.time)),
        subjects={sha: checkouts.subject(sha) for sha in shas},
        trees=_trees(checkouts, placed),
        named=named,
        histories=histories,
    )


def _brought(checkouts: Checkouts, path: str, move: Move) -> told.Brought:
    found = checkouts.between(move.old, move.new) if move.old is not None else None
    before, after = (checkouts.served_tree(sha) if sha else None for sha in (move.old, move.new))
    alike = before == after if before is not None and after is not None else None
    count, subjects = found or (None, ())
    return told.Brought(move, path, count, subjects, alike)


def _trees(checkouts: Checkouts, placed: Sequence[Placed]) -> dict[int, dirty.WorkTree]:
    now: dict[str, dict[str, dirty.FileNow]] = {}
    states: dict[int, dirty.WorkTree] = {}
    for number, one in enumerate(placed):
        if one.head is None or one.began is None or one.checkout is None:
            continue
        if one.checkout not in now:
            now[one.checkout] = dirty.files_now(Path(one.checkout), len(one.head))
        committed = dirty.python_only(checkouts.files(one.head, dirty.SERVED))
        if committed or now[one.checkout]:
            states[number] = dirty.state_then(now[one.checkout], committed, one.began)
    return states


def given_zone(name: str | None) -> tzinfo | None:
    """Europe/Berlin, or +01:00."""
    if name is None:
        return None
    try:
        if name[:1] in "+-":
            return datetime.fromisoformat(f"2000-01-01T00:00:00{name}").tzinfo
        return ZoneInfo(name)
    except (ValueError, ZoneInfoNotFoundError, OSError) as error:
        raise PerfgateError(
            f"no time zone: {name}", where="--zone", remedy="such as Europe/Berlin or +01:00"
        ) from error


def local_zone() -> tzinfo:
    """This machine's own zone, with its summer time."""
    name = os.environ.get("TZ", "").lstrip(":")
    try:
        if name:
            return ZoneInfo(name)
        with LOCALTIME.open("rb") as file:
            return ZoneInfo.from_file(file)
    except (ValueError, ZoneInfoNotFoundError, OSError):
        return datetime.now().astimezone().tzinfo or UTC


def show(found: told.Trace, say: Callable[[str], None]) -> None:
    for line in told.table(found):
        say(line)
    say("")
    for line in told.conclusion(found):
        say(line)


def as_json(found: told.Trace) -> str:
    logs = [
        {
            **dataclasses.asdict(one),
            "log": {**dataclasses.asdict(one.log), "first": _stamp(one.log.first), "last": _stamp(one.log.last)},
            "files": dataclasses.asdict(found.trees[number]) if number in found.trees else None,
        }
        for number, one in enumerate(found.placed)
    ]
    whole = {
        "schema": "perfgate.trace/1",
        "logs": logs,
        "moves": [dataclasses.asdict(brought) for brought in found.moves],
        "named": dict(found.named),
        "conclusion": list(told.conclusion(found)),
    }
    return json.dumps(whole, indent=2)


def _stamp(stamp: object) -> str | None:
    return None if stamp is None else str(getattr(stamp, "time", None))
