from __future__ import annotations

import pytest

from perfgate.source.trees import OddTree, TreeEntry, check_names
from perfgate.store.manifest import difference


def _entries(*paths: bytes) -> list[TreeEntry]:
    return [TreeEntry("100644", "a" * 40, 1, path) for path in paths]


@pytest.mark.parametrize(
    "paths",
    [
        [b"../x"],
        [b"a/../../x"],
        [b"/etc/passwd"],
        [b"a//b"],
        [b"."],
        [b".git/hooks/post-checkout"],
        [b"a/.GIT/config"],
        [b"link", b"link/inside"],
        [b"same", b"same"],
        [b"x" * 5000],
        [b"x" * 256],
        [b"/".join([b"x"] * 1500)],
        [b"/".join([b"x" * 250] * 13)],
        [b""],
    ],
)
def test_names_that_lead_astray_are_refused(paths: list[bytes]) -> None:
    with pytest.raises(OddTree, match="no checkout may have"):
        check_names(_entries(*paths))


def test_odd_but_harmless_names_are_fine() -> None:
    check_names(_entries(b"a b", b"-rf", b"\xff\xfe", b"new\nline", b"...", b".gitignore", b"link.d/x", b"link"))


def test_a_difference_names_the_first_path() -> None:
    before = b"a\t100644 1 1 1 1\t\nb\t100644 1 1 1 1\t\n"
    assert difference(before, before) == ""
    assert difference(before, before.replace(b"b\t100644 1", b"b\t100644 2")) == "b was changed"
    assert difference(before, b"a\t100644 1 1 1 1\t\n") == "b is gone"
    assert difference(before, before + b"c\tx\t\n" + b"d\tx\t\n") == "c and 1 more is new"
