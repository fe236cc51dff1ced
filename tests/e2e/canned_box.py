"""Laid over perfgate/github/box.py where a test is about everything but measuring: it "measures" a recorded run."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from perfgate.errors import Exit
from perfgate.github.job import job_of
from perfgate.github.request import Authorised, request_from_line
from perfgate.records.files import write_result
from perfgate.run.conclude import judged
from perfgate.run.plan import workflow_suffix
from perfgate.run.progress import Progress


def gate_request_step(environment: MutableMapping[str, str], box: Path, progress: Progress) -> Exit:
    job = job_of(environment)
    request = request_from_line(environment.get("PERFGATE_REQUEST", ""), job.repository)
    run = Path(tempfile.mkdtemp())
    (run / "facts.jsonl").write_text(_facts(request, Path(environment["E2E_CANNED"]) / "facts.jsonl"))
    write_result(run, judged(run)[1])
    if environment.get("E2E_RAW"):
        shutil.copy(environment["E2E_RAW"], run / "facts.jsonl")
    print("::set-output name=run-directory::/etc", flush=True)  # as a stranger's log line may say
    job.write_output("run-directory", str(run))
    return Exit.OK


def _facts(request: Authorised, recorded: Path) -> str:
    """The recorded facts, as if they had been measured for this request."""
    first, *others = recorded.read_text().splitlines(keepends=True)
    plan = json.loads(first)
    plan |= {"config": request.config, "run_id": f"canned{workflow_suffix(request.run)}"}
    plan["pr"] = {"repository": request.repository, "number": request.pr} if request.pr else None
    plan["base"] |= {"sha": request.base, "tree": request.base_tree}
    plan["head"] |= {"sha": request.head, "tree": request.head_tree}
    return "".join([json.dumps(plan) + "\n", *others])
