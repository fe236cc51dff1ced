"""The probe inside real SGLang on a CPU: phases add up, agree with the client, and find what was planted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import pytest

from perfgate.cpu.environment import CpuEnvironment
from perfgate.probe.phases import SamplePhases, phases_of, read_probe
from perfgate.probe.proofs import proofs_of
from perfgate.probe.reading import ProbeReading, TimedCycle
from perfgate.records import LaunchFact, Side
from tests.integration.probe.serving import Answer, serving

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

PLANTED = Path(__file__).parent / "planted"
LAUNCH = LaunchFact(id="eagle3/p01/head/a1", recipe="eagle3", pair=1, side=Side.HEAD, position=1, attempt=1)
MODES = {"nothing": "0", "verify": "v", "draft": "d", "wrong drafts": "a"}


@dataclass(frozen=True)
class Launch:
    answers: dict[str, list[Answer]]
    reading: ProbeReading
    log: str

    def cycles(self, mode: str, rank: int = 0) -> list[tuple[bool, TimedCycle]]:
        """The counted cycles of a mode, each with whether the plant's turn was on it (every second cycle)."""
        process = next(process for process in self.reading.timed if process.rank == rank)
        decoding = [cycle for cycle in process.cycles if cycle.mark in ("", "warmup")]
        turns = [(index % 2 == 1, cycle) for index, cycle in enumerate(decoding) if cycle.mark == ""]
        return [
            (turn, cycle)
            for turn, cycle in turns
            if any(answer.begin <= cycle.at <= answer.last for answer in self.answers[mode])
        ]

    def planted_ms(self, mode: str, phase: str, rank: int = 0) -> float:
        """What the plant's turns have more than the cycles just before them, so that a drift meets both."""
        cycles = self.cycles(mode, rank)
        return median(
            getattr(after, phase) - getattr(before, phase)
            for (_, before), (turn, after) in pairwise(cycles)
            if turn and after.number == before.number + 1
        )

    def sample(self, mode: str) -> SamplePhases:
        windows = [(0, *answer.window) for answer in self.answers[mode]]
        time_ms = sum(answer.last - answer.first for answer in self.answers[mode]) * 1000
        client = time_ms / sum(answer.cycles for answer in self.answers[mode])
        (sample,) = phases_of(self.reading, windows, client_cycle_ms={0: client}).samples
        assert sample.period_ms == pytest.approx(client, rel=0.05)
        return sample


@pytest.fixture(scope="module")
def planted(cpu: CpuEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """One launch; the modes take turns, so that a drift of the machine meets all alike."""
    directory = tmp_path_factory.mktemp("planted")
    control = directory / "control"
    control.write_text("0")
    answers: dict[str, list[Answer]] = {mode: [] for mode in MODES}
    variables = {"PLANTED": str(control)}
    with serving(cpu, directory, before_sglang=(PLANTED,), variables=variables) as server:
        for warmup in range(3):
            server.ask(warmup)
        for turn in range(12):
            for mode, byte in MODES.items():
                with control.open("r+") as file:
                    file.write(byte)
                answers[mode].append(server.ask(100 + turn))
    return Launch(answers, read_probe(directory / "probe", launch="real"), server.log.read_text(errors="replace"))


def test_phases_make_up_the_cycle(planted: Launch) -> None:
    shares = [
        ((cycle.draft or 0) + (cycle.verify or 0) + (cycle.draft_extend or 0)) / (cycle.cycle or 1)
        for _, cycle in planted.cycles("nothing")
    ]
    assert len(shares) > 200
    assert 0.95 <= median(shares) <= 1.0
    sample = planted.sample("nothing")
    assert sample.clock == "perf_counter"
    assert sample.warnings == ()
    assert sample.cycles == sum(answer.cycles for answer in planted.answers["nothing"])
    assert sample.verify_ms is not None
    assert sample.target_ms is not None
    assert 0.8 * sample.verify_ms < sample.target_ms < sample.verify_ms


@pytest.mark.parametrize(("mode", "other"), [("verify", "draft"), ("draft", "verify")])
def test_a_planted_delay_is_found_in_its_phase_and_nowhere_else(planted: Launch, mode: str, other: str) -> None:
    assert planted.planted_ms(mode, mode) == pytest.approx(4.0, rel=0.1)
    # verify is ten times as long as draft, so its own noise is, too
    assert abs(planted.planted_ms(mode, other)) <= (0.2 if other == "draft" else 0.4)
    assert abs(planted.planted_ms(mode, "draft_extend")) <= 0.2


def test_a_lower_acceptance_moves_accept_length_and_not_verify(planted: Launch) -> None:
    usual = fmean(answer.accept_length for answer in planted.answers["nothing"])
    wrong = fmean(answer.accept_length for answer in planted.answers["wrong drafts"])
    assert usual > 1.8
    assert wrong < 1.1
    before, after = planted.sample("nothing").verify_ms, planted.sample("wrong drafts").verify_ms
    assert before is not None
    assert after == pytest.approx(before, rel=0.03)


def test_proof_of_every_process(planted: Launch) -> None:
    """Without SPT_NOENV, so setproctitle has overwritten what /proc shows of the environment."""
    proofs = {proof.role: proof for proof in proofs_of(planted.reading, LAUNCH, {"SGLANG_USE_CPU_ENGINE": "1"})}
    assert set(proofs) == {"main", "scheduler", "detokenizer"}
    rank = proofs["scheduler"]
    assert rank.rank == 0
    assert rank.worker == "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2"
    assert rank.device == "cpu"
    assert rank.at_start is not None
    assert rank.effective is not None
    assert rank.at_start["NCCL_PROTO"] == rank.effective["NCCL_PROTO"] == "LL"  # the user's sitecustomize
    assert "NCCL_CUMEM_ENABLE" not in rank.at_start  # SGLang's own doing, in its first process
    assert rank.effective["NCCL_CUMEM_ENABLE"] == "0"
    assert [Path(link["path"]).parent.name for link in rank.sitecustomize] == ["path", "planted"]
    assert rank.versions["torch"].startswith("2.")
    assert proofs["main"].at_start == rank.at_start
    assert rank.notes == ()
    assert "perfgate probe" not in planted.log


def test_plain_decoding(cpu: CpuEnvironment, tmp_path: Path) -> None:
    with serving(cpu, tmp_path, speculative=False) as server:
        server.ask(0)
        answers = [server.ask(100 + number) for number in range(6)]
    reading = read_probe(tmp_path / "probe", launch="real")
    launch = Launch({"nothing": answers}, reading, "")
    sample = launch.sample("nothing")
    assert sample.verify_ms is None
    assert sample.cycle_ms is None
    assert sample.decode_ms is not None
    assert sample.period_ms is not None
    assert 0.6 * sample.period_ms < sample.decode_ms < sample.period_ms
    (process,) = reading.timed
    assert process.worker == "sglang.srt.managers.tp_worker.TpModelWorker"


def test_two_ranks(cpu: CpuEnvironment, tmp_path: Path) -> None:
    control = tmp_path / "control"
    control.write_text("v")
    variables = {"PLANTED": str(control), "PLANTED_MS": "40"}
    with serving(cpu, tmp_path, tp=2, before_sglang=(PLANTED,), variables=variables) as server:
        server.ask(0)
        answers = [server.ask(100 + number, tokens=48) for number in range(8)]
    launch = Launch({"verify": answers}, read_probe(tmp_path / "probe", launch="real"), "")
    sample = launch.sample("verify")
    assert [rank.rank for rank in sample.ranks] == [0, 1]
    assert len({rank.cycles for rank in sample.ranks}) == 1
    assert sample.straggler_ms is not None
    for rank in (0, 1):
        cycles = launch.cycles("verify", rank)
        shares = [
            ((cycle.draft or 0) + (cycle.verify or 0) + (cycle.draft_extend or 0)) / (cycle.cycle or 1)
            for _, cycle in cycles
        ]
        assert 0.95 <= median(shares) <= 1.0
        assert launch.planted_ms("verify", "verify", rank) == pytest.approx(40.0, rel=0.1)
        assert abs(launch.planted_ms("verify", "draft", rank)) <= 2.0  # 5 % of what was planted
    proofs = proofs_of(launch.reading, LAUNCH, {})
    assert sorted(proof.rank for proof in proofs if proof.rank is not None) == [0, 1]
