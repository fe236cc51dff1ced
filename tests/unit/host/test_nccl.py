"""What NCCL says of itself, however its log is mixed, cut or forged; and the settings it may get from elsewhere."""

from __future__ import annotations

import os
import random
from itertools import pairwise, zip_longest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.host import nccl
from perfgate.host.nccl import NcclReport, read_nccl_logs
from perfgate.host.nccl_paths import all_reduce_in, all_reduce_of, nccl_files, stray_settings
from tests.unit.host.nccl_logs import HOST, choices, rank_lines, sender

TUNING = {"NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS", "NCCL_MIN_NCHANNELS": "8", "NCCL_BUFFSIZE": "16777216"}


def read(tmp_path: Path, *texts: str) -> NcclReport:
    files = [tmp_path / f"{HOST}.{number}" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    return read_nccl_logs(files)


def assert_the_story(report: NcclReport) -> None:
    assert [one.rank for one in report.ranks] == list(range(8))
    for one in report.ranks:
        assert one.variables == TUNING
        assert one.invalid == {"NCCL_NTHREADS": "many"}
        assert (one.coll_channels, one.p2p_channels) == (8, 8)
        assert one.links == {"P2P/IPC": 8}
        assert one.communicators == 1
        assert one.device == one.rank
    assert report.paths == ("PHB/PIX",)


def test_a_file_per_rank(tmp_path: Path) -> None:
    report = read(tmp_path, *("\n".join(rank_lines(rank)) + "\n" for rank in range(8)))
    assert_the_story(report)
    assert report.versions == ("2.27.5+cuda12.9",)
    assert report.matrix["AllReduce"] == {"protocols": ("LL", "Simple"), "algorithms": ("Ring",)}


def test_eight_ranks_line_by_line_in_one_file(tmp_path: Path) -> None:
    lines = [line for step in zip_longest(*map(rank_lines, range(8))) for line in step if line]
    assert_the_story(read(tmp_path, "\n".join(lines) + "\n"))


def test_messages_broken_into_by_others(tmp_path: Path) -> None:
    """Rank 1's line begins in the middle of rank 0's, whose rest comes later."""
    first, second = rank_lines(0), rank_lines(1)
    broken = f"{sender(0)}NCCL_NTHREADS set by environment to 512{sender(1)}NCCL_ALGO set by environment to Ring\n.\n"
    report = read(tmp_path, "\n".join((*first, *second)) + "\n" + broken)
    assert report.ranks[0].variables == {**TUNING, "NCCL_NTHREADS": "512"}
    assert report.ranks[1].variables == {**TUNING, "NCCL_ALGO": "Ring"}


@pytest.mark.parametrize("release", ["2.18.3", "2.21.5", "2.27.5", "2.30.7"])
def test_releases(tmp_path: Path, release: str) -> None:
    lines = [line for rank in range(8) for line in rank_lines(rank, release=release)]
    report = read(tmp_path, "\n".join((*lines, *choices(release))) + "\n")
    assert_the_story(report)
    assert report.versions == (f"{release}+cuda12.9",)
    assert report.choices == {f"AllReduce {size}": "RING/LL" for size in (32768, 65536, 262144)}


@given(st.data())
def test_cut_off_anywhere_it_says_no_more_than_the_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = "\n".join(line for rank in range(2) for line in rank_lines(rank, ranks=2)) + "\n"
    cut = data.draw(st.integers(0, len(text)))
    folder = tmp_path_factory.mktemp("nccl")
    whole, part = read(folder, text), read(folder, text[:cut])
    known = {one.pid: one for one in whole.ranks}
    for one in part.ranks:
        assert set(one.variables) <= set(known[one.pid].variables)
        assert one.invalid.keys() <= known[one.pid].invalid.keys()
        for kind, number in one.links.items():
            assert number <= known[one.pid].links.get(kind, 0) or kind not in known[one.pid].links


def test_blocks_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(line for rank in range(8) for line in rank_lines(rank)) + "\n"
    for size in (1, 7, 61, 500):
        monkeypatch.setattr(nccl, "BLOCK", size)
        assert_the_story(read(tmp_path, text))


@given(st.binary(max_size=2000))
def test_junk_is_nothing(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("nccl") / "log"
    path.write_bytes(junk)
    assert read_nccl_logs([path]).ranks == ()


@given(st.lists(st.sampled_from(rank_lines(0) + rank_lines(1) + choices()), max_size=40), st.randoms())
def test_shuffled_and_spliced_lines_never_crash(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], draw: random.Random
) -> None:
    text = "\n".join(lines)
    at = sorted(draw.sample(range(len(text) + 1), k=min(4, len(text) + 1)))
    spliced = "".join(text[b:] + text[:a] for a, b in pairwise(at))
    report = read(tmp_path_factory.mktemp("nccl"), spliced)
    assert all(name.startswith("NCCL_") for one in report.ranks for name in one.variables)


def test_a_forged_log_stays_bounded(tmp_path: Path) -> None:
    """Too many names, ranks and warnings, and values without end."""
    text = "".join(
        f"h:{4000 + n % 1000}:1 [0] NCCL INFO NCCL_X{n} set by environment to {'v' * 9000}\n"
        f"h:1:1 [0] a.cc:1 NCCL WARN warning {n}\n"
        for n in range(3000)
    )
    report = read(tmp_path, text)
    assert len(report.ranks) == nccl.MAX_RANKS
    assert len(report.warnings) == nccl.MAX_WARNINGS
    assert max(len(value) for one in report.ranks for value in one.variables.values()) == nccl.MAX_VALUE


def test_a_sparse_file_of_terabytes_is_read_at_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"NCCL version 2.27.5+cuda12.8\n")
    os.truncate(path, 8 << 40)
    assert read_nccl_logs([path, path]).versions == ("2.27.5+cuda12.8",)


def test_warnings_name_no_machine(tmp_path: Path) -> None:
    prefix = f"[2026-11-30 10:00:00] {HOST}:4000:4000 [0] net.cc:12 (connect)"
    text = "\n".join((*rank_lines(0), "", f"{prefix} NCCL WARN no route to {HOST} at 10.20.30.40", ""))
    (warning,) = read(tmp_path, text).warnings
    assert warning.startswith("no route to #")
    assert HOST not in warning
    assert "10.20.30.40" not in warning


def test_no_file_is_an_empty_report(tmp_path: Path) -> None:
    assert read_nccl_logs([tmp_path / "absent"]) == NcclReport()


# ------------------------------------------------------------------------------------------------ from elsewhere


def test_a_variable_of_perfgate_s_shell_is_lost_and_told() -> None:
    given_ = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
    own = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Tree", "NCCL_P2P_LEVEL": "SYS", "PATH": "/bin", "NCCL_DEBUG": "WARN"}
    assert [(one.name, one.value) for one in stray_settings(given_, own)] == [
        ("NCCL_ALGO", "Tree"),
        ("NCCL_P2P_LEVEL", "SYS"),
    ]
    assert "servers run without it" in str(stray_settings(given_, own)[1])


def test_a_file_works_unseen_and_is_told(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("# NCCL_ALGO=Tree\nNCCL_PROTO=Simple\nNCCL_MIN_NCHANNELS=8\nnot a setting\n")
    found = stray_settings({"NCCL_PROTO": "LL"}, {}, [conf])
    assert [str(one) for one in found] == [
        f"NCCL_MIN_NCHANNELS=8 in {conf}: NCCL reads it in every server behind perfgate's back"
    ]


def test_the_file_that_is_named_comes_first(tmp_path: Path) -> None:
    conf = tmp_path / "mine.conf"
    conf.write_text("NCCL_PROTO=LL\n")
    assert nccl_files({"NCCL_CONF_FILE": str(conf)})[0] == conf
    assert conf not in nccl_files({})
    assert nccl_files({"NCCL_CONF_FILE": str(tmp_path)}, users=["no-such-user"]) == nccl_files({})


@pytest.mark.parametrize(
    ("ranks", "flags", "log", "route", "matters"),
    [
        (1, {}, "", "none", False),
        (8, {}, "", "unknown", None),
        (8, {"disable-custom-all-reduce": True}, "", "nccl", True),
        (
            8,
            {},
            "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence",
            "nccl",
            True,
        ),
        (8, {}, "CustomAllReduceV2 is disabled because your platform lacks GPU P2P capability", "nccl", True),
        (8, {}, "[AR] All-reduce call path: NCCL (custom AR disabled)", "nccl", True),
        (2, {}, "[2026-11-30 10:00:00 TP0] Registering 1234 cuda graph addresses", "custom", False),
        (8, {"enable-flashinfer-allreduce-fusion": True}, "", "unknown", None),
        (8, {}, "server_args=ServerArgs(flashinfer_allreduce_fusion_backend='auto', tp_size=8)", "unknown", None),
        (8, {}, "[TP2] FlashInfer workspace initialized for rank 2, world_size 8, backend trtllm", "fusion", False),
        (
            8,
            {},
            "FlashInfer AllReduce Fusion enabled and workspace initialized: backend=trtllm, rank=0, world_size=8",
            "fusion",
            False,
        ),
        (
            8,
            {},
            "Custom allreduce is disabled because …\nFlashInfer PCIe-IPC all-reduce enabled (world=8, workspace)",
            "pcie_ipc",
            False,
        ),
        (
            8,
            {},
            "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE is set but this FlashInfer build has no pcie_ipc_comm",
            "unknown",
            None,
        ),
    ],
)
def test_which_all_reduce_was_active(
    ranks: int, flags: dict[str, object], log: str, route: str, matters: bool | None, tmp_path: Path
) -> None:
    seen = all_reduce_of(ranks, flags, log)
    assert (seen.route, seen.tuning_matters) == (route, matters)
    (tmp_path / "log").write_text(log)
    assert all_reduce_in(ranks, flags, tmp_path / "log") == seen


FAILED = (
    "[TP0] server_args=ServerArgs(flashinfer_allreduce_fusion_backend='auto')\n"
    "[TP3] FlashInfer workspace initialized for rank 3, world_size 8, backend trtllm\n"
    "[TP0] Failed to initialize FlashInfer workspace (backend=trtllm): pidfd_getfd: Operation not permitted."
    " Disabling flashinfer allreduce fusion permanently.\n"
    "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs.\n"
)


def test_a_fusion_that_was_asked_for_and_failed_is_told_with_what_prevents_it() -> None:
    seen = all_reduce_of(8, {"enable-flashinfer-allreduce-fusion": True}, FAILED)
    assert (seen.route, seen.tuning_matters) == ("nccl", True)
    assert seen.prevented == ("pidfd_getfd: Operation not permitted (kernel.yama.ptrace_scope forbids pidfd_getfd)")


def test_names_of_this_machine_do_not_leave_it() -> None:
    from perfgate.host.public import public

    text = f"{os.uname().nodename} 192.168.1.17 /home/anna/x GPU-4f1c0a3e-1111-2222-3333-444455556666 127.0.0.1 ok"
    shown = public(text)
    for secret in (os.uname().nodename, "192.168.1.17", "anna", "4f1c0a3e"):
        assert secret not in shown
    assert "127.0.0.1 ok" in shown
    assert public(text) == shown, "stable"
