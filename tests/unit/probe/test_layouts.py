"""Every row of the target table, on stand-ins with the layouts of eleven releases; and what moved, told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from perfgate.errors import PerfgateError
from perfgate.probe.inside.targets import OLDEST, TARGETS, expected_in, release_of
from perfgate.probe.layout import Layout, check_layout, check_tree, read_layout, tree_report, unusable
from perfgate.probe.reading import read_probe
from tests.unit.probe.standin import MS, RELEASES, StandIn, families_of, layout_of

CASES = [(release, family) for release in RELEASES for family in [*families_of(layout_of(release)), "plain"]]


def test_releases_across_the_range_are_recorded() -> None:
    assert len(RELEASES) == 11
    assert RELEASES[0] == OLDEST
    wanted = {(0, 5, 2), (0, 5, 12), (0, 5, 13), (0, 5, 23)}  # the last with the old name of V1's cycle; V1's last
    assert {release_of(release) for release in RELEASES} >= wanted


def test_every_row_is_exercised() -> None:
    ran = {family for _, family in CASES} | {"proof"}
    assert {target.family for target in TARGETS} == ran


@pytest.mark.parametrize("release", RELEASES)
def test_recorded_layouts_have_every_row(release: str) -> None:
    layout = layout_of(release)
    assert check_layout(layout) == []
    if release_of(release) >= (0, 5, 8):  # as a checkout, whose release is not known
        assert check_layout(replace(layout, version=None)) == []


@pytest.mark.parametrize(("release", "family"), CASES)
def test_phases_of_every_family(tmp_path: Path, release: str, family: str) -> None:
    probe_dir = tmp_path / "probe"
    probe_dir.mkdir()
    ms = {phase: value / 20 for phase, value in MS.items()}
    done = StandIn(tmp_path / "tree", layout_of(release), ms=ms).write().run(family, probe_dir)
    assert done.returncode == 0, done.stderr
    (process,) = read_probe(probe_dir, launch="l1").processes
    cycles = [cycle for cycle in process.cycles if not cycle.mark]
    assert len(cycles) == 8
    assert sum(cycle.mark == "warmup" for cycle in process.cycles) == 16
    assert process.targets["sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation"] == "patched"
    phases = ("decode",) if family == "plain" else ("cycle", "draft", "verify", "draft_extend", "target")
    wanted = {**ms, "target": ms["decode"], "cycle": ms["draft"] + ms["verify"] + ms["draft_extend"]}
    for phase in ("cycle", "draft", "verify", "draft_extend", "target", "decode"):
        timed = [getattr(cycle, phase) for cycle in cycles]
        if phase in phases:
            assert median(timed) >= wanted[phase]
        else:
            assert timed == [None] * 8


@pytest.mark.parametrize("family", ["eagle_v1", "eagle_v2"])
def test_device_time_is_read_late_out_of_order_and_never_waited_for(tmp_path: Path, family: str) -> None:
    (tmp_path / "probe").mkdir()
    standin = StandIn(tmp_path / "tree", layout_of("0.5.9"), device="cuda", latency=7, shuffled=True).write()
    done = standin.run(family, tmp_path / "probe", cycles=40)
    assert done.returncode == 0, done.stderr
    (process,) = read_probe(tmp_path / "probe").processes
    assert process.clock == "cuda_events"
    assert process.gpu == "3 Fake GPU"
    cycles = [cycle for cycle in process.cycles if not cycle.mark]
    assert 30 <= len(cycles) < 40  # the last ones were not ready when the process ended
    assert [cycle.number for cycle in cycles] == sorted(cycle.number for cycle in cycles)
    for cycle in cycles:
        assert (cycle.draft, cycle.verify, cycle.draft_extend) == (MS["draft"], MS["verify"], MS["draft_extend"])
        assert cycle.target == MS["decode"]
        assert cycle.cycle == MS["draft"] + MS["verify"] + MS["draft_extend"]


def test_an_event_that_is_never_ready_costs_its_own_cycle_only(tmp_path: Path) -> None:
    (tmp_path / "probe").mkdir()
    stuck = (200,)  # an event of an early cycle
    standin = StandIn(tmp_path / "tree", layout_of("0.5.23"), device="cuda", latency=30, stuck=stuck).write()
    done = standin.run("eagle_v2", tmp_path / "probe", cycles=600)
    assert done.returncode == 0, done.stderr
    (process,) = read_probe(tmp_path / "probe").processes
    given_up = [cycle for cycle in process.cycles if cycle.cycle is None]
    assert len(given_up) <= 5
    assert len(process.cycles) > 500
    assert {cycle.verify for cycle in process.cycles if cycle.verify is not None} == {MS["verify"]}


def test_events_that_are_never_ready_end_the_timers_not_the_server(tmp_path: Path) -> None:
    (tmp_path / "probe").mkdir()
    standin = StandIn(tmp_path / "tree", layout_of("0.5.23"), device="cuda", stuck="all").write()
    done = standin.run("eagle_v2", tmp_path / "probe", cycles=1500)
    assert done.returncode == 0, done.stderr
    (process,) = read_probe(tmp_path / "probe").processes
    assert any("never ready" in note for note in process.notes)
    assert all(cycle.verify is None for cycle in process.cycles)


def test_cycles_while_a_graph_is_captured_touch_no_event(tmp_path: Path) -> None:
    (tmp_path / "probe").mkdir()
    script = """
import torch
for number in range(40):
    torch.cuda.device.capturing = number % 4 == 3
    cycle()
torch.cuda.device.capturing = False
cycle('idle', 0); cycle('extend', 3); cycle('decode', 5)
"""
    standin = StandIn(tmp_path / "tree", layout_of("0.5.23"), device="cuda").write()
    done = standin.run("eagle_v2", tmp_path / "probe", script=script)
    assert done.returncode == 0, done.stderr
    (process,) = read_probe(tmp_path / "probe").processes
    marks = [cycle.mark for cycle in process.cycles]
    assert marks.count("capture") == 10
    assert marks[-3:] == ["idle", "extend", ""]
    assert [cycle.batch for cycle in process.cycles][-3:] == [0, 3, 5]


# ------------------------------------------------------------------------------------------------ what moved


def _without(layout: Layout, module: str) -> Layout:
    return replace(layout, modules={name: of for name, of in layout.modules.items() if name != module})


V2 = "sglang.srt.speculative.eagle_worker_v2"


def _renamed(layout: Layout, owner: str, method: str, new: str) -> Layout:
    at = layout.modules[V2]
    of = at.classes[owner]
    methods = tuple(new if name == method else name for name in of.methods)
    return replace(
        layout, modules={**layout.modules, V2: replace(at, classes={**at.classes, owner: replace(of, methods=methods)})}
    )


def test_a_missing_module_is_named_with_the_place_its_class_went() -> None:
    moved = replace(_without(layout_of("0.5.23"), V2), version=None, elsewhere={"EAGLEWorkerV2": "sglang.srt.spec.new"})
    findings = check_layout(moved)
    assert {finding.code for finding in findings if finding.family == "eagle_v2"} == {"no_module"}
    assert any("EAGLEWorkerV2 is in sglang.srt.spec.new" in finding.text for finding in findings)
    assert "eagle_v2" in unusable(findings)


def test_a_renamed_method_is_named_for_it_and_for_who_inherits_it() -> None:
    findings = check_layout(_renamed(layout_of("0.5.23"), "EAGLEWorkerV2", "verify", "verify_tree"))
    assert {(finding.family, finding.phase, finding.code) for finding in findings} == {
        ("eagle_v2", "verify", "no_method"),
        ("standalone_v2", "verify", "no_method"),
    }


def test_v1_gone_is_no_finding_after_its_time_and_one_before() -> None:
    layout = _without(layout_of("0.5.12"), "sglang.srt.speculative.eagle_worker")
    families = {finding.family for finding in check_layout(layout)}
    assert families == {"eagle_v1", "standalone_v1"}
    assert check_layout(replace(layout, version="0.5.13")) == []


def test_source_is_read_and_what_cannot_be_timed_is_told(tmp_path: Path) -> None:
    StandIn(tmp_path / "python", layout_of("0.5.23")).write()
    assert check_tree(tmp_path) == []
    path = tmp_path / "python/sglang/srt/speculative/eagle_worker_v2.py"
    source = path.read_text()
    path.write_text(source.replace("    def verify(self,", "    @staticmethod\n    def verify(self,"))
    assert [finding.code for finding in check_tree(tmp_path) if finding.family == "eagle_v2"] == ["not_plain"]
    path.write_text(source.replace("self.draft_worker.draft(batch)", "self.draft_worker.propose(batch)"))
    assert [finding.code for finding in check_tree(tmp_path) if finding.family == "eagle_v2"] == ["not_called"]
    path.write_text("def broken(:\n")
    assert {finding.code for finding in check_tree(tmp_path) if finding.family == "eagle_v2"} == {"no_module"}
    path.rename(path.with_name("eagle_worker_v3.py")).write_text(source)
    assert any(
        "EAGLEWorkerV2 is in sglang.srt.speculative.eagle_worker_v3" in finding.text for finding in check_tree(tmp_path)
    )


def test_the_report_for_people(tmp_path: Path) -> None:
    standin = StandIn(tmp_path, layout_of("0.5.23")).write()
    assert tree_report(tmp_path) == (
        "SGLang (a checkout: rows of today's releases): every method the probe times is in its place\n"
        "not timed: speculation under pipeline parallelism (pp-size above 1) has no verify numbers"
    )
    path = standin.root / "sglang/srt/speculative/eagle_worker_v2.py"
    path.write_text(path.read_text().replace("verify(", "check("))
    (tmp_path / "sglang-0.5.23.dist-info").mkdir()
    assert tree_report(tmp_path).splitlines() == [
        "SGLang 0.5.23: 2 of the probe's methods moved",
        "  eagle_v2 verify: EAGLEWorkerV2 has no method verify",
        "  standalone_v2 verify: StandaloneWorkerV2 has no method verify",
        "verify_ms or decode_ms will be absent for: eagle_v2, standalone_v2",
        "not timed: speculation under pipeline parallelism (pp-size above 1) has no verify numbers",
    ]


def test_workers_without_rows_are_named(tmp_path: Path) -> None:
    """Whoever runs NGRAM or DFLASH hears before the run that nothing of it will be timed."""
    standin = StandIn(tmp_path, layout_of("0.5.23")).write()
    folder = standin.root / "sglang/srt/speculative"
    (folder / "ngram_worker.py").write_text("class NGRAMWorker:\n    pass\n")
    (folder / "base_spec_worker.py").write_text("class BaseSpecWorker:\n    pass\n")
    (folder / "mine.py").write_text("class MyWorker(EAGLEWorkerV2):\n    pass\n")
    assert "not timed, having no rows: NGRAMWorker (ngram_worker)" in tree_report(tmp_path).splitlines()
    assert layout_of("0.5.23").untimed


@pytest.mark.parametrize("name", ["sglang-0.4.0-mine", "sglang-0-9", "sglang-0.5.23-py3-none-any.whl"])
def test_a_folder_s_name_is_no_release(tmp_path: Path, name: str) -> None:
    """It was once a false all-clear: no row is expected of a release that is older than all of them."""
    root = tmp_path / name
    StandIn(root, layout_of("0.5.23")).write()
    path = root / "sglang/srt/speculative/eagle_worker_v2.py"
    path.write_text(path.read_text().replace("verify(", "check("))
    assert "verify_ms or decode_ms will be absent for: eagle_v2, standalone_v2" in tree_report(root).splitlines()


def test_an_older_release_than_any_that_was_looked_at_is_no_all_clear(tmp_path: Path) -> None:
    StandIn(tmp_path, layout_of("0.4.9")).write()
    (tmp_path / "sglang-0.4.6.dist-info").mkdir()
    assert tree_report(tmp_path) == (
        "SGLang 0.4.6: older than 0.4.9, the first release that the probe knows; nothing is said of it"
    )


def test_a_verify_that_is_renamed_is_seen_in_old_releases_as_well() -> None:
    layout = layout_of("0.5.2")
    at = layout.modules["sglang.srt.speculative.eagle_worker"]
    of = at.classes["EAGLEWorker"]
    renamed = replace(of, methods=tuple(name for name in of.methods if name != "verify"))
    modules = {
        **layout.modules,
        "sglang.srt.speculative.eagle_worker": replace(at, classes={**at.classes, "EAGLEWorker": renamed}),
    }
    assert unusable(check_layout(replace(layout, modules=modules))) >= {"eagle_v1"}


def test_no_sglang_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(PerfgateError, match="no SGLang here"):
        check_tree(tmp_path)
    (tmp_path / "sglang-0.5.9-py3-none-any.whl").write_bytes(b"no zip")
    with pytest.raises(PerfgateError, match="not a readable wheel"):
        read_layout(tmp_path / "sglang-0.5.9-py3-none-any.whl")


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.5.13.post1", (0, 5, 13)),
        ("v0.5.9", (0, 5, 9)),
        ("0.5.13rc1", (0, 5, 13)),
        ("0.5.13+g12ab", (0, 5, 13)),
        ("main", ()),
    ],
)
def test_releases_compare_by_number(version: str, release: tuple[int, ...]) -> None:
    assert release_of(version) == release


def test_ranges_include_both_ends() -> None:
    v1 = next(target for target in TARGETS if target.family == "multi_layer_v1")
    assert [expected_in(v1, version) for version in ("0.5.6", "0.5.7", "0.5.12.post1", "0.5.13")] == [
        False,
        True,
        True,
        False,
    ]
