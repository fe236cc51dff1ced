"""Which commit HEAD was at when a log began, and how sure that is.

A log's stamps are a clock without a zone, more often than not. So a moment is a range: all that cannot be excluded.

    the log's clock is known   ├┤           HEAD over this range: one commit → sure
    it is not                  ├──────┼──────────┤     likely where one clock is likely; sure only if HEAD never moved

SURE asks for everything at once: stamps that go forward, a clock that is proven (the zone stands in the log or was
given, or the file's own mtime agrees with its last line to the minute), an unbroken reflog, and no move of HEAD while
the server loaded its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from pathlib import PurePosixPath

from perfgate.blame.trace.history import History, Move
from perfgate.blame.trace.log import Log, Stamp

LOADS_BEFORE_S = 180.0
"""A server imports its code before it writes its first line."""
LOADS_AFTER_S = 120.0
"""What it loads soon after: workers are started anew and import all again."""
LAST_WRITE_S = 60.0
"""From a log's last stamp to the last time it is written, where its mtime is its own."""
CLOCKS_AGREE_S = 90.0
STEP_BACK_S = 2.0
QUARTER = 900
EVERY_ZONE = (-12 * 3600, 14 * 3600)
SWITCH_S = 3600
"""Summer time, where the zone is known only by its distance from Greenwich."""


class Certainty(StrEnum):
    SURE = "sure"
    LIKELY = "likely"
    UNKNOWN = "not known"


@dataclass(frozen=True)
class Clock:
    """What the stamps of a log mean: seconds east of Greenwich, as a range that holds the truth."""

    low: int
    high: int
    likely: int
    why: str
    proven: bool


@dataclass(frozen=True, kw_only=True)
class Placed:
    """One log in the order of time."""

    log: Log
    clock: Clock | None
    began: float | None  # the likely moments
    ended: float | None
    checkout: str | None  # whose HEAD it is; None: the log ran from elsewhere
    head: str | None
    may_be: tuple[str, ...]  # all commits that HEAD may have been at, `head` first
    certainty: Certainty
    reasons: tuple[str, ...]
    spans: tuple[Move, ...] = ()


@dataclass(frozen=True)
class Clocks:
    """What is known of the clocks beside the logs. `given`: by the person who asks."""

    local: tzinfo
    given: tzinfo | None = None
    now: float = float("inf")


def place(logs: Sequence[Log], histories: Sequence[History], clocks: Clocks) -> tuple[Placed, ...]:
    """Every log, in the order of time; those without a time last."""
    files = {log.path: log for log in logs if log.ends_file}
    placed = [_place(log, files[log.path], histories, clocks) for log in logs]
    return tuple(sorted(placed, key=lambda one: (_time(one) is None, _time(one) or 0.0)))


def _time(placed: Placed) -> float | None:
    return placed.began if placed.began is not None else placed.ended


def _place(log: Log, file: Log, histories: Sequence[History], clocks: Clocks) -> Placed:
    choice, where = _checkouts(log, histories)
    if log.first is None or log.last is None:
        return _place_undated(log, choice, where)
    clock = clock_of(log.first, file, [move for history in histories for move in history.moves], clocks)
    began, ended = _seconds(log.first) - clock.likely, _seconds(log.last) - _zone_at_end(log, clock)
    doubts = _doubts(log, clock, ended, clocks)
    back = 0.0 if _is_switch(log, clock, clocks) else log.back_s
    low, high = _seconds(log.first) - clock.high - back, _seconds(log.first) - clock.low + back
    choice = _there(choice, high + LOADS_AFTER_S)
    may_be = frozenset[str | None]().union(
        *(history.heads(low - LOADS_BEFORE_S, high + LOADS_AFTER_S) for history in choice)
    )
    at = frozenset[str | None]().union(*(history.heads(began, began) for history in choice[:1]))
    spans = choice[0].moves_between(began + LOADS_AFTER_S, ended) if choice else ()
    head = _only(at)
    reasons = [*where, *doubts]
    if not clock.proven:
        reasons.append(clock.why)
    if not choice:
        certainty = Certainty.UNKNOWN
    elif head is None:
        certainty = Certainty.UNKNOWN
        reasons.append(_off_record(choice[0], began))
    elif may_be == {head} and not _lasting(doubts) and log.whole and not spans and _kept(choice, low):
        certainty = Certainty.SURE
    else:
        certainty = Certainty.LIKELY
        reasons += _why_not_sure(log, choice, may_be, head, spans, began, clock)
    others = tuple(sorted(sha for sha in may_be if sha is not None and sha != head))
    return Placed(
        log=log,
        clock=clock,
        began=began,
        ended=ended,
        checkout=choice[0].path if choice else None,
        head=head,
        may_be=((head, *others) if head else others),
        certainty=certainty,
        reasons=tuple(dict.fromkeys(reasons)),
        spans=spans,
    )


def _place_undated(log: Log, choice: Sequence[History], where: list[str]) -> Placed:
    """A log without a date has only its file's mtime, and whoever copies a file sets that."""
    at = frozenset[str | None]().union(*(history.heads(log.mtime, log.mtime) for history in choice))
    head = _only(at)
    reasons = [*where, "it holds no date: only the file's mtime tells a time, and a copy changes that"]
    if choice and head is None:
        reasons.append(_off_record(choice[0], log.mtime))
    return Placed(
        log=log,
        clock=None,
        began=None,
        ended=log.mtime,
        checkout=choice[0].path if choice else None,
        head=head,
        may_be=tuple(sorted(sha for sha in at if sha)),
        certainty=Certainty.LIKELY if head else Certainty.UNKNOWN,
        reasons=tuple(reasons),
    )


def _kept(choice: Sequence[History], low: float) -> bool:
    """Whether git has had no occasion yet to drop what HEAD did at that time."""
    return all(history.whole_since <= low - LOADS_BEFORE_S for history in choice)


def _only(heads: frozenset[str | None]) -> str | None:
    """The one commit that it can be; None where there are two, or one that is not on record."""
    return next(iter(heads)) if len(heads) == 1 else None


# -------------------------------------------------------------------------------------------------- which checkout


def _checkouts(log: Log, histories: Sequence[History]) -> tuple[Sequence[History], list[str]]:
    """The checkouts that it may have run from, the likeliest first, and what to say of that."""
    for folder in log.fingerprint.ran_from:
        if not folder.startswith("/"):
            continue
        for history in sorted(histories, key=lambda one: -len(one.path)):
            if PurePosixPath(folder).is_relative_to(history.path) and "-packages" not in folder:
                return [history], [f"it ran from {history.path}"]
    installed = next((folder for folder in log.fingerprint.ran_from if "-packages" in folder), None)
    if installed is not None:
        return [], [f"it ran from an installed package ({installed}), not from a checkout: HEAD says nothing about it"]
    elsewhere = next((folder for folder in log.fingerprint.ran_from if folder.startswith("/")), None)
    if elsewhere is not None:
        return [], [f"it ran from {elsewhere}, which is no checkout of this repository: HEAD says nothing about it"]
    return histories, []


def _there(choice: Sequence[History], latest: float) -> Sequence[History]:
    """Without the checkouts that were made only later."""
    there = [history for history in choice if history.begins is None or history.begins <= latest]
    return there or choice[:1]


# -------------------------------------------------------------------------------------------------- which clock


def clock_of(first: Stamp, file: Log, moves: Sequence[Move], clocks: Clocks) -> Clock:
    """What the first stamp of a start means. `file`: the last start in its file, whose end the mtime should be."""
    if first.zone is not None:
        return Clock(first.zone, first.zone, first.zone, "its stamps have a zone", True)
    if clocks.given is not None:
        low, high = _offsets(first.time, clocks.given)
        if low == high:
            return Clock(low, high, low, "the zone was given", True)
        return Clock(low, high, _hour_of_two(low, high, file, clocks.given), TWICE, True)
    likely = _likely_zone(first.time, moves, clocks.local)
    by_mtime = _zone_by_mtime(file, moves, clocks.local)
    if by_mtime is not None:
        why = "its mtime is the time of its last line"
        if file.last is not None and by_mtime in _offsets(file.last.time, clocks.local):
            low, high = _offsets(first.time, clocks.local)
            if low != high:
                return Clock(low, high, _hour_of_two(low, high, file, clocks.local), TWICE, True)
            return Clock(low, high, high, why, True)
        unsteady = SWITCH_S if file.last is not None and _over_a_switch(first.time, file.last.time) else 0
        return Clock(by_mtime - unsteady, by_mtime + unsteady, by_mtime, why, True)
    why = f"its stamps have no zone, and its mtime does not confirm one: {zone_name(likely)} is assumed"
    return Clock(*EVERY_ZONE, likely, why, False)


TWICE = "its first stamp came twice that night: summer time ended"


def _hour_of_two(low: int, high: int, file: Log, zone: tzinfo) -> int:
    """Winter's, where the stamps only go forward into winter; else the first of the two."""
    forward = file.last is not None and file.back_s <= STEP_BACK_S
    return low if forward and file.last is not None and _offsets(file.last.time, zone)[0] == low else high


def _offsets(time: datetime, zone: tzinfo) -> tuple[int, int]:
    """Of a wall clock's time: two where the clock was turned back, or skipped it."""
    both = [zone.utcoffset(time.replace(fold=fold)) or timedelta() for fold in (0, 1)]
    seconds = sorted(int(one.total_seconds()) for one in both)
    return seconds[0], seconds[1]


def _likely_zone(time: datetime, moves: Sequence[Move], local: tzinfo) -> int:
    """The zone of who moved HEAD last; this machine's own where that agrees, because it knows of summer time."""
    here = _offsets(time, local)[1]
    if not moves:
        return here
    nearest = min(moves, key=lambda move: abs(move.time + move.zone - _as_utc(time)))
    at_move = local.utcoffset(datetime.fromtimestamp(nearest.time, UTC).astimezone(local).replace(tzinfo=None))
    return here if at_move is not None and int(at_move.total_seconds()) == nearest.zone else nearest.zone


def _zone_by_mtime(file: Log, moves: Sequence[Move], local: tzinfo) -> int | None:
    """The zone in which the file's last line was written when its mtime says; only one that somebody here uses."""
    if file.last is None or file.last.zone is not None:
        return None
    ahead = _seconds(file.last) - file.mtime
    zone = QUARTER * round((ahead + LAST_WRITE_S / 2) / QUARTER)
    late = zone - ahead
    known = {0, *_offsets(file.last.time, local), *(move.zone for move in moves)}
    return zone if zone in known and -STEP_BACK_S <= late <= LAST_WRITE_S else None


def _over_a_switch(first: datetime, last: datetime) -> bool:
    """Whether a weekend's night lies between, in a month in which clocks are changed somewhere."""
    days = range((last.date() - first.date()).days + 1)
    dates = [first.date() + timedelta(days=day) for day in days[:400]]
    return any(date.weekday() >= 5 and date.month in (3, 4, 9, 10, 11) for date in dates)


def _zone_at_end(log: Log, clock: Clock) -> int:
    return log.last.zone if log.last is not None and log.last.zone is not None else clock.likely


def _is_switch(log: Log, clock: Clock, clocks: Clocks) -> bool:
    """Whether the stamps go back because summer time ended while the log was written."""
    zone = clocks.given or clocks.local
    if not clock.proven or log.first is None or log.last is None or not 0 < log.back_s <= SWITCH_S:
        return False
    return _offsets(log.first.time, zone)[1] - _offsets(log.last.time, zone)[0] == SWITCH_S


def _seconds(stamp: Stamp) -> float:
    return _as_utc(stamp.time)


def _as_utc(time: datetime) -> float:
    return time.replace(tzinfo=UTC).timestamp()


def zone_name(seconds: int) -> str:
    sign = "-" if seconds < 0 else "+"
    return f"{sign}{abs(seconds) // 3600:02}:{abs(seconds) % 3600 // 60:02}"


# -------------------------------------------------------------------------------------------------- words


BACKWARDS = "its stamps go back by"


def _doubts(log: Log, clock: Clock, ended: float, clocks: Clocks) -> list[str]:
    """What contradicts the log's own times."""
    doubts: list[str] = []
    if log.back_s > STEP_BACK_S:
        if _is_switch(log, clock, clocks):
            doubts.append("its stamps go back by an hour where summer time ended")
        else:
            doubts.append(f"{BACKWARDS} {duration(log.back_s)}: its clock was set, or two logs are in one file")
    if log.ends_file and clock.proven and log.mtime < ended - CLOCKS_AGREE_S:
        doubts.append(f"its mtime is {duration(ended - log.mtime)} before its last line: one of them is wrong")
    if ended > clocks.now + CLOCKS_AGREE_S:
        doubts.append("its last line lies in the future: its clock is wrong, or its zone")
    return doubts


def _lasting(doubts: list[str]) -> bool:
    """Whether a doubt remains. That a clock was set is already in the range of its moments."""
    return any(not doubt.startswith((BACKWARDS, "its stamps go back by an hour")) for doubt in doubts)


def _why_not_sure(
    log: Log,
    choice: Sequence[History],
    may_be: frozenset[str | None],
    head: str,
    spans: Sequence[Move],
    began: float,
    clock: Clock,
) -> list[str]:
    reasons: list[str] = []
    if not log.whole:
        reasons.append("the server's first lines are not in it: it had begun before, nobody knows when")
    if spans:
        after = duration(spans[0].time - began)
        reasons.append(
            f"HEAD moved while it ran ({spans[0].what}, {after} after it began): what was loaded only then is newer"
        )
    near = [
        move
        for move in choice[0].moves
        if move.old != move.new and began - LOADS_BEFORE_S <= move.time <= began + LOADS_AFTER_S
    ]
    if near:
        reasons.append(f"HEAD moved ({near[0].what}) {duration(abs(near[0].time - began))} from its first line")
    if clock.proven and clock.low != clock.high:
        reasons.append(clock.why)
    if not _kept(choice, began):
        reasons.append("it is so long ago that git may have dropped a visit to a commit that no branch holds now")
    if None in may_be:
        reasons.append("part of what HEAD did at that time is no longer in the reflog")
    if len(choice) > 1 and len({_only(history.heads(began, began)) for history in choice}) > 1:
        places = " and ".join(history.path for history in choice[:4])
        reasons.append(f"the log does not say from which checkout it ran: {places} were at different commits")
    return reasons


def _off_record(history: History, time: float) -> str:
    if not history.moves:
        return "the checkout has no reflog: nothing says where HEAD was"
    first = history.moves[0]
    if time < first.time:
        if first.old is None:
            return f"this checkout was made {duration(first.time - time)} later"
        return f"the reflog begins {duration(first.time - time)} later, with HEAD at {first.old[:12]}"
    return "the reflog has a gap there: HEAD moved in a way that is not on record"


def duration(seconds: float) -> str:
    """68 min, 5 h, 12 days."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 3 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 3 * 86400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"
