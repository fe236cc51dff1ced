"""The copy of a run that leaves the box: the same facts, result, page and logs, without what names machine or people.

On the box a run is kept as it was taken. What an artifact carries anybody may download, so host and user names,
addresses and UUIDs are short hashes there, and so are values of variables that no comparison has to show. Equal things
stay equal, and what a run is about stays as it is: `perfgate judge` comes to the same verdict on the copy.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from perfgate import records as r
from perfgate.host.public import public
from perfgate.probe.inside.readings import shown, unhashed_secret
from perfgate.records.files import (
    FACTS_FILE,
    RESULT_FILE,
    fact_to_line,
    read_facts,
    read_result,
    short_hash,
    write_whole,
)
from perfgate.report.page import render_page
from perfgate.run.evidence import EVIDENCE_FOLDER
from perfgate.run.folder import LOGS_FOLDER, PAGE_FILE

PUBLIC_FOLDER = "public"
MOST_LOG = 16 << 20  # bytes of one log; of a longer one both ends
LOG_BEGIN = 4 << 20
MOST_LINE = 1 << 16
SHOWN_PREFIXES = ("NCCL_", "SGLANG_", "CUDA_", "PERFGATE_", "PYTHON", "LC_")
SHOWN_VARIABLES = frozenset(
    {
        "HF_HOME",
        "HF_HUB_OFFLINE",
        "HOME",
        "LANG",
        "LD_LIBRARY_PATH",
        "OMP_NUM_THREADS",
        "PATH",
        "TMPDIR",
        "TRANSFORMERS_OFFLINE",
        "TZ",
    }
)
VARIABLES = frozenset({"given", "environment", "at_start", "effective"})  # fields: name of a variable → its value
VERSIONS = frozenset({"version", "versions"})
VERSION = re.compile(r"\d[\w.+!-]{0,63}")  # "10.3.9.90" is no address where a version stands
WORD = re.compile(r"[A-Za-z0-9]+")

Hide = Callable[[str], str]


def write_public(run: Path, names: frozenset[str] = frozenset()) -> Path:
    """Makes the copy anew below the run and returns its folder. `names`: more to hash, e.g. the user servers run as."""
    folder = run / PUBLIC_FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    own = read_facts(run)
    hide = partial(public, also=names, words=words_of(own))
    _write_facts(folder, own, hide)
    for kept in sorted((run / EVIDENCE_FOLDER).glob(f"*/{FACTS_FILE}")):
        _write_facts(folder / kept.parent.relative_to(run), read_facts(kept.parent), hide)
    if (run / RESULT_FILE).is_file():
        write_whole(folder / RESULT_FILE, _public_json((run / RESULT_FILE).read_text(), hide, indent=1))
        write_whole(folder / PAGE_FILE, render_page(read_result(folder), read_facts(folder)))
    _copy_logs(run / LOGS_FOLDER, folder / LOGS_FOLDER, hide)
    return folder


def _write_facts(folder: Path, facts: Sequence[r.Fact], hide: Hide) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / FACTS_FILE, "".join(_public_json(fact_to_line(fact), hide) for fact in facts))


def words_of(facts: Sequence[r.Fact]) -> frozenset[str]:
    """What a run's own names are made of: a box called "eagle3", or a user who owns the repository, is no secret."""
    plans = [fact for fact in facts if isinstance(fact, r.Plan)]
    enums = [member.value for kind in vars(r).values() if _is_enum(kind) for member in kind]
    named = [*enums, *r.FACT_KINDS, *r.METRICS, *(kind.unit for kind in r.METRICS.values())]
    for plan in plans:
        named += [plan.profile, plan.box, plan.run_id, plan.diff_class, *(recipe.name for recipe in plan.recipes)]
        named += plan.pr.repository.split("/") if plan.pr else []
    named += [fact.id for fact in facts]
    return frozenset({*named, *(word for name in named for word in WORD.findall(name))})


def _is_enum(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, StrEnum)


def _public_json(text: str, hide: Hide, indent: int | None = None) -> str:
    separators = (",", ":") if indent is None else None
    shown = _public_value(json.loads(text), hide)
    return json.dumps(shown, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators) + "\n"


def _public_value(value: Any, hide: Hide) -> Any:
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, list):
        return [_public_value(one, hide) for one in value]
    if isinstance(value, dict):
        return {name: _public_field(name, one, hide) for name, one in value.items()}
    return value


def _public_field(name: str, value: Any, hide: Hide) -> Any:
    if name in VERSIONS:
        return _public_versions(value, hide)
    if name in VARIABLES and isinstance(value, dict):
        return dict(_public_variables(value, hide))
    return _public_value(value, hide)


def _public_versions(value: Any, hide: Hide) -> Any:
    if isinstance(value, dict):
        return {name: _public_versions(one, hide) for name, one in value.items()}
    return value if isinstance(value, str) and VERSION.fullmatch(value) else _public_value(value, hide)


def _public_variables(variables: Mapping[str, Any], hide: Hide) -> Iterator[tuple[str, Any]]:
    """Variables of the box's own may hold anything, a proxy's password too: they can be compared, not read.

    What lies in a side's own HOME stays a path in it, since the comparison takes the one HOME for the other's.
    """
    home = variables.get("HOME") or "\0"
    for name, value in variables.items():
        yield name, _public_variable(name, value, home, hide) if isinstance(value, str) else _public_value(value, hide)


def _public_variable(name: str, value: str, home: str, hide: Hide) -> str:
    if unhashed_secret(name, value):
        return shown(name, value)
    readable = name in SHOWN_VARIABLES or name.startswith(SHOWN_PREFIXES) or value.startswith(home)
    return hide(value) if readable else f"#{short_hash(value)}"


def _copy_logs(logs: Path, into: Path, hide: Hide) -> None:
    for log in sorted(logs.rglob("*.log")):
        copy = into / log.relative_to(logs)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with copy.open("w", encoding="utf-8") as file:
            file.writelines(map(hide, _bounded_lines(log)))


def _bounded_lines(log: Path) -> Iterable[str]:
    """The lines of a log; of a very long one its begin and its end."""
    size = log.stat().st_size
    with log.open("rb") as file:
        for line in file:
            yield line[:MOST_LINE].decode(errors="replace")
            if size > MOST_LOG and file.tell() >= LOG_BEGIN:
                file.seek(max(file.tell(), size - (MOST_LOG - LOG_BEGIN)))
                yield f"\n… {size >> 20} MiB in all, the middle is left out …\n"
                size = 0
