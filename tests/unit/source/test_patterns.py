from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.source.patterns import matches

PART = st.text(st.sampled_from("ab.c"), min_size=1, max_size=4).filter(lambda part: part not in (".", ".."))
PATH = st.lists(PART, min_size=1, max_size=5).map("/".join)


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("docs/a/b.py", "docs*/**", True),
        ("docs_new/a.py", "docs*/**", True),
        ("python/docs/a.py", "docs*/**", False),
        ("docs", "docs/**", False),
        ("README.md", "*.md", True),
        ("python/sglang/srt/x.md", "*.md", True),
        ("python/sglang/srt/x.mdx", "*.md", False),
        ("python/x/LICENSE", "/LICENSE", False),
        ("LICENSE", "/LICENSE", True),
        ("a/b/c/d.py", "a/**/d.py", True),
        ("a/d.py", "a/**/d.py", True),
        ("a/b/d.pyc", "a/**/d.py", False),
        ("a/b/c", "a/*", True),  # a folder that matches takes all below it
        ("a", "a/*", False),
        ("x/eagle_worker.py", "*eagle*", True),
        ("anything", "", False),
        ("anything", "/", False),
        ("a/[b]", "a/[b]", False),
    ],
)
def test_examples(path: str, pattern: str, expected: bool) -> None:
    assert matches(path, pattern) is expected


@given(PATH)
def test_a_path_matches_itself_and_what_is_above_it(path: str) -> None:
    parts = path.split("/")
    assert matches(path, "/" + path)
    for depth in range(1, len(parts)):
        assert matches(path, "/" + "/".join(parts[:depth]) + "/**")
    assert matches(path, "/**")
    assert matches(path, parts[-1])


@given(PATH, PATH)
def test_another_first_folder_never_matches(path: str, other: str) -> None:
    assert not matches(path, f"/z{other}/**")


def test_a_hostile_path_costs_no_more_than_its_length() -> None:
    assert not matches("/".join("a" * 5000), "**/a/**/a/**/a/**/a/**/b")
