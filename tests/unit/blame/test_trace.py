"""The parts of a trace that need no repository: logs, the files of today, a reflog's lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfgate.blame.trace.dirty import FileNow, TreeState, state_then
from perfgate.blame.trace.history import History, parse_reflog
from perfgate.blame.trace.log import Log, read_log
from perfgate.errors import PerfgateError

LOGS = Path("tests/fixtures/sglang-logs")
A, B, C = "a" * 40, "b" * 40, "c" * 40


def one(path: Path, text: str | bytes) -> Log:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    (log,) = read_log(path)
    return log


def test_a_real_log_of_sglang() -> None:
    (log,) = read_log(LOGS / "eagle3.log")
    said = log.fingerprint
    assert log.first is not None
    assert str(log.first.time).startswith("2026-11-30 02:16")
    assert log.first.zone is None
    assert said.arguments["model_path"] == "models/target"
    assert said.ran_from == ("site-packages",)
    assert said.speculation == "v2"


def test_the_first_line_after_idle_is_no_speed(tmp_path: Path) -> None:
    line = "[2026-02-25 16:42:0{}] Decode batch, #running-req: 1, gen throughput (token/s): {}, #queue-req: 0, \n"
    log = one(tmp_path / "a.log", "".join(line.format(n, tok_s) for n, tok_s in enumerate((0.39, 88.0, 89.0, 90.0))))
    assert log.fingerprint.tok_s == 89.0


@pytest.mark.parametrize(
    ("line", "versions", "images"),
    [
        ("sglang==0.5.9.dev12+gbba2fc4 is installed", ("0.5.9.dev12+gbba2fc4",), ()),
        ("docker run lmsysorg/sglang:v0.5.9-cu129", (), ("v0.5.9-cu129",)),
        ("[2026-02-25 16:42:00] SGLang version: 0.5.9", ("0.5.9",), ()),
    ],
)
def test_versions_and_images(tmp_path: Path, line: str, versions: tuple[str, ...], images: tuple[str, ...]) -> None:
    said = one(tmp_path / "a.log", line + "\n").fingerprint
    assert (said.versions, said.images) == (versions, images)


def test_nccl_settings_of_the_log(tmp_path: Path) -> None:
    said = one(tmp_path / "a.log", "box:1:2 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 16777216.\n").fingerprint
    assert said.said()["NCCL_BUFFSIZE (set)"] == "16777216"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(st.binary(max_size=300))
def test_whatever_is_in_a_file_is_no_error(tmp_path: Path, content: bytes) -> None:
    read_log_of = tmp_path / "any.log"
    read_log_of.write_bytes(content)
    assert read_log(read_log_of)
    parse_reflog(content)


def test_a_folder_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(PerfgateError, match="cannot be read"):
        read_log(tmp_path)


# ---------------------------------------------------------------------------------------------------- the files then


@pytest.mark.parametrize(
    ("now", "state"),
    [
        ({"a.py": FileNow(50, A), "b.py": FileNow(50, B)}, TreeState.CLEAN),
        ({"a.py": FileNow(50, A), "b.py": FileNow(50, C)}, TreeState.DIRTY),
        (
            {"a.py": FileNow(50, A), "b.py": FileNow(150, B)},
            TreeState.UNKNOWN,
        ),  # written since: then it may have been another
        ({"a.py": FileNow(50, A)}, TreeState.UNKNOWN),  # deleted, nobody knows when
        ({"a.py": FileNow(50, A), "b.py": FileNow(50, B), "new.py": FileNow(50, C)}, TreeState.UNKNOWN),
    ],
)
def test_files_then(now: dict[str, FileNow], state: TreeState) -> None:
    assert state_then(now, {"a.py": A, "b.py": B}, began=100).state is state


# ---------------------------------------------------------------------------------------------------- the reflog


def reflog(*entries: tuple[str, str, int]) -> History:
    raw = b"\n".join(
        f"{old} {new} Some Body <a@b> {time} +0100\tpull: Fast-forward".encode() for old, new, time in entries
    )
    moves = parse_reflog(raw)
    return History("/repo", moves, moves[-1].new if moves else None, whole_since=0)


def test_heads_of_a_whole_chain() -> None:
    history = reflog(("0" * 40, A, 100), (A, B, 200))
    assert history.heads(150, 150) == {A}
    assert history.heads(150, 250) == {A, B}
    assert history.heads(250, 300) == {B}
    assert history.heads(50, 50) == {None}
    assert history.begins == 100


def test_a_broken_chain_is_not_known() -> None:
    assert reflog(("0" * 40, A, 100), (C, B, 200)).heads(150, 150) == {A, C, None}


def test_times_that_go_back_are_not_known() -> None:
    assert None in reflog(("0" * 40, A, 100), (A, B, 300), (B, C, 200)).heads(250, 250)
