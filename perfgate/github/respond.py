"""`perfgate respond`: the first job. Who asks for what, for which full SHA, may they, and is there anything to measure?

Runs on a hosted runner with a token, and with no code of the pull request: git reads its commits, nothing is checked
out. What is allowed leaves as one `Authorised`; everything else ends here. Always in the same order: gather, decide,
say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from perfgate.errors import PerfgateError
from perfgate.github import decide, words
from perfgate.github.client import Client, GithubError, Patience
from perfgate.github.commands import Command, Malformed, parse_command
from perfgate.github.commits import Comparison
from perfgate.github.events import CommentEvent, DispatchEvent, Event, MergeGroupEvent, PullEvent, read_event
from perfgate.github.gather import Known, gather, gather_refs, read_comparison
from perfgate.github.job import Job, job_of
from perfgate.github.outcome import Response
from perfgate.github.say import reply, say

_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,200}")


def respond_step(environment: Mapping[str, str], patience: Patience | None = None) -> None:
    job = job_of(environment)
    event = read_event(job.event_name, job.event_path)
    respond(job, Client(job, patience or Patience()), event)


def respond(job: Job, client: Client, event: Event) -> None:
    """Answers one event. Outputs `measure`, `cancel`, `pr`, `request`, `timeout-minutes` say what the workflow does."""
    match event:
        case PullEvent() | MergeGroupEvent():
            at_once = decide.at_once(event, job)
            if at_once is not None:
                say(job, client, at_once)
            elif isinstance(event, PullEvent):
                known = gather(job, client, event)
                _carry_out(job, client, known, decide.on_pull(event, known, job))
        case CommentEvent():
            command = parse_command(event.body) if decide.is_meant(event) else None
            if command is not None:
                _answered(job, client, event, command)
        case DispatchEvent():
            _on_refs(job, client, event)


def _answered(job: Job, client: Client, event: CommentEvent, command: Command | Malformed) -> None:
    """A command is never met with silence: what goes wrong on the way to its answer is told under it, too."""
    with suppress(GithubError):  # the sign that it was seen, and no more: other workflows give the same one
        client.react(event.comment, "eyes")
    try:
        known = gather(job, client, event)
        decision = decide.on_command(command, event, known, job)
        _carry_out(job, client, known, decision, event)
    except Exception as error:
        what = error.what if isinstance(error, PerfgateError) else f"perfgate failed ({type(error).__name__})"
        with suppress(GithubError):
            reply(job, client, event, words.went_wrong(what, job.run_url))
        raise


def _carry_out(
    job: Job,
    client: Client,
    known: Known,
    decision: Response | decide.Measure,
    event: CommentEvent | None = None,
) -> None:
    if isinstance(decision, decide.Measure):
        found = _compared(job, known, decision)
        decision = decide.on_comparison(decision, known, found, job)
    say(job, client, decision, event)


def _compared(job: Job, known: Known, start: decide.Measure) -> Comparison | PerfgateError:
    if known.fault:
        return PerfgateError(known.fault, where=f"perfgate.yml of the base branch, {words.sha(known.tip)}")
    try:
        return read_comparison(job, known.tip, start.head, known.config, exact=False)
    except PerfgateError as error:
        return error


def _on_refs(job: Job, client: Client, event: DispatchEvent) -> None:
    """Two refs of this repository, named by somebody who may start workflows. Without a base: the merge base."""
    for name, ref in (("base", event.base), ("head", event.head)):
        if (ref or name == "head") and not (_REF.fullmatch(ref) and ".." not in ref):
            raise PerfgateError("not the name of a branch, a tag or a SHA", where=f"input {name}")
    refs = gather_refs(job, client, event)
    if refs.fault:
        raise PerfgateError(refs.fault, where=f"perfgate.yml of {words.sha(job.sha)}")
    found = read_comparison(job, refs.tip, refs.head, refs.config, exact=bool(event.base))
    say(job, client, decide.on_refs(refs, found, job))
