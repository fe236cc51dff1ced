"""`perfgate doctor`: the box examined at rest, and on request tried."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import typer
from rich.console import Console

from perfgate.config import files as config_file
from perfgate.config.model import BoxFile, Config, Resolved
from perfgate.config.profile import Profile
from perfgate.cpu.environment import SERVER_VARIABLES, prepare
from perfgate.cpu.profile import layers, models
from perfgate.errors import Exit, PerfgateError
from perfgate.host.doctor import Patient, run_doctor
from perfgate.host.doctor.table import show
from perfgate.host.sandbox import UNCONFINED, Confinement
from perfgate.host.trial import choose
from perfgate.records import Doctor
from perfgate.run.doctor_trial import TrialSetup, try_box
from perfgate.run.plan import GateRequest, find_box, with_models


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is tried besides. `python`: of an environment that serves; the cpu profile has its own."""

    serve: bool = False
    python: Path | None = None


def examine(
    config: Path | None, box: Path | None, profile: Profile, *, as_json: bool, trial: Trial | None = None
) -> Exit:
    """Prints what the doctor found; CANNOT where nothing could be measured."""
    found = find_box(GateRequest(repo=Path(), head="", box=box, profile=profile))
    resolved = _resolved(config, found, profile, needed=trial is not None)
    confinement = _confinement(found)
    patient = Patient(box=found, resolved=resolved, profile=profile, confinement=confinement, named=not as_json)
    doctor = run_doctor(patient)
    if trial is not None and resolved is not None:
        doctor = _tried(doctor, trial, resolved, confinement)
    if as_json:
        typer.echo(json.dumps(asdict(doctor), indent=1, default=str))
    else:
        show(doctor, Console())
    return Exit.OK if doctor.ok else Exit.CANNOT


def _resolved(config: Path | None, box: BoxFile, profile: Profile, *, needed: bool) -> Resolved | None:
    if config is not None:
        return config_file.resolve(config_file.load_file(config), box, *layers(profile), profile=profile)
    if not needed:
        return None
    if profile.has_gpus:
        raise PerfgateError(
            "what is to be tried stands in a perfgate.yml", where="--config", remedy="--config .github/perfgate.yml"
        )
    return config_file.resolve(Config(), box, *layers(profile), profile=profile)


def _tried(doctor: Doctor, trial: Trial, resolved: Resolved, confinement: Confinement) -> Doctor:
    setup = TrialSetup(resolved=resolved, confinement=confinement, python=trial.python, say=_say)
    if not resolved.profile.has_gpus and trial.python is None:
        cpu = prepare(Path(resolved.box.state_dir), _say)
        setup = replace(
            setup,
            resolved=with_models(resolved, models(cpu)),
            python=cpu.python,
            path_entries=(cpu.wheel_tree,),
            variables=SERVER_VARIABLES,
        )
    checks = (*doctor.checks, *try_box(setup, serve=trial.serve))
    return replace(doctor, checks=checks, ok=all(check.status != "fail" for check in checks))


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _confinement(box: BoxFile) -> Confinement:
    """None where the one asked for does not work: a check tells that."""
    try:
        return choose(box.isolation, run_as=box.run_as, hidden=[Path(box.state_dir)])
    except PerfgateError:
        return UNCONFINED
