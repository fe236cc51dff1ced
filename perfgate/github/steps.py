"""The commands of the workflow, from environment variables to the functions that do the work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from perfgate.errors import Exit, PerfgateError
from perfgate.github.client import Client, Patience
from perfgate.github.events import read_event
from perfgate.github.job import Job, job_of
from perfgate.github.publish import JobResult, Measured, publish
from perfgate.github.request import request_from_line
from perfgate.github.respond import respond
from perfgate.github.say import Desk
from perfgate.records import Result
from perfgate.report.comment import Links, render_comment

_FULL_SHA = re.compile(r"[0-9a-f]{40}")
_GATE_LINE = re.compile(
    r"^\s*uses:\s*['\"]?[^\s'\"#]+/\.github/workflows/gate(?:-private)?\.ya?ml@([^\s'\"#]+)", re.MULTILINE
)


def respond_step(environment: Mapping[str, str], patience: Patience | None = None) -> None:
    """`perfgate respond`."""
    job = job_of(environment)
    event = read_event(job.event_name, job.event_path)
    client = Client(job, patience or Patience())
    check_reference(job, client, environment.get("PERFGATE_REF", ""), environment.get("PERFGATE_WORKFLOW_SHA", ""))
    respond(desk_of(job, client), event)


def publish_step(environment: Mapping[str, str], artifact: Path, patience: Patience | None = None) -> Exit:
    """`perfgate publish`. Where no check tells the verdict (two refs compared by hand), the exit code does."""
    job = job_of(environment)
    request = request_from_line(environment.get("PERFGATE_REQUEST", ""), job.repository)
    if request.run != job.run:
        raise PerfgateError(f"of run {request.run}, but this is run {job.run}", where="request")
    measured = Measured(_job_result(environment), artifact, environment.get("PERFGATE_REASON", "")[:1000])
    conclusion = publish(desk_of(job, Client(job, patience or Patience())), request, measured)
    return Exit.REGRESSION if request.pr is None and conclusion == "failure" else Exit.OK


def _job_result(environment: Mapping[str, str]) -> JobResult:
    word = environment.get("PERFGATE_MEASURED", "")
    known: tuple[JobResult, ...] = get_args(JobResult)
    for result in known:
        if word == result:
            return result
    raise PerfgateError(f"not one of {', '.join(known)}", where="PERFGATE_MEASURED")


def desk_of(job: Job, client: Client) -> Desk:
    links = Links(run=job.run_url, page=f"{job.run_url}#artifacts", repository=f"{job.server_url}/{job.repository}")

    def report(result: Result, limit: int) -> str:
        return render_comment(result, links=links, limit=limit)

    return Desk(job, client, report)


def check_reference(job: Job, client: Client, reference: str, workflow_sha: str) -> None:
    """That perfgate runs at the commit that its workflow came from.

    GitHub tells that commit (`job.workflow_sha`) since 2026; where it does not, the caller's own line does.
    """
    if not reference:
        return  # not started by gate.yml
    if not _FULL_SHA.fullmatch(reference):
        raise _mismatch(f"perfgate-ref {reference[:60]!r} is no full SHA")
    if workflow_sha and workflow_sha != reference:
        raise _mismatch(f"gate.yml came from {workflow_sha[:60]}, perfgate-ref says {reference}")
    if workflow_sha or not (job.workflow_ref and job.workflow_sha):
        return
    path = job.workflow_ref.split("@", 1)[0].split("/", 2)[-1]
    called = set(_GATE_LINE.findall(client.file(path, job.workflow_sha) or ""))
    if called and called != {reference}:
        raise _mismatch(f"{path} calls gate.yml at {', '.join(sorted(called))[:200]}, perfgate-ref says {reference}")


def _mismatch(what: str) -> PerfgateError:
    return PerfgateError(what, where="workflow", remedy="write the same SHA twice, as `perfgate init` does")
