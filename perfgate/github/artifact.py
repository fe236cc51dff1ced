"""The measured result, out of an artifact that strangers' code may have had a hand in.

Nothing is ever unpacked: from a zip one member, `result.json`, is read into memory; from a folder one regular file.
"""

from __future__ import annotations

import re
import stat
import zipfile
from pathlib import Path

from perfgate.errors import Exit, PerfgateError
from perfgate.github.request import Request
from perfgate.judge.verdict import EXIT_CODES
from perfgate.records import Metric, MetricVerdict, Result, Side, Verdict
from perfgate.records.files import RESULT_FILE, result_from_json
from perfgate.store.strangers import OddFiles, open_regular

MAX_ARTIFACT = 512 * 1024 * 1024  # bytes of a zip, which may hold logs
MAX_RESULT = 8 * 1024 * 1024  # bytes of result.json; 50 launches take about 100 kB
MAX_MEMBERS = 2_000
MAX_CONTINUES = 1_000
REMEDY = "`/perfgate rerun`"
_RUN_ID = re.compile(r"[A-Za-z0-9._:-]{1,60}")


class ArtifactError(PerfgateError):
    """What came back from the box cannot be used."""


class ArtifactMissing(ArtifactError):
    """Nothing came back at all."""


def read_artifact(place: Path, request: Request) -> Result:
    """The result that this request was for. ArtifactError where there is none, or one not to be trusted."""
    result = result_from(read_result_bytes(place))
    _check_belongs(result, request)
    _check_agrees(result)
    return result


def result_from(data: bytes) -> Result:
    try:
        return result_from_json(data, RESULT_FILE)
    except PerfgateError as error:
        raise ArtifactError(f"not a result: {error.what}"[:300], where=RESULT_FILE, remedy=REMEDY) from error
    except RecursionError as error:  # deeper than any result
        raise ArtifactError("not a result: nested too deep", where=RESULT_FILE, remedy=REMEDY) from error


def read_result_bytes(place: Path) -> bytes:
    """`place`: a zip, a folder that holds one zip, or a folder that holds result.json."""
    if place.is_symlink() or not place.exists():
        raise ArtifactMissing("the box sent nothing back", remedy=REMEDY)
    if not place.is_dir():
        return _from_zip(place)
    zips = sorted(path for path in place.iterdir() if path.suffix == ".zip")
    if len(zips) > 1:
        raise ArtifactError(f"{len(zips)} archives where one belongs", remedy=REMEDY)
    return _from_zip(zips[0]) if zips else _from_folder(place)


def _from_folder(folder: Path) -> bytes:
    try:
        file = open_regular(folder / RESULT_FILE)
    except FileNotFoundError as error:
        raise ArtifactMissing("the box sent no result.json back", remedy=REMEDY) from error
    except OddFiles as error:
        raise ArtifactError("not a regular file", where=RESULT_FILE, remedy=REMEDY) from error
    except OSError as error:
        raise ArtifactError(f"cannot be read: {error.strerror}", where=RESULT_FILE, remedy=REMEDY) from error
    with file as stream:
        return _bounded(stream.read(MAX_RESULT + 1))


def _from_zip(path: Path) -> bytes:
    if path.is_symlink() or not path.is_file():
        raise ArtifactError("not a regular file", where="artifact", remedy=REMEDY)
    if path.stat().st_size > MAX_ARTIFACT:
        raise ArtifactError(f"larger than {MAX_ARTIFACT} bytes", where="artifact", remedy=REMEDY)
    try:
        with zipfile.ZipFile(path) as archive:
            member = _result_member(archive.infolist())
            with archive.open(member) as stream:
                return _bounded(stream.read(MAX_RESULT + 1))
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ArtifactError(f"not a whole zip: {error}"[:200], where="artifact", remedy=REMEDY) from error


def _result_member(members: list[zipfile.ZipInfo]) -> zipfile.ZipInfo:
    """The one member called result.json. Any member with a strange name or kind makes the whole archive suspect."""
    if len(members) > MAX_MEMBERS:
        raise ArtifactError(f"more than {MAX_MEMBERS} members", where="artifact", remedy=REMEDY)
    for member in members:
        name, mode = member.filename, member.external_attr >> 16
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\0" in member.orig_filename:
            raise ArtifactError("a member's name leads out of the archive", where="artifact", remedy=REMEDY)
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ArtifactError("a member is no regular file", where="artifact", remedy=REMEDY)
    found = [member for member in members if member.filename == RESULT_FILE]
    if not found:
        raise ArtifactMissing("the box sent no result.json back", remedy=REMEDY)
    if len(found) > 1:
        raise ArtifactError("more than one result.json", where="artifact", remedy=REMEDY)
    return found[0]


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_RESULT:
        raise ArtifactError(f"larger than {MAX_RESULT} bytes", where=RESULT_FILE, remedy=REMEDY)
    return data


def _check_belongs(result: Result, request: Request) -> None:
    """That the result speaks of what was authorised, and of nothing else."""
    for side, have, want in (
        (Side.BASE, result.base, (request.base, request.base_tree)),
        (Side.HEAD, result.head, (request.head, request.head_tree)),
    ):
        if (have.sha, have.tree) != want:
            raise ArtifactError(f"{side} is not the commit that was authorised", where=RESULT_FILE, remedy=REMEDY)
    if request.pr is None:
        return
    ours = result.pr is not None and (result.pr.repository.lower(), result.pr.number) == (
        request.repository.lower(),
        request.pr,
    )
    if not ours:
        raise ArtifactError("of another pull request", where=RESULT_FILE, remedy=REMEDY)


def _check_agrees(result: Result) -> None:
    """That the verdict follows from the result's own numbers, as far as can be seen from here."""
    if (
        not all(_RUN_ID.fullmatch(name) for name in (result.run_id, *result.continues))
        or len(result.continues) > MAX_CONTINUES
    ):
        raise ArtifactError("a run's id has a strange form", where=RESULT_FILE, remedy=REMEDY)
    if result.calibration:
        raise ArtifactError("a calibration of the box says nothing of a pull request", where=RESULT_FILE, remedy=REMEDY)
    if result.exit_code not in (EXIT_CODES[result.verdict], Exit.INTERRUPTED, Exit.TERMINATED):
        raise ArtifactError("verdict and exit code disagree", where=RESULT_FILE, remedy=REMEDY)
    gated = [metric for metric in result.metrics if metric.gated]
    if result.verdict is Verdict.PASS and not (gated and all(map(_passed, gated))):
        raise ArtifactError("says pass, but not every gated metric does", where=RESULT_FILE, remedy=REMEDY)
    if result.verdict is Verdict.REGRESSION and not any(one.verdict is MetricVerdict.REGRESSION for one in gated):
        raise ArtifactError("says regression, but no gated metric does", where=RESULT_FILE, remedy=REMEDY)


def _passed(metric: Metric) -> bool:
    return metric.verdict is MetricVerdict.PASS
