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

from perfgate.config.model import BoxFile, Resolved
from perfgate.config.profile import Profile
from perfgate.errors import PerfgateError
from perfgate.host.canary import CanarySetup
from perfgate.host.doctor.gpu_checks import absent_check, gpu_checks
from perfgate.host.doctor.software_checks import (
    box_file_check,
    isolation_check,
    lock_check,
    model_checks,
    nccl_checks,
    tool_checks,
)
from perfgate.host.doctor.system_checks import disk_checks, system_checks
from perfgate.host.gpu import GpuBox, describe_gpus
from perfgate.host.nvml import Nvml, NvmlAbsentError
from perfgate.host.public import public
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
        lambda: tool_checks(patient.box, gpus=patient.needs_gpus, search=patient.environment.get("PATH", "")),
        lambda: disk_checks(Path(patient.box.state_dir), _min_free_gb(patient)),
        lambda: _models(patient),
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
    try:
        nvml = Nvml.open()
    except NvmlAbsentError as error:
        return None, [absent_check(str(error), required=True)]
    with nvml:
        box = describe_gpus(nvml, time.monotonic())
    return box, list(gpu_checks(box))


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
