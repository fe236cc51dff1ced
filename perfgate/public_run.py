"""The copy of a run that leaves the box: the same facts, result, page and logs, without what names machine or people.

On the box a run is kept as it was taken. What an artifact carries anybody may download, so host and user names,
addresses and UUIDs are short hashes there, and so are values of variables that no comparison has to show. Equal things
stay equal: `perfgate judge` comes to the same verdict on the copy.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from perfgate.facts import FACTS_FILE, RESULT_FILE, fact_from_line, read_result, short_hash, write_whole
from perfgate.host.public import public
from perfgate.report.page import render_page
from perfgate.rundir import EVIDENCE_FOLDER, PAGE_FILE

PUBLIC_FOLDER = "public"
LOGS_FOLDER = "logs"
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
        "TRITON_CACHE_DIR",
        "TZ",
        "XDG_CACHE_HOME",
    }
)
VARIABLES = frozenset({"given", "environment", "at_start", "effective"})  # fields: name of a variable → its value
VERSIONS = frozenset({"version", "versions"})  # "10.3.9.90" is no address there
OUR_WORDS = frozenset(
    {
        "better",
        "blame",
        "clock",
        "code",
        "effect",
        "first",
        "id",
        "kind",
        "launch",
        "metric",
        "profile",
        "recipe",
        "role",
        "schema",
        "side",
        "state",
        "status",
        "unit",
        "verdict",
        "when",
    }
)
"""Fields with words of perfgate's own: they stay, even on a box that is called "gpu"."""


def write_public(run: Path, names: frozenset[str] = frozenset()) -> Path:
    """Makes the copy anew below the run and returns its folder. `names`: more to hash, e.g. the user servers run as."""
    folder = run / PUBLIC_FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    hide = partial(public, also=names)
    for facts in (run / FACTS_FILE, *sorted((run / EVIDENCE_FOLDER).glob(f"*/{FACTS_FILE}"))):
        copy = folder / facts.relative_to(run)
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_whole(copy, "".join(_public_lines(facts, hide)))
    if (run / RESULT_FILE).is_file():
        write_whole(folder / RESULT_FILE, _public_json((run / RESULT_FILE).read_text(), hide, indent=1))
        lines = enumerate((folder / FACTS_FILE).read_text().splitlines(), 1)
        known = [fact_from_line(line, f"{FACTS_FILE}:{number}") for number, line in lines]
        page = render_page(read_result(folder), [fact for fact in known if fact is not None])
        write_whole(folder / PAGE_FILE, page)
    _copy_logs(run / LOGS_FOLDER, folder / LOGS_FOLDER, hide)
    return folder


Hide = Callable[[str], str]


def _public_lines(facts: Path, hide: Hide) -> Iterator[str]:
    with facts.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):  # a last line cut off by a crash says nothing
                yield _public_json(line, hide)


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
    if name in VERSIONS or (name in OUR_WORDS and isinstance(value, str)):
        return value
    if name in VARIABLES and isinstance(value, dict):
        return {variable: _public_variable(variable, one, hide) for variable, one in value.items()}
    return _public_value(value, hide)


def _public_variable(name: str, value: Any, hide: Hide) -> Any:
    """Variables of the box's own may hold anything, a proxy's password too: they can be compared, not read."""
    shown = name in SHOWN_VARIABLES or name.startswith(SHOWN_PREFIXES)
    return _public_value(value, hide) if shown or not isinstance(value, str) else f"#{short_hash(value)}"


def _copy_logs(logs: Path, into: Path, hide: Hide) -> None:
    for log in sorted(logs.rglob("*.log")):
        copy = into / log.relative_to(logs)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with copy.open("w", encoding="utf-8") as file:
            file.writelines(map(hide, _bounded_lines(log)))


def _bounded_lines(log: Path) -> Iterator[str]:
    """The lines of a log; of a very long one its begin and its end."""
    size = log.stat().st_size
    with log.open("rb") as file:
        for line in file:
            yield line[:MOST_LINE].decode(errors="replace")
            if size > MOST_LOG and file.tell() >= LOG_BEGIN:
                file.seek(max(file.tell(), size - (MOST_LOG - LOG_BEGIN)))
                yield f"\n… {size >> 20} MiB in all, the middle is left out …\n"
                size = 0
