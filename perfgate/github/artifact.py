"""The verdict of a measurement, from an artifact that strangers' code may have had a hand in.

Nothing of it is believed but facts, and those are judged here again, as `perfgate judge` would: a result that came
along is not even looked at. Nothing is unpacked: of a zip the members `facts.jsonl` and `evidence/RUN/facts.jsonl` are
read into memory, each bounded; of a folder the files of these names, never through a link.
"""

from __future__ import annotations

import json
import lzma
import re
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from perfgate.errors import PerfgateError
from perfgate.github.request import Authorised
from perfgate.records import Plan, Result
from perfgate.records.files import FACTS_FILE, result_to_json
from perfgate.run.conclude import judged
from perfgate.run.evidence import EVIDENCE_FOLDER
from perfgate.run.plan import workflow_suffix
from perfgate.store.strangers import OddFiles, is_regular, open_regular

MAX_ARTIFACT = 512 * 1024 * 1024  # bytes of a zip, which may hold logs
MAX_FACTS = 64 * 1024 * 1024  # bytes of all facts together; a run of 50 launches takes about 1 MB
MAX_MEMBERS = 2_000
MAX_RUNS = 200  # of earlier evidence
REMEDY = "`/perfgate rerun`"
_RUN_ID = re.compile(r"[A-Za-z0-9._:-]{1,60}")
_FACTS = re.compile(rf"(?:{EVIDENCE_FOLDER}/(?P<run>[A-Za-z0-9][A-Za-z0-9._:-]{{0,59}})/)?{re.escape(FACTS_FILE)}")
_BROKEN_ZIP = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError, IndexError),
)


class ArtifactError(PerfgateError):
    """What came back from the box cannot be used."""


class ArtifactMissing(ArtifactError):
    """Nothing came back at all."""


def read_artifact(place: Path, request: Authorised) -> Result:
    """The result that this request was for. ArtifactError where there is none, or one not to be trusted."""
    facts = read_facts_of(place)
    for data in facts.values():
        _check_numbers(data)
    with tempfile.TemporaryDirectory(prefix="perfgate-facts-") as folder:
        for name, data in facts.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        plan, result = _judged(Path(folder))
    _check_belongs(plan, result, request)
    return result


def _check_numbers(data: bytes) -> None:
    """JSON knows neither NaN nor Infinity, and no honest fact holds one; Python's parser would take them."""

    def refuse(constant: str) -> None:
        raise ArtifactError(f"a number is {constant}", where=FACTS_FILE, remedy=REMEDY)

    for line in data.splitlines():
        with suppress(ValueError, RecursionError):  # what is no JSON is told by who reads facts
            json.loads(line, parse_constant=refuse)


def _judged(run: Path) -> tuple[Plan, Result]:
    """Whatever a stranger wrote into facts ends in a result that can be shown, or in one sentence."""
    try:
        facts, result = judged(run)
        result_to_json(result)  # no number in it is infinite or none at all
    except PerfgateError as error:
        raise ArtifactError(f"not facts: {error.what}"[:300], where=FACTS_FILE, remedy=REMEDY) from error
    except Exception as error:
        raise ArtifactError(
            f"facts that nothing can be judged by ({type(error).__name__})", where=FACTS_FILE, remedy=REMEDY
        ) from error
    return facts.plan, result


# ------------------------------------------------------------------------------------------------ the files


def read_facts_of(place: Path) -> Mapping[str, bytes]:
    """`place`: a zip whatever its name, a folder that holds one and nothing else, or a folder with the files."""
    if place.is_symlink() or not place.exists():
        raise ArtifactMissing("the box sent nothing back", remedy=REMEDY)
    if not place.is_dir():
        return _from_zip(place)
    inside = sorted(place.iterdir())
    if len(inside) == 1 and inside[0].name != FACTS_FILE and is_regular(inside[0]):
        return _from_zip(inside[0])
    return _from_folder(place)


def _from_folder(folder: Path) -> dict[str, bytes]:
    paths = [folder / FACTS_FILE, *sorted((folder / EVIDENCE_FOLDER).glob(f"*/{FACTS_FILE}"))]
    found: dict[str, bytes] = {}
    left = MAX_FACTS
    for path in paths[: MAX_RUNS + 1]:
        name = path.relative_to(folder).as_posix()
        if _FACTS.fullmatch(name) and (data := _read_file(path, left)) is not None:
            found[name] = data
            left -= len(data)
    return _with_facts(found)


def _read_file(path: Path, most: int) -> bytes | None:
    """None where it is not there."""
    if path.parent.is_symlink():
        raise ArtifactError("a folder is a link", where=path.parent.name, remedy=REMEDY)
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return None
    except OddFiles as error:
        raise ArtifactError("not a regular file", where=FACTS_FILE, remedy=REMEDY) from error
    except OSError as error:
        raise ArtifactError(f"cannot be read: {error.strerror}", where=FACTS_FILE, remedy=REMEDY) from error
    with file as stream:
        return _bounded(stream.read(most + 1), most)


def _from_zip(path: Path) -> dict[str, bytes]:
    if not is_regular(path):
        raise ArtifactError("not a regular file", where="artifact", remedy=REMEDY)
    if path.stat().st_size > MAX_ARTIFACT:
        raise ArtifactError(f"larger than {MAX_ARTIFACT} bytes", where="artifact", remedy=REMEDY)
    found: dict[str, bytes] = {}
    left = MAX_FACTS
    try:
        with zipfile.ZipFile(path) as archive:
            for member in _facts_members(archive.infolist()):
                with archive.open(member) as stream:
                    found[member.filename] = _bounded(stream.read(left + 1), left)
                left -= len(found[member.filename])
    except _BROKEN_ZIP as error:
        raise ArtifactError(f"not a whole zip: {error}"[:200], where="artifact", remedy=REMEDY) from error
    return _with_facts(found)


def _facts_members(members: list[zipfile.ZipInfo]) -> Iterator[zipfile.ZipInfo]:
    """Members with facts. Any member with a strange name or kind makes the whole archive suspect."""
    if len(members) > MAX_MEMBERS:
        raise ArtifactError(f"more than {MAX_MEMBERS} members", where="artifact", remedy=REMEDY)
    for member in members:
        name, mode = member.filename, member.external_attr >> 16
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\0" in member.orig_filename:
            raise ArtifactError("a member's name leads out of the archive", where="artifact", remedy=REMEDY)
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ArtifactError("a member is no regular file", where="artifact", remedy=REMEDY)
    found = [member for member in members if _FACTS.fullmatch(member.filename)]
    if len({member.filename for member in found}) != len(found):
        raise ArtifactError("the same facts twice", where="artifact", remedy=REMEDY)
    yield from found[: MAX_RUNS + 1]


def _with_facts(found: dict[str, bytes]) -> dict[str, bytes]:
    if FACTS_FILE not in found:
        raise ArtifactMissing("the box sent no facts back", remedy=REMEDY)
    return found


def _bounded(data: bytes, most: int) -> bytes:
    if len(data) > most:
        raise ArtifactError(f"facts larger than {MAX_FACTS} bytes", where=FACTS_FILE, remedy=REMEDY)
    return data


# ------------------------------------------------------------------------------------------------ whose they are


def _check_belongs(plan: Plan, result: Result, request: Authorised) -> None:
    """That they speak of what was authorised, by this very run of the workflow, and of nothing else."""
    for side, have, want in (
        ("base", plan.base, (request.base, request.base_tree)),
        ("head", plan.head, (request.head, request.head_tree)),
    ):
        if (have.sha, have.tree) != want:
            raise ArtifactError(f"{side} is not the commit that was authorised", where=FACTS_FILE, remedy=REMEDY)
    if not all(_RUN_ID.fullmatch(name) for name in (plan.run_id, *plan.continues)) or len(plan.continues) > MAX_RUNS:
        raise ArtifactError("a run's id has a strange form", where=FACTS_FILE, remedy=REMEDY)
    if not plan.run_id.endswith(workflow_suffix(request.run)):
        raise ArtifactError("of another run of the workflow", where=FACTS_FILE, remedy=REMEDY)
    if plan.calibration:
        raise ArtifactError("a calibration of the box says nothing of a pull request", where=FACTS_FILE, remedy=REMEDY)
    if plan.config != request.config:
        raise ArtifactError("measured by another configuration", where=FACTS_FILE, remedy=REMEDY)
    ours = (request.repository.lower(), request.pr)
    theirs = (plan.pr.repository.lower(), plan.pr.number) if plan.pr else (ours[0], None)
    if theirs != ours:
        raise ArtifactError("of another pull request", where=FACTS_FILE, remedy=REMEDY)
