"""`perfgate publish`: the last job. Says on the pull request what the box measured.

The artifact is a stranger's: its facts are judged here again, and nothing else is taken from it. The head is read
again. Whatever goes wrong, the check of the request is closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from perfgate.errors import Exit, PerfgateError
from perfgate.github import words
from perfgate.github.artifact import ArtifactError, ArtifactMissing, read_artifact
from perfgate.github.client import Client, GithubError, Patience
from perfgate.github.comment import opened_id
from perfgate.github.gather import Past, gather_past
from perfgate.github.job import Job, job_of
from perfgate.github.outcome import CheckWord, Outcome, Response, on_outcome
from perfgate.github.request import Authorised, request_from_line
from perfgate.github.say import close_check, say
from perfgate.records import Result
from perfgate.text import visible

JobResult = Literal["success", "failure", "cancelled", "skipped"]
"""What GitHub says of the measure job."""

ReadArtifact = Callable[[Path, Authorised], Result]
MINUTE_OF_GRACE = 60.0  # GitHub ends a job that is out of its time a little late, and never early


@dataclass(frozen=True)
class MeasureJob:
    """What is known of the measure job. `reason` and `artifact` come from the box: a stranger's."""

    result: JobResult
    artifact: Path
    reason: str = ""
    began: float | None = None  # seconds since 1970


def publish_step(
    environment: Mapping[str, str],
    artifact: Path,
    patience: Patience | None = None,
    read: ReadArtifact = read_artifact,
) -> Exit:
    """Where no check tells the verdict (two refs compared by hand), the exit code does."""
    job = job_of(environment)
    request = request_from_line(environment.get("PERFGATE_REQUEST", ""), job.repository)
    if request.run != job.run:
        raise PerfgateError(f"of run {request.run}, but this is run {job.run}", where="request")
    client = Client(job, patience or Patience())
    try:
        outcome = read_outcome(request, _measured(environment, artifact), read)
        decision = publish(job, client, request, outcome)
    except GithubError:  # of something that could not be written: all else was
        raise
    except Exception:
        if request.pr is not None:
            close_check(job, client, _opened(request))
        raise
    return Exit.REGRESSION if request.pr is None and decision.conclusion == "failure" else Exit.OK


def publish(job: Job, client: Client, request: Authorised, outcome: Outcome) -> Response:
    """Sets check and comment, writes job summary and outputs. Done again it changes nothing."""
    past, pull = gather_past(job, client, request, request.pr) if request.pr else (Past(), None)
    decision = on_outcome(
        request, outcome, past, job, head_now=pull.head if pull else None, locked=bool(pull and pull.locked)
    )
    say(job, client, decision)
    return decision


def _opened(request: Authorised) -> CheckWord:
    return CheckWord(sha=request.head, external_id=opened_id(request.run, request.attempt), title="", summary="")


def _measured(environment: Mapping[str, str], artifact: Path) -> MeasureJob:
    began = environment.get("PERFGATE_BEGAN", "")
    known = began.isascii() and began.isdigit() and len(began) < 15
    reason = environment.get("PERFGATE_REASON", "")[:1000]
    return MeasureJob(_job_result(environment), artifact, reason, float(began) if known else None)


def _job_result(environment: Mapping[str, str]) -> JobResult:
    word = environment.get("PERFGATE_MEASURED", "")
    known: tuple[JobResult, ...] = get_args(JobResult)
    for result in known:
        if word == result:
            return result
    raise PerfgateError(f"not one of {', '.join(known)}", where="PERFGATE_MEASURED")


def read_outcome(request: Authorised, measured: MeasureJob, read: ReadArtifact = read_artifact) -> Outcome:
    """What came of it. Whatever is wrong with the artifact is an outcome too, not an error of this job."""
    reason = visible(measured.reason, 300)
    if measured.result == "cancelled":
        return Outcome(cause=words.OUT_OF_TIME if _out_of_time(request, measured) else words.CANCELLED)
    try:
        return Outcome(result=read(measured.artifact, request))
    except ArtifactMissing:
        lost = words.REFUSED if reason else words.RUNNER_LOST
        return Outcome(cause=lost if measured.result == "failure" else words.NOTHING_CAME, reason=reason)
    except ArtifactError as error:
        return Outcome(cause=words.NOT_BELIEVED, reason=f"{error.what}.")


def _out_of_time(request: Authorised, measured: MeasureJob) -> bool:
    """GitHub says `cancelled` of a job that it ended for its time, as of one that somebody cancelled."""
    if measured.began is None:
        return False
    return time.time() - measured.began >= request.minutes * 60 - MINUTE_OF_GRACE
