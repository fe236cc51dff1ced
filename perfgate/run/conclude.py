"""The end of a run, and of `perfgate judge`: result, comment and page from the facts alone.

A module of its own, for whoever judges a run again has no use for builds, servers and git.
"""

from __future__ import annotations

from pathlib import Path

from perfgate import records as r
from perfgate.conditions import assess_environment
from perfgate.errors import PerfgateError
from perfgate.judge.evidence import Evidence, RunFacts
from perfgate.judge.result import judge_run
from perfgate.records.files import read_facts, write_result, write_whole
from perfgate.report.comment import render_comment
from perfgate.report.page import render_page
from perfgate.run.evidence import kept_evidence
from perfgate.run.folder import COMMENT_FILE, PAGE_FILE


def conclude(run: Path) -> r.Result:
    """Verdict, result.json, comment and page of a run directory, from its facts and the evidence kept with them."""
    facts, result = judged(run)
    write_result(run, result)
    write_whole(run / COMMENT_FILE, render_comment(result))
    write_whole(run / PAGE_FILE, render_page(result, facts.facts))
    return result


def judged(run: Path) -> tuple[RunFacts, r.Result]:
    """The facts of a run directory and what they come to. Writes nothing."""
    facts = RunFacts.of(read_facts(run))
    if facts is None:
        raise PerfgateError("the run here never began", where=str(run), remedy="measure again")
    evidence = Evidence(facts, kept_evidence(run, facts.plan.continues))
    skipped = None
    if facts.plan.diff_class == "nothing" and not facts.launches and not facts.plan.calibration:
        skipped = facts.plan.diff_reason or "Nothing to measure: the diff touches no code that serves."
    return facts, judge_run(evidence, assess_environment(facts), skipped)
