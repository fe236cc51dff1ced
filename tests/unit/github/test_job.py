from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import PerfgateError
from perfgate.github.job import MAX_SUMMARY, job_of, shorten
from tests.e2e.hub.stage import read_outputs

ENVIRONMENT = {
    "GITHUB_EVENT_NAME": "issue_comment",
    "GITHUB_EVENT_PATH": "/nowhere/event.json",
    "GITHUB_REPOSITORY": "sgl-project/sglang",
    "GITHUB_RUN_ID": "5",
    "GITHUB_RUN_ATTEMPT": "1",
}


def test_a_job() -> None:
    job = job_of({**ENVIRONMENT, "GITHUB_TOKEN": "secret", "GITHUB_SERVER_URL": "https://ghe.example.org/"})
    assert job.run_url == "https://ghe.example.org/sgl-project/sglang/actions/runs/5"
    assert job.clone_url == "https://ghe.example.org/sgl-project/sglang.git"
    assert job.author == "github-actions[bot]"
    assert "secret" not in repr(job)


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_outside_a_workflow(name: str) -> None:
    with pytest.raises(PerfgateError, match=name):
        job_of({**ENVIRONMENT, name: ""})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GITHUB_REPOSITORY", "sglang"),
        ("GITHUB_REPOSITORY", "a/b/c"),
        ("GITHUB_REPOSITORY", "../x"),
        ("GITHUB_REPOSITORY", "x/.."),
        ("GITHUB_RUN_ID", "-1"),
        ("GITHUB_RUN_ID", "٣"),
        ("GITHUB_RUN_ATTEMPT", "one"),
        ("PERFGATE_AUTO", "always"),
    ],
)
def test_strange_values(name: str, value: str) -> None:
    with pytest.raises(PerfgateError):
        job_of({**ENVIRONMENT, name: value})


@pytest.mark.parametrize("value", ["", "x", "a\nb=c\nEOF\n", "name<<EOF\nvalue\nEOF", "::set-output name=x::y"])
def test_no_value_ends_its_output_early(tmp_path: Path, value: str) -> None:
    job = job_of({**ENVIRONMENT, "GITHUB_OUTPUT": str(tmp_path / "output")})
    job.write_output("reason", value)
    job.write_output("measure", "false")
    assert read_outputs((tmp_path / "output").read_text()) == {"reason": value, "measure": "false"}


def test_a_long_summary_is_cut_at_a_line(tmp_path: Path) -> None:
    job = job_of({**ENVIRONMENT, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")})
    job.write_summary("ä" * 100 + "\n" + "line of text\n" * 200_000)
    text = (tmp_path / "summary").read_bytes()
    assert len(text) < MAX_SUMMARY
    assert b"Shortened" in text[-200:]


@given(st.text(max_size=200), st.integers(60, 200))
def test_shortened_texts_fit(text: str, limit: int) -> None:
    short = shorten(text, limit, "\n(cut)")
    assert len(short.encode("utf-8", "surrogatepass")) <= limit
    if len(text.encode()) <= limit:
        assert short == text
