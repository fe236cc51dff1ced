"""`perfgate gate-request`: the job on the box. Fetches what was authorised and runs the gate on it. Has no token.

On a private repository it is given one that can read this repository and nothing else; git gets it, and it is out of
the environment before anything of the pull request runs.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from perfgate.config.files import load_box
from perfgate.config.model import BoxFile
from perfgate.errors import Exit, PerfgateError
from perfgate.github.commits import Origin, collect_garbage, fetch_commits
from perfgate.github.job import Job, job_of
from perfgate.github.request import Authorised, request_from_line
from perfgate.host.public import public
from perfgate.host.sandbox import Isolation
from perfgate.host.trial import choose
from perfgate.records import PullRequest
from perfgate.run.gate import GateOutcome, run_gate
from perfgate.run.plan import GateRequest
from perfgate.run.progress import Progress
from perfgate.run.public import write_public
from perfgate.store.folders import Store
from perfgate.text import visible

WAIT_FOR_BOX_S = 30 * 60.0  # where another runner's gate has the box; a part of decide.SLACK_MINUTES
MAX_REASON = 300
RUNNERS = ("Runner.Worker", "Runner.Listener")
SECRETS = ("GITHUB_TOKEN", "PERFGATE_FETCH_TOKEN", "ACTIONS_RUNTIME_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN")


def gate_request_step(environment: MutableMapping[str, str], box: Path, progress: Progress) -> Exit:
    """Measures. The verdict is publish's to tell: a run that came to one ends well here, whatever it is."""
    job = job_of(environment)
    request = request_from_line(environment.get("PERFGATE_REQUEST", ""), job.repository)
    token = environment.get("PERFGATE_FETCH_TOKEN", "")
    for name in SECRETS:
        environment.pop(name, None)
    try:
        about = load_box(box)
        outcome = _gate(job, request, box, about, token, progress)
        job.write_output("run-directory", str(_copied(outcome.run, about)))
    except PerfgateError as error:
        job.write_output("reason", public(visible(str(error), MAX_REASON)))
        raise
    return Exit.OK if outcome.result is not None else outcome.exit_code


def _copied(run: Path, about: BoxFile) -> Path:
    """What is uploaded. It names the user that servers run as no more than anybody else."""
    try:
        return write_public(run, frozenset({about.run_as} if about.run_as else ()))
    except OSError as error:
        raise PerfgateError(f"no copy for the artifact: {error.strerror}", where=str(run)) from error


def _gate(job: Job, request: Authorised, box: Path, about: BoxFile, token: str, progress: Progress) -> GateOutcome:
    runner = runner_folders(os.environ)
    if request.fork:
        check_isolated(choose(about.isolation, run_as=about.run_as).kind, runner)
    with Store(Path(about.state_dir)) as store:
        repository = fetched(job, request, store, token)
        return run_gate(gate_request(request, repository, box, runner), progress)


def check_isolated(kind: Isolation, runner: Sequence[Path]) -> None:
    """Code from a fork runs only where it is confined, and cannot reach the runner's own files."""
    if kind is Isolation.NONE:
        raise PerfgateError(
            "the box cannot confine strangers' code, so pull requests from forks are refused",
            remedy="install bubblewrap, or give `run_as` a second user: docs/security.md",
        )
    open_to_all = [folder for folder in runner if kind is Isolation.USER and _open_to_all(folder)]
    if open_to_all:
        raise PerfgateError(
            "every user can read the runner's folder, so pull requests from forks are refused",
            where=str(open_to_all[0]),
            remedy=f"chmod go= {open_to_all[0]}, or install bubblewrap",
        )


def _open_to_all(folder: Path) -> bool:
    """Whether any user gets there: every folder on the way lets others pass."""
    return all(path.stat().st_mode & stat.S_IXOTH for path in (folder, *folder.parents) if path.exists())


def fetched(job: Job, request: Authorised, store: Store, token: str) -> Path:
    """The box's own copy of the repository, with the commits of the request in it; held until the store is closed."""
    name = re.sub(r"[^A-Za-z0-9.-]", "_", f"{job.server_url.partition('://')[2]}_{request.repository.lower()}")
    folder = store.use("repositories", f"{name}.git")
    origin = Origin(job.clone_url, token)
    fetch_commits(folder, origin, (request.base, request.head, request.config), blobs=True)
    collect_garbage(folder, origin)
    return folder


def runner_folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where GitHub's runner keeps its credentials, its work and the files it takes commands from."""
    work = [Path(environment[name]) for name in ("GITHUB_WORKSPACE", "RUNNER_TEMP") if environment.get(name)]
    found = {folder.parent for folder in work}
    for process in psutil.Process().parents():
        with suppress(psutil.Error):
            if process.name() in RUNNERS:
                found.add(Path(process.exe()).parents[1])  # …/actions-runner/bin/Runner.Worker
    return tuple(sorted(path for path in found if path != Path("/")))


def gate_request(request: Authorised, repository: Path, box: Path, hidden: tuple[Path, ...]) -> GateRequest:
    return GateRequest(
        repo=repository,
        base=request.base,
        head=request.head,
        base_branch=request.config,
        box=box,
        measure=request.recipes,
        wait_s=WAIT_FOR_BOX_S,
        hidden=hidden,
        workflow_run=request.run,
        pr=PullRequest(repository=request.repository, number=request.pr) if request.pr else None,
    )
