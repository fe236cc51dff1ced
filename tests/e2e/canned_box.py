"""Laid over perfgate/github/box.py where a test is about everything but measuring: it "measures" a recorded result."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from perfgate.errors import Exit
from perfgate.github.job import job_of
from perfgate.github.request import request_from_line
from perfgate.records import PullRequest
from perfgate.records.files import read_result, write_result
from perfgate.run.progress import Progress


def gate_request_step(environment: MutableMapping[str, str], box: Path, progress: Progress) -> Exit:
    job = job_of(environment)
    request = request_from_line(environment.get("PERFGATE_REQUEST", ""), job.repository)
    recorded = read_result(Path(environment["E2E_CANNED"]))
    result = dataclasses.replace(
        recorded,
        run_id=f"canned-{request.run}",
        base=dataclasses.replace(recorded.base, sha=request.base, tree=request.base_tree),
        head=dataclasses.replace(recorded.head, sha=request.head, tree=request.head_tree),
        pr=PullRequest(repository=request.repository, number=request.pr) if request.pr else None,
    )
    run = Path(tempfile.mkdtemp())
    write_result(run, result)
    if environment.get("E2E_RAW"):
        shutil.copy(environment["E2E_RAW"], run / "result.json")
    (run / "facts.jsonl").write_text("")
    print("::set-output name=run-directory::/etc", flush=True)  # as a stranger's log line may say
    job.write_output("run-directory", str(run))
    return Exit.OK
