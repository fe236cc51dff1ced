"""`perfgate doctor`: the box examined at rest."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import typer
from rich.console import Console

from perfgate.config import files as config_file
from perfgate.config.model import BoxFile
from perfgate.config.profile import Profile
from perfgate.cpu.profile import layers
from perfgate.errors import Exit, PerfgateError
from perfgate.host.doctor import Patient, run_doctor
from perfgate.host.doctor.table import show
from perfgate.host.sandbox import UNCONFINED, Confinement
from perfgate.host.trial import choose
from perfgate.run.plan import GateRequest, find_box


def examine(config: Path | None, box: Path | None, profile: Profile, *, as_json: bool) -> Exit:
    """Prints what the doctor found; CANNOT where nothing could be measured."""
    found = find_box(GateRequest(repo=Path(), head="", box=box, profile=profile))
    resolved = None
    if config is not None:
        resolved = config_file.resolve(config_file.load_file(config), found, *layers(profile), profile=profile)
    doctor = run_doctor(
        Patient(box=found, resolved=resolved, profile=profile, confinement=_confinement(found), named=not as_json)
    )
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(doctor), indent=1, default=str))
    else:
        show(doctor, Console())
    return Exit.OK if doctor.ok else Exit.CANNOT


def _confinement(box: BoxFile) -> Confinement:
    """None where the one asked for does not work: a check tells that."""
    try:
        return choose(box.isolation, run_as=box.run_as, hidden=[Path(box.state_dir)])
    except PerfgateError:
        return UNCONFINED
