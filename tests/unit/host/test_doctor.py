"""The doctor on every scene of the box: the right mark, what is wrong, and the command that mends it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from perfgate.config.layer import load_box_layer
from perfgate.config.model import BoxFile, Resolved, ResolvedRecipe, Workload
from perfgate.config.profile import Profile
from perfgate.host import doctor as module
from perfgate.host import trial
from perfgate.host.cgroup import CgroupLimits
from perfgate.host.doctor import Patient, run_doctor, why_refused
from perfgate.host.doctor.software_checks import (
    box_file_check,
    group_checks,
    isolation_check,
    lock_check,
    model_checks,
    model_problem,
    nccl_checks,
    tool_checks,
)
from perfgate.host.doctor.system_checks import disk_checks, system_checks
from perfgate.host.doctor.table import show, summary
from perfgate.host.lock import BoxLock
from perfgate.host.sandbox import UNCONFINED, Confinement, Isolation
from perfgate.host.system import SystemFacts
from perfgate.records import Check, Doctor
from perfgate.records.files import fact_from_line, fact_to_line
from tests.nvml import CARD, HEALTHY, HW_THERMAL, IDLE, LOST, REST, SW_THERMAL, Scene

Play = Callable[[Scene], None]
Examine = Callable[[Scene], Doctor]


@pytest.fixture(autouse=True)
def confined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial of the isolation is sandbox's own business, and takes its time."""
    fine = Check(name="isolation: bubblewrap", status="ok", text="PR code is confined by bubblewrap")
    monkeypatch.setattr(module, "isolation_check", lambda _box: fine)
    monkeypatch.setattr(module, "wake_gpus", lambda _environment: None)
    monkeypatch.setattr(module, "cuda_check", lambda *_: Check(name="cuda", status="ok", text="8 GPUs answer"))
    monkeypatch.setattr(module, "compiler_checks", lambda *_, **__: iter(()))
    monkeypatch.setattr(module, "DEFAULT_MIN_FREE_GB", 0.0)  # nor is this machine's disk meant


@pytest.fixture
def box(tmp_path: Path) -> BoxFile:
    return BoxFile(name="pro6000x8", state_dir=str(tmp_path / "state"), nccl={"NCCL_PROTO": "LL"})


@pytest.fixture
def examine(play: Play, box: BoxFile) -> Examine:
    def run(scene: Scene) -> Doctor:
        play(scene)
        return run_doctor(Patient(box=box, environment={"PATH": os.environ["PATH"]}, rest_s=0.05))

    return run


def found(doctor: Doctor, name: str) -> Check:
    return next(check for check in doctor.checks if check.name == name)


def gpu_marks(doctor: Doctor) -> dict[str, str]:
    about = ("gpus", "gpus lost", "gpus free", "gpus whole", "gpus alike", "links", "clocks", "power", "persistence")
    return {check.name: check.status for check in doctor.checks if check.name in (*about, "compute mode")}


def test_a_healthy_box_is_fit(examine: Examine) -> None:
    seen = examine(HEALTHY)
    assert set(gpu_marks(seen).values()) == {"ok"}
    assert found(seen, "gpus").text == "8 × NVIDIA RTX PRO 6000 Blackwell Server Edition, driver 590.48.01"
    assert found(seen, "links").text == "Gen5 x16; idle links slow down, their speed is checked under load"
    assert found(seen, "gpus alike").text == "all alike, up to 2430 MHz"
    assert found(seen, "nccl").text == "1 variables for every rank: NCCL_PROTO=LL"
    assert seen.fingerprint["driver"] == "590.48.01"
    assert len(seen.fingerprint["gpus"]) == 8


@pytest.mark.parametrize(
    ("scene", "name", "status", "text", "remedy"),
    [
        (HEALTHY.gpu(3, pcie_width=8), "links", "fail", "GPU 3's link is x8, it could be x16", "lspci"),
        (
            HEALTHY.gpu(3, pcie_gen_max=3),
            "links",
            "fail",
            "GPU 3's slot gives Gen3 at most, others Gen5",
            "lspci",
        ),
        (
            HEALTHY.loaded().all(memory_used_mib=0).gpu(3, pcie_gen=3),
            "links",
            "fail",
            "GPU 3 is at work and its link at Gen3, it could be Gen5",
            "lspci",
        ),
        (
            HEALTHY.gpu(6, power_limit_mw=450000),
            "power",
            "warn",
            "GPU 6 is limited to 450 W, others to 600 W",
            "sudo nvidia-smi -i 6 -pl WATTS",
        ),
        (
            HEALTHY.all(power_limit_mw=450000),
            "power",
            "warn",
            "all limited to 450 W, 600 W is usual",
            "nvidia-smi -i 0,1,2,3,4,5,6,7 -pl",
        ),
        (
            HEALTHY.gpu(2, reasons=hex(HW_THERMAL | IDLE)).gpu(5, reasons=hex(SW_THERMAL)),
            "clocks",
            "fail",
            "held back already at rest: GPU 2: hw_thermal; GPU 5: sw_thermal",
            "check fans",
        ),
        (HEALTHY.gpu(1, temperature_c=71), "clocks", "warn", "71 °C at rest", "cooled down"),
        (HEALTHY.gpu(4, error=LOST), "gpus lost", "fail", "GPU 4 does not answer", "dmesg"),
        (
            HEALTHY.gpu(0, mig=1).gpu(1, mig=1),
            "gpus whole",
            "fail",
            "GPUs 0, 1 are cut into slices (MIG)",
            "nvidia-smi -i 0,1 -mig 0",
        ),
        (
            HEALTHY.gpu(7, sm_max_mhz=2200),
            "gpus alike",
            "warn",
            "GPU 7: highest clock 2200, the others 2430",
            "make them equal",
        ),
        (HEALTHY.gpu(7, persistence=0), "persistence", "warn", "GPU 7: persistence mode is off", "-pm 1"),
        (HEALTHY.all(compute_mode=2), "compute mode", "fail", "no process may use it", "-c DEFAULT"),
        (HEALTHY.all(compute_mode=3), "compute mode", "warn", "one process at a time", "-c DEFAULT"),
        (
            HEALTHY.gpu(5, memory_used_mib=40960),
            "gpus free",
            "fail",
            "GPU 5 has 40.0 GiB in use by a process that cannot be seen from here",
            "nvidia-smi",
        ),
        (HEALTHY.gpu(5, processes="4123456:1024"), "gpus free", "fail", "pid 4123456 (not visible", "nvidia-smi"),
        (Scene(count=0), "gpus", "fail", "the driver sees no GPU", "lspci"),
    ],
)
def test_each_illness_has_its_mark_sentence_and_remedy(
    examine: Examine, scene: Scene, name: str, status: str, text: str, remedy: str
) -> None:
    seen = examine(scene)
    check = found(seen, name)
    assert check.status == status
    assert text in check.text
    assert remedy in check.remedy
    assert check.why
    assert seen.ok == (status != "fail")
    others = {name_: mark for name_, mark in gpu_marks(seen).items() if name_ not in (name, "gpus alike")}
    assert set(others.values()) <= {"ok"}, "one illness has one mark"


def test_a_clock_offset_does_not_show_at_rest(examine: Examine) -> None:
    """Nine percent below the others without any flag: the canary's fixed load shows it, idle clocks cannot."""
    seen = examine(HEALTHY.gpu(4, sm_mhz=164))
    assert set(gpu_marks(seen).values()) == {"ok"}


def test_a_card_that_tells_nothing_is_no_illness(examine: Examine) -> None:
    seen = examine(Scene(every={"name": CARD["name"], **{key: REST[key] for key in ("memory_used_mib",)}}))
    assert set(gpu_marks(seen).values()) == {"ok"}
    assert found(seen, "links").text == "the cards do not tell"
    assert found(seen, "power").text == "the cards do not tell"


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_gpus(examine: Examine, count: int) -> None:
    assert set(gpu_marks(examine(Scene(count=count))).values()) == {"ok"}


def test_no_driver_where_gpus_are_needed(play: Play, box: BoxFile) -> None:
    seen = run_doctor(Patient(box=box, rest_s=0.01))
    assert found(seen, "gpus").status == "fail"
    assert found(seen, "gpus").text == "the NVIDIA driver is not loaded"
    assert not seen.ok
    assert why_refused(seen).startswith("gpus: the NVIDIA driver is not loaded")


def test_no_driver_where_none_is_needed(play: Play, box: BoxFile) -> None:
    for patient in (Patient(box=box, profile=Profile.CPU), Patient(box=box.model_copy(update={"gpus": "none"}))):
        seen = run_doctor(replace(patient, rest_s=0.01))
        assert found(seen, "gpus").status == "ok"
        assert seen.fingerprint["gpus"] == []


def test_a_part_that_breaks_hides_no_other(play: Play, box: BoxFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object, **__: object) -> Iterator[Check]:
        raise OSError("the disk is on fire")

    monkeypatch.setattr(module, "disk_checks", breaks)
    seen = run_doctor(Patient(box=box, profile=Profile.CPU, rest_s=0.01))
    assert [check.text for check in seen.checks if check.name == "doctor"] == ["the disk is on fire"]
    assert found(seen, "tools")


def test_it_is_a_fact_like_any_other_and_names_no_machine(examine: Examine) -> None:
    seen = examine(HEALTHY.gpu(3, processes=f"{os.getpid()}:2048"))
    line = fact_to_line(seen)
    assert fact_from_line(line, "here") == seen
    for secret in ("GPU-0000", "165012400", "pytest", Path("/proc/sys/kernel/random/boot_id").read_text().strip()):
        assert secret not in line
    hashed = json.loads(line)["fingerprint"]["system"]["host"]
    assert os.uname().nodename not in (hashed, *line.split('"'))


def test_the_table_reads_well(examine: Examine) -> None:
    seen = examine(HEALTHY.gpu(3, pcie_width=8))
    console = Console(file=io.StringIO(), width=100)
    show(seen, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "✖  links" in text
    assert "GPU 3's link is x8, it could be x16" in text
    assert "→ reseat the card" in text
    assert "✔  gpus free" in text
    assert summary(seen) in text
    assert summary(seen).startswith("✖ 1 to mend before anything can be measured")


# ------------------------------------------------------------------------------------------------ system

FACTS = SystemFacts(
    host="h",
    kernel="6.8.0",
    os="Ubuntu",
    boot="b",
    uptime_s=1.0,
    virtual=False,
    container=None,
    cpu_model="AMD EPYC 9575F",
    cpus=256,
    cpus_online=256,
    sockets=2,
    numa_nodes=2,
    numa_balancing=False,
    smt=True,
    governor="performance",
    turbo=True,
    huge_pages="madvise",
    load1=0.1,
    memory_total=1 << 40,
    memory_available=1 << 39,
    swap_used=0,
    shm_free=1 << 38,
    cgroup=CgroupLimits(),
)
REST_WATCH: dict[str, Any] = {"wall_s": 1.0, "others_cpu_s": 0.02, "steal_s": 0.0, "foreign": []}


def test_a_resting_machine_is_fit() -> None:
    assert {check.status for check in system_checks(FACTS, REST_WATCH, 8)} == {"ok"}


@pytest.mark.parametrize(
    ("facts", "rest", "name", "status", "text"),
    [
        ({"governor": "powersave+schedutil"}, {}, "cpu governor", "warn", "powersave+schedutil"),
        ({}, {"others_cpu_s": 3.0, "foreign": [{"pid": 7, "cpu_s": 2.9}]}, "at rest", "warn", "3.0 cores: pid 7 (2.9)"),
        ({}, {"steal_s": 0.2}, "at rest", "warn", "the hypervisor gives 0.20 cores to other machines"),
        ({"shm_free": 64 << 20}, {}, "shared memory", "fail", "64 MiB free in /dev/shm"),
        ({"numa_balancing": True}, {}, "numa balancing", "warn", "on"),
        ({"memory_available": 1 << 30}, {}, "memory", "warn", "1.0 GiB of 1024 GiB available"),
        ({"cgroup": CgroupLimits(cpus=16.0)}, {}, "container limits", "warn", "a quota of 16 cores of 256"),
    ],
)
def test_each_illness_of_the_machine(
    facts: dict[str, Any], rest: dict[str, Any], name: str, status: str, text: str
) -> None:
    checks = list(system_checks(replace(FACTS, **facts), {**REST_WATCH, **rest}, 8))
    ill = [check for check in checks if check.status != "ok"]
    assert [(check.name, check.status) for check in ill] == [(name, status)]
    assert text in ill[0].text
    assert ill[0].remedy


def test_what_a_single_gpu_does_not_need_is_not_asked_for() -> None:
    facts = replace(FACTS, shm_free=64 << 20, numa_balancing=True)
    assert {check.status for check in system_checks(facts, REST_WATCH, 1)} == {"ok"}


def test_unreadable_is_not_ill() -> None:
    facts = replace(FACTS, governor=None, turbo=None, memory_available=None, shm_free=None, cpu_model=None)
    assert {check.status for check in system_checks(facts, {"wall_s": 1.0, "others_cpu_s": None}, 8)} == {"ok"}


def test_a_full_disk(tmp_path: Path) -> None:
    (check,) = disk_checks(tmp_path / "not" / "there" / "yet", min_free_gb=1e9)
    assert (check.status, check.name) == ("fail", "disk")
    (check,) = disk_checks(tmp_path, min_free_gb=0)
    assert check.status == "ok"


# ------------------------------------------------------------------------------------------------ software


def test_a_tuning_in_the_shell_is_told_by_name() -> None:
    (check,) = nccl_checks({"NCCL_PROTO": "LL"}, 8, None, {"NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS"})
    assert check.status == "warn"
    assert check.text.startswith("NCCL_P2P_LEVEL=SYS in perfgate's own environment: servers run without it")
    assert check.remedy == "put NCCL_P2P_LEVEL under `nccl:` in the box file"


def test_no_tuning_anywhere_is_fine() -> None:
    (check,) = nccl_checks({}, 8, None, {})
    assert check.status == "ok"
    assert list(nccl_checks({}, 1, None, {})) == []


def test_a_box_in_use(tmp_path: Path) -> None:
    box = BoxFile(lock=str(tmp_path / "lock"))
    assert list(lock_check(box, ours=False)) == []
    with BoxLock.acquire(tmp_path / "lock", "gate of abc"):
        (check,) = lock_check(box, ours=False)
        assert check.status == "warn"
        assert "in use by gate of abc" in check.text
        assert list(lock_check(box, ours=True)) == []


def test_without_isolation_forks_are_refused() -> None:
    check = isolation_check(BoxFile(isolation="none"))
    assert check.status == "warn"
    assert "forks are refused" in check.why


def test_tools_for_builds_are_a_warning_and_git_a_must(tmp_path: Path) -> None:
    def tool(name: str) -> None:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)

    missing = list(tool_checks(BoxFile(), gpus=True, search=str(tmp_path)))
    assert [(check.name, check.status) for check in missing] == [("tools", "fail"), ("build tools", "warn")]
    tool("git")
    (check,) = tool_checks(BoxFile(), gpus=True, search=str(tmp_path))
    assert check.status == "warn"
    assert "nvcc (the CUDA toolkit)" in check.text
    assert "kernels and rust extensions" in check.why
    for name in ("nvcc", "c++", "cargo", "cc"):
        tool(name)
    (check,) = tool_checks(BoxFile(tools={"nvcc": str(tmp_path)}), gpus=True, search="")
    assert check.status == "ok"


def recipe(**changes: Any) -> ResolvedRecipe:
    fields: dict[str, Any] = {
        "name": "eagle3",
        "model": "org/Target",
        "model_path": "org/Target",
        "revision": "a" * 40,
        "draft": None,
        "draft_path": None,
        "draft_revision": None,
        "flags": {},
        "env": {},
        "workload": Workload(),
        "rules": {},
        "speculative": False,
    }
    return ResolvedRecipe(**{**fields, **changes})


def test_models_are_looked_for_where_servers_will(tmp_path: Path) -> None:
    one = recipe(draft="draft", draft_path=str(tmp_path / "draft"))
    two = recipe(name="baseline")
    checks = list(model_checks([one, two], str(tmp_path)))
    assert [check.status for check in checks] == ["fail", "fail"]
    assert checks[0].text == f"org/Target (for eagle3, baseline): not in hf_home at revision {'a' * 12}"
    assert checks[1].text.startswith("draft (for eagle3): no config.json in ")
    snapshot = tmp_path / "hub" / "models--org--Target" / "snapshots" / ("a" * 40)
    for folder in (snapshot, tmp_path / "draft"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (check,) = model_checks([one, two], str(tmp_path))
    assert (check.status, check.text) == ("ok", "2 present: org/Target, draft")
    assert model_problem("org/Target", "b" * 40, str(tmp_path)) == f"not in hf_home at revision {'b' * 12}"
    assert model_problem("org/Target", None, None) == "`hf_home` is not set in the box file"


def test_models_come_from_the_configuration(play: Play, box: BoxFile, tmp_path: Path) -> None:
    from perfgate.config.files import load, resolve

    config = load(b"recipes: {baseline: {model: org/Target}, eagle3: {enabled: false}}", "perfgate.yml")
    resolved: Resolved = resolve(config, box)
    play(HEALTHY)
    seen = run_doctor(Patient(box=box, resolved=resolved, rest_s=0.01))
    assert found(seen, "model").text.startswith("org/Target (for baseline)")
    assert found(run_doctor(Patient(box=box, rest_s=0.01)), "models").status == "warn"


def test_a_box_without_a_file_of_its_own_is_told() -> None:
    (check,) = box_file_check(BoxFile())
    assert (check.status, check.remedy) == ("warn", "sudo -E perfgate init --box")
    assert not list(box_file_check(load_box_layer(b"name: mine\n", "box.yml")))


def test_a_slip_in_the_tuning_is_told(tmp_path: Path) -> None:
    given = {"NCCL_P2P_LEVL": "SYS", "NCCL_TOPO_FILE": str(tmp_path / "gone.xml")}
    checks = list(nccl_checks(given, 8, None, {}))
    assert [check.status for check in checks] == ["warn", "warn"]
    assert "is NCCL_P2P_LEVEL meant?" in checks[0].text
    assert "which is not there" in checks[1].text


@pytest.mark.parametrize(
    ("path", "hf_home", "remedy"),
    [
        ("/data/m", "/hf", "mend that folder"),
        ("org/m", None, "set `hf_home`"),
        ("org/m", "/hf", "perfgate models fetch --config"),
    ],
)
def test_each_missing_model_has_the_remedy_that_helps(path: str, hf_home: str | None, remedy: str) -> None:
    (check,) = model_checks([recipe(model="org/m", model_path=path, revision=None)], hf_home)
    assert check.remedy.startswith(remedy)


def test_a_revision_beside_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    checks = list(model_checks([recipe(model="org/m", model_path=str(tmp_path), revision="a" * 40)], None))
    assert [check.status for check in checks] == ["warn", "ok"]
    assert "is not looked for" in checks[0].text


@pytest.mark.parametrize(("run_as", "meant"), [(None, "bubblewrap"), ("nobodyx", "user")])
def test_the_isolation_that_the_box_file_means_is_told(
    run_as: str | None, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(kind: Isolation, *, run_as: str | None) -> Check:
        return Check(name=f"isolation: {kind}", status="fail", text="no")

    monkeypatch.setattr(trial, "available", refused)
    assert isolation_check(BoxFile(run_as=run_as)).name == f"isolation: {meant}"


def test_nvlink_and_its_fabric(examine: Examine) -> None:
    seen = examine(HEALTHY.linked())
    assert found(seen, "nvlink").text == "18 links up on each GPU"
    assert [gpu["nvlinks"] for gpu in seen.fingerprint["gpus"]] == [18] * 8
    assert {gpu["fabric"] for gpu in seen.fingerprint["gpus"]} == {"completed"}
    fewer = found(examine(HEALTHY.linked().gpu(3, nvlinks=16)), "nvlink")
    assert (fewer.status, fewer.text) == ("fail", "GPU 3: 16 links up, the others have 18")
    waiting = found(examine(HEALTHY.linked().gpu(2, fabric=2)), "nvlink")
    assert (waiting.status, "fabricmanager" in waiting.remedy) == ("fail", True)
    assert not [check for check in examine(HEALTHY).checks if check.name == "nvlink"]


def test_groups_that_are_as_good_as_root_are_not_kept_in_the_sandbox() -> None:
    as_a_runner = Confinement(kind=Isolation.BUBBLEWRAP)
    (check,) = group_checks(as_a_runner, ["runner", "docker", "lxd"])
    assert (check.status, "docker, lxd" in check.text, "gpasswd -d $USER lxd" in check.remedy) == ("fail", True, True)
    assert list(group_checks(as_a_runner, ["runner"])) == []
    for confinement in (UNCONFINED, Confinement(kind=Isolation.USER, uid=7, gid=7)):
        assert list(group_checks(confinement, ["docker"])) == []
