"""A trace for people: the table in the order of time, and the conclusion with its certainty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

from perfgate.blame.trace.dirty import WorkTree
from perfgate.blame.trace.history import History, Move
from perfgate.blame.trace.log import LoggedRun
from perfgate.blame.trace.placing import Certainty, Placed, duration, zone_name

SHORT = 10
SHOWN_COMMITS = 12
SHOWN_DIFFERENCES = 8

WOULD_TELL = (
    "git -C DIR rev-parse HEAD; git -C DIR status --short | head",
    'python -c "import sglang; print(sglang.__file__, sglang.__version__)"',
    "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV (what NCCL was given, and took)",
)
"""What to print before every benchmark, so that the next hunt is short."""


@dataclass(frozen=True)
class Brought:
    """What one move of HEAD brought. None: no longer known."""

    move: Move
    checkout: str
    commits: int | None
    subjects: tuple[tuple[str, str], ...] = ()
    served_alike: bool | None = None  # the package is the same before and after


@dataclass(frozen=True)
class Trace:
    """All that was found. `named`: what versions and image tags in the logs name → commit."""

    placed: tuple[Placed, ...]
    moves: tuple[Brought, ...]
    subjects: Mapping[str, str | None]
    trees: Mapping[int, WorkTree]  # by place in `placed`
    named: Mapping[str, str]
    histories: tuple[History, ...]


def table(trace: Trace) -> Iterator[str]:
    """Logs and moves of HEAD, in the order of time."""
    rows = [(_time(placed), 1, _log_lines(placed, trace, number)) for number, placed in enumerate(trace.placed)]
    many = len(trace.histories) > 1
    rows += [(brought.move.time, 0, _move_lines(brought, many)) for brought in trace.moves]
    for _, _, lines in sorted(rows, key=lambda row: row[:2]):
        yield from lines


def _time(placed: Placed) -> float:
    time = placed.began if placed.began is not None else placed.ended
    return time if time is not None else float("inf")


def moment(time: float | None, zone: int) -> str:
    if time is None:
        return "at a time nobody knows"
    try:
        local = datetime.fromtimestamp(time, UTC).astimezone(timezone(timedelta(seconds=zone)))
    except (ValueError, OverflowError, OSError):
        return "at a time that makes no sense"
    return f"{local:%Y-%m-%d %H:%M} {zone_name(zone)}"


def _log_lines(placed: Placed, trace: Trace, number: int) -> list[str]:
    zone = placed.clock.likely if placed.clock else _nearest_zone(trace, placed)
    begins = moment(placed.began if placed.began is not None else placed.ended, zone)
    until = "" if placed.began is None or placed.ended is None else f" to {moment(placed.ended, zone)[11:16]}"
    guess = "" if placed.clock and placed.clock.proven else "?"
    lines = [f"{begins}{guess}  log {placed.log.name}{until}: {speed(placed.log.fingerprint)}"]
    if placed.head is None:
        lines.append(f"    HEAD then: {placed.certainty.value}")
    else:
        lines.append(f"    HEAD then: {_commit(placed.head, trace)} ({placed.certainty.value})")
    if len(placed.may_be) > 1 or (placed.head is None and placed.may_be):
        others = [sha for sha in placed.may_be if sha != placed.head]
        lines.append(f"    may also have been: {', '.join(sha[:SHORT] for sha in others[:6])}")
    lines += [f"    {reason}" for reason in placed.reasons]
    for text in (*placed.log.fingerprint.versions, *placed.log.fingerprint.images):
        if text in trace.named:
            lines.append(f"    {text} in the log is {_commit(trace.named[text], trace)}")
    if number in trace.trees:
        lines.append(f"    files then: {trace.trees[number].state.value} ({trace.trees[number].why})")
    return lines


def _nearest_zone(trace: Trace, placed: Placed) -> int:
    moves = [move for history in trace.histories for move in history.moves]
    return min(moves, key=lambda move: abs(move.time - (placed.ended or 0))).zone if moves else 0


def _move_lines(brought: Brought, many: bool) -> list[str]:
    move = brought.move
    old = move.old[:SHORT] if move.old else "nothing"
    where = f" in {brought.checkout}" if many else ""
    alike = "; nothing below python/ differs" if brought.served_alike else ""
    lines = [f"{moment(move.time, move.zone)}   {move.what}{where}: {old} → {move.new[:SHORT]}{_size(brought)}{alike}"]
    lines += [f"      {sha[:SHORT]} {subject}" for sha, subject in brought.subjects[:SHOWN_COMMITS]]
    if brought.commits is not None and brought.commits > SHOWN_COMMITS:
        lines.append(f"      … and {brought.commits - SHOWN_COMMITS} more")
    return lines


def _size(brought: Brought) -> str:
    if brought.commits is None:
        return "" if brought.move.old is None else ", commits no longer known"
    return f", {_count(brought.commits, 'commit')}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _commit(sha: str, trace: Trace) -> str:
    subject = trace.subjects.get(sha)
    return f"{sha[:SHORT]} {subject}" if subject else f"{sha[:SHORT]} (its object is gone)"


def speed(fingerprint: LoggedRun) -> str:
    if fingerprint.tok_s is None:
        return "no tok/s in it"
    accept = f", accept length {fingerprint.accept_length:.2f}" if fingerprint.accept_length is not None else ""
    at = f" at {_count(fingerprint.running, 'request')}" if fingerprint.running not in (None, 1) else ""
    return f"{_short(fingerprint.tok_s)} tok/s{at}{accept}"


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 20 else f"{number:.1f}"


def _the_log(placed: Placed) -> str:
    tok_s = placed.log.fingerprint.tok_s
    return f"the {_short(tok_s)} tok/s log ({placed.log.name})" if tok_s is not None else f"the log {placed.log.name}"


# -------------------------------------------------------------------------------------------------- conclusion


def conclusion(trace: Trace) -> Iterator[str]:
    """One sentence a log, then what tells the logs of two commits apart."""
    for placed in trace.placed:
        yield _sentence(placed, trace)
    if not any(one.log.fingerprint.ran_from for one in trace.placed):
        yield "That a log ran from this checkout is assumed: none of them shows a path of its code."
    yield from _between(trace)


def _sentence(placed: Placed, trace: Trace) -> str:
    subject = _the_log(placed)
    subject = subject[0].upper() + subject[1:]
    if placed.head is None or placed.certainty is Certainty.UNKNOWN:
        return f"{subject}: which commit it ran on is not known: {'; '.join(placed.reasons)}."
    time = placed.began if placed.began is not None else placed.ended
    assert time is not None
    verb = "began" if placed.began is not None else "ended"
    move, after = _nearest_move(placed, trace, time)
    at = f"HEAD was at {placed.head[:SHORT]}"
    because = "" if placed.certainty is Certainty.SURE else f", because {'; '.join(placed.reasons)}"
    certain = "This is sure." if placed.certainty is Certainty.SURE else f"This is likely, not sure{because}."
    if move is None:
        return f"{subject} {verb} while {at}. {certain}"
    side = "after" if after else "before"
    return f"{subject} {verb} {duration(abs(time - move.move.time))} {side} {_move_words(move)}: {at}. {certain}"


def _nearest_move(placed: Placed, trace: Trace, time: float) -> tuple[Brought | None, bool]:
    """The move of HEAD that lies between this log and another one; else the nearest."""
    moves = [brought for brought in trace.moves if brought.checkout == placed.checkout and brought.move.old is not None]
    if not moves:
        return None, False
    found = min(moves, key=lambda brought: abs(brought.move.time - time))
    return found, found.move.time <= time


def _move_words(brought: Brought) -> str:
    if brought.commits is None or brought.move.what not in ("pull", "merge"):
        return f"the {brought.move.what} to {brought.move.new[:SHORT]}"
    return f"the {brought.move.what} of {_count(brought.commits, 'commit')}"


def _between(trace: Trace) -> Iterator[str]:
    """Of logs at different commits: what in them would tell one from the other."""
    known = [one for one in trace.placed if one.head is not None and one.certainty is not Certainty.UNKNOWN]
    heads = list(dict.fromkeys(one.head for one in known))
    if len(known) > 1 and len(heads) == 1:
        yield (
            f"All these logs are of one commit, {str(heads[0])[:SHORT]}, as far as HEAD tells: "
            "look for what else changed (packages, environment, box, uncommitted files)."
        )
    for earlier, later in _pairs_apart(known):
        yield from _apart(earlier, later)


def _pairs_apart(known: Sequence[Placed]) -> Iterator[tuple[Placed, Placed]]:
    for earlier, later in pairwise(known):
        if earlier.head != later.head:
            yield earlier, later


def _apart(earlier: Placed, later: Placed) -> Iterator[str]:
    one, other = earlier.log.fingerprint.said(), later.log.fingerprint.said()
    both = one.keys() & other.keys()
    differing = sorted(name for name in both if one[name] != other[name])
    names = f"{earlier.log.name} and {later.log.name}"
    if differing:
        shown = "; ".join(f"{name} {one[name]} → {other[name]}" for name in differing[:SHOWN_DIFFERENCES])
        yield f"Between {names} more than the commit differs: {shown}."
        return
    if both:
        shared = ", ".join(_as_printed(name, one[name]) for name in _telling(both))
        yield f"What {names} print does not tell the two commits apart: both print {shared}. These three lines would:"
    else:
        yield f"{names} print nothing that tells the two commits apart. These three lines would:"
    yield from (f"    {line}" for line in WOULD_TELL)


def _telling(names: Iterable[str]) -> list[str]:
    """What people read as a fingerprint, first."""
    order = ("nccl", "version", "image", "max_total_num_tokens", "speculation", "cuda graph")
    return [name for name in order if name in names] or sorted(names)[:3]


def _as_printed(name: str, value: str) -> str:
    return f"{name}=={value}" if name == "nccl" else f"{name} {value}"
