"""What `perfgate power` shows: of the box as it is known, at 80 columns, and honest where nothing is."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from perfgate import records
from perfgate.commands import calibrate as calibration
from perfgate.commands.calibrate import known_of, show_power
from perfgate.config.files import load, resolve
from perfgate.config.model import BoxFile, Resolved
from perfgate.errors import PerfgateError
from perfgate.records import LaunchId
from perfgate.run.folder import write_run_file
from perfgate.run.launch import workload_hash
from perfgate.run.ledger import LEDGER_FILE, Ledger, PairKind
from perfgate.run.noise import remember
from perfgate.run.pairs import Measuring
from perfgate.run.plan import GateRequest, recipe_plans
from perfgate.run.progress import Progress
from tests.standin import make_repository
from tests.standin.repository import git

from ..run.builders import TableBench, a_journal, a_plan

CONFIG = "recipes: {{baseline: {{model: m, workload: {{samples: {samples}}}}}, eagle3: {{draft: d}}}}\n"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(calibration, "RUNS_OF_POWER", 20)


@dataclasses.dataclass
class Box:
    """A box file, a perfgate.yml, and what was measured under them."""

    root: Path
    config: str = CONFIG.format(samples="auto")
    box: str = "name: box\n"

    @property
    def request(self) -> GateRequest:
        self.root.mkdir(exist_ok=True)
        (self.root / "perfgate.yml").write_text(self.config)
        (self.root / "box.yml").write_text(f"{self.box}state_dir: {self.root / 'state'}\n")
        return GateRequest(
            repo=Path("nowhere"), head="HEAD", config=self.root / "perfgate.yml", box=self.root / "box.yml"
        )

    @property
    def resolved(self) -> Resolved:
        file = BoxFile(name="box", state_dir=str(self.root / "state"))
        return resolve(load(self.config.encode(), "perfgate.yml"), file)

    def calibrated(self, name: str, pairs: int, speed: Callable[[LaunchId], float], wall_s: float = 302) -> None:
        """As `perfgate calibrate` leaves it."""
        recipes = recipe_plans(self.resolved, {one.name: workload_hash(one) for one in self.resolved.recipes})
        plan = a_plan(run_id=name, calibration=True, recipes=recipes, autotune="fresh")
        same = dataclasses.replace(plan.head, tree=plan.base.tree)
        limits = dataclasses.replace(plan.limits, max_pairs=pairs)
        plan = dataclasses.replace(plan, head=same, limits=limits)
        folder = self.root / "state" / "runs" / name
        write_run_file(folder, plan)
        with a_journal(folder, plan) as journal:
            Measuring(journal, TableBench(journal, speed, wall_s=wall_s)).all_pairs()
            run = journal.run()
        remember(run, Ledger(self.root / "state" / LEDGER_FILE), PairKind.SAME, lambda _: None)

    def shown(self) -> str:
        console = Console(file=StringIO(), width=80)
        console.print(show_power(self.request))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert max(map(len, text.splitlines())) <= 80
        return str(text)


def words(text: str) -> str:
    return " ".join(text.split())


def one_per_cent(order: LaunchId) -> float:
    return 90.0 * (1.01 if order.side is records.Side.HEAD and order.pair % 2 else 1.0)


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path / "box")


def test_a_new_box(box: Box) -> None:
    text = words(box.shown())
    assert "Nothing was measured on this box yet: `perfgate calibrate` learns its noise and its times." in text
    assert text.count("The noise is not known. 2.0 % is assumed here: the box's own may be far from it.") == 4
    assert "GPU minutes" not in text
    assert "How long a launch of eagle3 takes here is not known yet." in text
    assert not (box.root / "state").exists(), "asking makes nothing"


def test_too_few_pairs(box: Box) -> None:
    box.calibrated("1", 3, one_per_cent)
    text = words(box.shown())
    assert "The noise is not known (the ledger holds 3 pairs of the same code, 5 are needed)." in text
    assert "GPU minutes" in text, "times are known from the first launch on"


def test_a_calibrated_box(box: Box) -> None:
    box.calibrated("1", 6, one_per_cent)
    text = box.shown()
    assert "The box as it was in run 1." in text
    assert re.search(r"baseline tok/s, budget −3.0.%\n", text)
    assert re.search(r"eagle3 verify ms, budget \+5.1.%\n", text)
    assert (
        len(re.findall(r"Pairs of the same code differ by 0\.7 % \(ledger, 6 pairs since 20\d\d-\d\d-\d\d\)", text))
        == 4
    )
    assert "not known" not in text
    assert "A change of −" in text
    assert "or worse is found nine times in ten." in text


def test_gpu_minutes_are_those_of_the_boxs_own_launches(box: Box) -> None:
    """Launches of 302 s with two samples of 1 s; ledger and cost ask for three samples; eight GPUs."""
    box.calibrated("1", 6, one_per_cent)
    known = known_of(box.resolved)
    assert known.samples == {"baseline": 3, "eagle3": 3}
    assert known.launch_minutes("eagle3") == pytest.approx(303 / 60)
    text = box.shown()
    assert "A launch of eagle3 takes 5\u00a0min on 8 GPUs, with 3 samples of 1\u00a0s." in text
    rows = re.findall(r"^ +[−+]?[\d.]+\u00a0% .* ([\d.]+) +([\d,]+)$", text, flags=re.M)
    assert len(rows) == 4 * len(calibration.SLOWDOWNS)
    for launches, minutes in rows:
        assert float(minutes.replace(",", "")) == pytest.approx(float(launches) * 8 * 303 / 60, abs=3)


def test_what_a_change_costs_that_changes_nothing(box: Box) -> None:
    box.calibrated("1", 6, one_per_cent)
    (launches, minutes) = re.findall(r"at least ([\d.]+) launches on average, (\d+) GPU minutes", words(box.shown()))[0]
    assert float(minutes) == pytest.approx(float(launches) * 8 * 303 / 60, abs=3)
    assert float(launches) >= 4, "a pair of each recipe"


def test_a_box_without_gpus_has_no_gpu_minutes(box: Box) -> None:
    box.box = "name: box\ngpus: none\n"
    box.calibrated("1", 6, one_per_cent)
    text = box.shown()
    assert "GPU" not in text
    assert "A launch of eagle3 takes 5\u00a0min, with 3 samples" in text


def test_an_explicit_number_of_samples_is_shown_with_the_noise_it_leaves(box: Box) -> None:
    box.calibrated("1", 6, one_per_cent)
    known = known_of(box.resolved)
    box.config = CONFIG.format(samples=1)
    fewer = known_of(box.resolved)
    assert fewer.samples == {"baseline": 1, "eagle3": 1}
    for before, after in zip(known.metrics, fewer.metrics, strict=True):
        assert before.prior_sd is not None
        assert after.prior_sd is not None
        assert after.prior_sd > before.prior_sd


def test_noise_under_another_configuration_is_told_and_not_used(box: Box) -> None:
    box.calibrated("1", 6, one_per_cent)
    box.config += "nccl: {NCCL_PROTO: LL}\n"
    text = words(box.shown())
    assert "6 pairs in the ledger from the same box under another fingerprint not used" in text
    assert text.count("under another fingerprint") == 1
    assert "The noise is not known (the ledger holds no pairs of the same code, 5 are needed)." in text


def test_the_configured_prior_is_named_as_such(box: Box) -> None:
    box.config += "metrics: {tok_s: {prior: {sd: 0.004}}}\n"
    text = words(box.shown())
    assert text.count("Pairs of the same code differ by 0.4 % (configuration).") == 2
    assert text.count("The noise is not known.") == 2


def test_a_calibration_is_configured_by_the_base_branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As every gate: what is learned under the commit's own perfgate.yml would belong to no gate."""
    asked: list[GateRequest] = []
    monkeypatch.setattr(calibration, "run_gate", lambda request, _: asked.append(request))
    made = make_repository(tmp_path / "sglang")
    calibration.calibrate(GateRequest(repo=made.path, head="change"), 5, Progress())
    (request,) = asked
    assert (request.base, request.head, request.base_branch) == ("change", "change", "refs/heads/main")
    assert (request.max_pairs, request.calibration) == (5, True)
    git(made.path, "branch", "-m", "main", "trunk")
    with pytest.raises(PerfgateError, match="no default branch is known here → give a"):
        calibration.calibrate(GateRequest(repo=made.path, head="change"), 5, Progress())
