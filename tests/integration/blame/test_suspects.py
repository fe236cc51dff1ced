"""Suspects as people meet them: `perfgate judge` and `perfgate report` on the story's run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfgate import records as r
from perfgate.cli import app
from perfgate.records.files import FACTS_FILE, fact_to_line, read_facts

STORY = Path("tests/fixtures/run-story")
SRT = "python/sglang/srt/"
PULL = (
    r.Touched(
        sha="0be30d4" + "0" * 33,
        title="Fix PCG MoE Error (#17739)",
        paths=(f"{SRT}model_executor/piecewise_cuda_graph_runner.py", f"{SRT}compilation/piecewise_context_manager.py"),
    ),
    r.Touched(
        sha="82a0baf" + "0" * 33,
        title="FlashInfer selective_state_update (#18070)",
        paths=(f"{SRT}layers/attention/mamba/ops/mamba_ssm.py",),
    ),
    r.Touched(sha="48642d5" + "0" * 33, title="RadixTree refactor", paths=(f"{SRT}mem_cache/radix_cache.py",)),
)
CULPRIT = r.Touched(sha="c" * 40, title="Tidy the worker", paths=(f"{SRT}speculative/eagle_worker_v2.py", "docs/a.md"))


def told(tmp_path: Path, touched: tuple[r.Touched, ...]) -> tuple[str, dict[str, object]]:
    """The comment and the result of the story's run, had these commits been pulled."""
    run = tmp_path / "run"
    shutil.copytree(STORY, run)
    facts = [
        replace(fact, touched=touched, recipes=tuple(replace(one, model="openai/gpt-oss-120b") for one in fact.recipes))
        if isinstance(fact, r.Plan)
        else fact
        for fact in read_facts(run)
    ]
    (run / FACTS_FILE).write_text("".join(map(fact_to_line, facts)))
    judged = CliRunner().invoke(app, ["judge", str(run)])
    assert judged.exit_code == 1, judged.output
    shown = CliRunner().invoke(app, ["report", str(run)])
    assert shown.exit_code == 0, shown.output
    return shown.output, json.loads((run / "result.json").read_text())


def test_the_storys_three_titles_are_no_suspects_and_that_is_said(tmp_path: Path) -> None:
    comment, result = told(tmp_path, PULL)
    assert result["suspects"] == []
    assert "Suspicion" not in comment
    assert "Nothing in these commits touches what moved" in comment


def test_the_one_that_touches_verify_is_a_suspicion(tmp_path: Path) -> None:
    comment, result = told(tmp_path, (*PULL, CULPRIT))
    suspects = result["suspects"]
    assert isinstance(suspects, list)
    assert [one["sha"] for one in suspects] == [CULPRIT.sha]
    assert "**Suspicion: where to look first** (by what was touched; none of it was measured alone)" in comment
    assert "Tidy the worker" in comment


def test_of_a_single_commit_its_files_are_ranked(tmp_path: Path) -> None:
    _, result = told(tmp_path, (CULPRIT,))
    suspects = result["suspects"]
    assert isinstance(suspects, list)
    assert [one["title"] for one in suspects] == [CULPRIT.paths[0]]


@pytest.mark.parametrize("touched", [(), (r.Touched(sha="d" * 40, title="Docs", paths=("docs/a.md",)),)])
def test_docs_alone_are_no_suspect(tmp_path: Path, touched: tuple[r.Touched, ...]) -> None:
    _, result = told(tmp_path, touched)
    assert result["suspects"] == []
