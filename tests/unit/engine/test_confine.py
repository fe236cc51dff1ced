"""The confined command line, without running it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.host.sandbox import UNCONFINED, Confinement, Isolation, SandboxError, confine, interpreter_folders
from perfgate.host.trial import choose

BUBBLEWRAP = Confinement(kind=Isolation.BUBBLEWRAP, hidden=(Path("/tmp"), Path("/home")))
ROOT = replace(BUBBLEWRAP, uid=65534, gid=65534)


def command(confinement: Confinement, **more: object) -> tuple[str, ...]:
    arguments: dict[str, object] = {"readable": [], "writable": [], "cwd": Path("/w")} | more
    return confine(["python", "x.py"], {"A": "b", "LD_PRELOAD": "/tree/evil.so"}, confinement=confinement, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("confinement", [BUBBLEWRAP, ROOT, UNCONFINED, Confinement(kind=Isolation.USER, uid=7, gid=7)])
def test_the_command_comes_last_and_unchanged(confinement: Confinement) -> None:
    assert command(confinement)[-2:] == ("python", "x.py")


def test_bubblewrap_starts_from_nothing_of_ours() -> None:
    argv = command(BUBBLEWRAP)
    assert argv[0] == "bwrap"
    assert argv.index("--clearenv") < argv.index("--setenv")
    assert {"--unshare-user", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session"} <= set(argv)
    assert " ".join(argv).index("--ro-bind / /") < " ".join(argv).index("--tmpfs /home")


def test_root_becomes_somebody_else_inside() -> None:
    argv = command(ROOT)
    assert "--unshare-user" not in argv
    inside = argv[argv.index("--") + 1 :]
    assert inside[0] == "setpriv"
    assert {"--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--bounding-set=-all"} <= set(inside)


def test_another_user_is_become_before_the_environment_is_set() -> None:
    """A library named in the environment must not be loaded with root's powers."""
    argv = command(Confinement(kind=Isolation.USER, uid=7, gid=8))
    assert argv[0] == "setpriv"
    assert argv.index("/usr/bin/env") > argv.index("--reuid=7")
    assert argv.index("LD_PRELOAD=/tree/evil.so") > argv.index("/usr/bin/env")


def test_paths_in_hidden_folders_are_shown_again_with_parents_that_others_may_pass() -> None:
    text = " ".join(
        command(BUBBLEWRAP, readable=[Path("/home/u/env"), Path("/usr/lib")], writable=[Path("/home/u/env/h")])
    )
    assert "--dir /home/u --ro-bind /home/u/env /home/u/env --bind /home/u/env/h /home/u/env/h" in text
    assert "/usr/lib" not in text


def test_a_folder_inside_a_hidden_one_is_not_hidden_twice() -> None:
    text = " ".join(command(replace(BUBBLEWRAP, hidden=(Path("/home"), Path("/home/u/runner")))))
    assert text.count("--tmpfs /home") == 1


PARTS = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: Path("/", *parts))


@given(st.lists(PATHS, max_size=4), st.lists(PATHS, max_size=4), st.lists(PATHS, max_size=4))
def test_every_path_is_mounted_after_what_lies_around_it(
    hidden: list[Path], readable: list[Path], writable: list[Path]
) -> None:
    argv = command(replace(BUBBLEWRAP, hidden=tuple(hidden)), readable=readable, writable=writable)
    binds = [Path(argv[at + 2]) for at, part in enumerate(argv) if part in ("--bind", "--ro-bind")][1:]
    for before, after in pairwise(binds):
        assert after not in before.parents
    assert set(writable) <= set(binds)
    hides = [at for at, part in enumerate(argv) if part == "--tmpfs"]
    first_bind = min((at for at, part in enumerate(argv) if part == "--bind"), default=len(argv))
    assert all(at < first_bind for at in hides)


def test_an_interpreter_needs_its_environment_and_what_that_was_made_from(tmp_path: Path) -> None:
    real = tmp_path / "python-3.12" / "bin" / "python3.12"
    real.parent.mkdir(parents=True)
    real.touch()
    link = tmp_path / "env" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    assert set(interpreter_folders(link)) == {tmp_path / "env", tmp_path / "python-3.12"}


def test_an_unknown_user_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(SandboxError) as caught:
        choose("user", run_as="nobody-of-that-name")
    assert "nobody-of-that-name" in str(caught.value)


def test_no_isolation_is_only_taken_when_asked_for() -> None:
    assert choose("none") == UNCONFINED
