"""What is wrong with the box, why it matters, and what mends it: a resting box examined in seconds.

The gate runs this first and does not begin on a box with a ✖. A ▲ is worth mending and is told in the result.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perfgate.config.model import BoxFile, BuildRules, Resolved
from perfgate.config.profile import Profile
from perfgate.errors import PerfgateError
from perfgate.host.canary import CanarySetup
from perfgate.host.doctor.cuda_checks import compiler_checks, cuda_check, wake_gpus
from perfgate.host.doctor.gpu_checks import absent_check, gpu_checks, other_machine
from perfgate.host.doctor.software_checks import (
    box_file_check,
    group_checks,
    isolation_check,
    lock_check,
    model_checks,
    nccl_checks,
    tool_checks,
)
from perfgate.host.doctor.system_checks import disk_checks, system_checks
from perfgate.host.gpu import GpuBox, describe_gpus, share_of
from perfgate.host.inputs import given_to, remedy_for, unseen
from perfgate.host.nvml import Nvml, NvmlAbsentError
from perfgate.host.public import public
from perfgate.host.sandbox import UNCONFINED, Confinement
from perfgate.host.system import SystemWatch, describe_system
from perfgate.records import Check, Doctor

__all__ = ["Patient", "run_doctor", "why_refused"]

REST_S = 1.0
DEFAULT_MIN_FREE_GB = 20.0


@dataclass(frozen=True, kw_only=True)
class Patient:
    """What is examined. `resolved` None: no configuration is at hand, so neither models nor recipes are looked at."""

    box: BoxFile
    resolved: Resolved | None = None
    profile: Profile = Profile.GPU
    holds_lock: bool = False  # the gate has the box already
    canary: CanarySetup | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    rest_s: float = REST_S
    confinement: Confinement = UNCONFINED  # as servers run
    named: bool = False  # tell processes by name: for the box's owner alone

    @property
    def needs_gpus(self) -> bool:
        return self.box.gpus == "required" and self.profile.has_gpus

    @property
    def nccl(self) -> Mapping[str, str]:
        return self.resolved.nccl if self.resolved else self.box.nccl


def run_doctor(patient: Patient) -> Doctor:
    """Everything, as one fact. A part that fails is a ✖ of its own and hides no other."""
    gpus, gpu_part = _gpus(patient)
    system = describe_system()
    at_rest = _rest(patient.rest_s)
    number = len(gpus.gpus) if gpus is not None else 0
    parts: tuple[Callable[[], Iterator[Check]], ...] = (
        lambda: iter(gpu_part),
        lambda: system_checks(system, at_rest, number),
        lambda: box_file_check(patient.box) if patient.needs_gpus else iter(()),
        lambda: nccl_checks(patient.nccl, number, patient.box.run_as, patient.environment),
        lambda: lock_check(patient.box, ours=patient.holds_lock),
        lambda: iter([isolation_check(patient.box)]),
        lambda: group_checks(patient.confinement),
        lambda: _cuda(patient, gpus),
        lambda: _compilers(patient, gpus),
        lambda: tool_checks(patient.box, gpus=patient.needs_gpus, search=patient.environment.get("PATH", "")),
        lambda: disk_checks(Path(patient.box.state_dir), _min_free_gb(patient)),
        lambda: _models(patient),
        lambda: _given(patient),
        lambda: _canary(patient),
    )
    checks = tuple(check for part in parts for check in _safely(part))
    return Doctor(
        id="doctor",
        ok=all(check.status != "fail" for check in checks),
        checks=checks,
        fingerprint=_fingerprint(patient, gpus, asdict(system)),
    )


def why_refused(doctor: Doctor) -> str:
    """One line: the first ✖, how many more, and what mends it."""
    failed = [check for check in doctor.checks if check.status == "fail"]
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"{failed[0].name}: {failed[0].text}{more} → {failed[0].remedy}" if failed else ""


def _safely(part: Callable[[], Iterator[Check]]) -> list[Check]:
    try:
        return list(part())
    except (PerfgateError, OSError) as error:
        return [Check(name="doctor", status="fail", text=str(error), why="a part of the examination failed")]


def _gpus(patient: Patient) -> tuple[GpuBox | None, list[Check]]:
    if not patient.needs_gpus:
        return None, [absent_check("by box file or profile", required=False)]
    if (other := other_machine()) is not None:
        return None, [other]
    share = share_of(patient.box, patient.environment)
    try:
        nvml = Nvml.open(share.visible)
    except NvmlAbsentError as error:
        return None, [absent_check(str(error), required=True)]
    with nvml:
        wake_gpus(patient.environment)
        box = describe_gpus(nvml, time.monotonic())
    return box, list(gpu_checks(box, share, named=patient.named))


def _cuda(patient: Patient, gpus: GpuBox | None) -> Iterator[Check]:
    if gpus is not None and gpus.gpus:
        share = share_of(patient.box, patient.environment)
        yield cuda_check(patient.confinement, {**patient.environment, **share.variables}, len(gpus.gpus))


def _compilers(patient: Patient, gpus: GpuBox | None) -> Iterator[Check]:
    if gpus is None:
        return
    resolved = patient.resolved
    yield from compiler_checks(
        patient.box,
        resolved.recipes if resolved else (),
        python=(resolved.build if resolved else BuildRules()).python,
        search=patient.environment.get("PATH", ""),
        driver_cuda=gpus.cuda,
    )


def _given(patient: Patient) -> Iterator[Check]:
    """Files that servers are given, looked at as the confined user."""
    if patient.resolved is None or not patient.profile.has_gpus:
        return
    given = given_to(patient.resolved, patient.environment)
    hidden = unseen(given.files, patient.confinement, given.readable)
    if hidden:
        yield Check(
            name="given files",
            status="fail",
            text=f"the confined user cannot read {public(str(hidden[0]))}"
            + (f", nor {len(hidden) - 1} more" if len(hidden) > 1 else ""),
            why="a server would fail where it reads it, or run without it unsaid",
            remedy=remedy_for(hidden[0]),
        )
    elif given.files:
        yield Check(name="given files", status="ok", text=f"{len(given.files)} can be read as {patient.confinement}")


def _rest(seconds: float) -> dict[str, Any]:
    watch = SystemWatch.start(())
    time.sleep(seconds)
    return watch.stop()


def _min_free_gb(patient: Patient) -> float:
    return patient.resolved.caches.min_free_gb if patient.resolved else DEFAULT_MIN_FREE_GB


def _models(patient: Patient) -> Iterator[Check]:
    if not patient.profile.has_gpus:
        return  # such a profile brings its own
    if patient.resolved is None:
        yield Check(
            name="models",
            status="warn",
            text="not looked at",
            why="without a configuration it is not known which are wanted",
            remedy="perfgate doctor --config perfgate.yml",
        )
    else:
        yield from model_checks(patient.resolved.recipes, patient.box.hf_home)


def _canary(patient: Patient) -> Iterator[Check]:
    if patient.canary is None:
        return
    found = patient.canary.python.exists()
    yield Check(
        name="canary",
        status="ok" if found else "warn",
        text="its environment is there" if found else "it has no environment yet",
        why="" if found else "without it nobody notices when the box itself moves",
        remedy="" if found else "the first gate makes it",
    )


def _fingerprint(patient: Patient, gpus: GpuBox | None, system: dict[str, Any]) -> dict[str, Any]:
    """What the box is, for the ledger and the page. Public: identifiers are hashes."""
    return {
        "system": system,
        "nccl": {name: public(value) for name, value in patient.nccl.items()},
        "driver": gpus.driver if gpus else None,
        "cuda": gpus.cuda if gpus else None,
        "gpus": [asdict(gpu) for gpu in gpus.gpus] if gpus else [],
        "topology": [list(row) for row in gpus.topology] if gpus else [],
    }
