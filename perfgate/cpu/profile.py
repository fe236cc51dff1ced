"""What the cpu profile says, as a layer of configuration, and where its models are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from perfgate.config.files import load
from perfgate.config.model import Config
from perfgate.config.profile import Profile
from perfgate.cpu.environment import CpuEnvironment

TARGET = "perfgate-tiny"
DRAFT = "perfgate-tiny-eagle3"


@cache
def settings() -> Config:
    """`profile.yml`: laid over perfgate.yml and under the box's file."""
    return load(files("perfgate.cpu").joinpath("profile.yml").read_bytes(), "cpu/profile.yml")


def layers(profile: Profile) -> tuple[Config, ...]:
    """What a profile lays over perfgate.yml."""
    return () if profile.has_gpus else (settings(),)


def models(environment: CpuEnvironment) -> Mapping[str, Path]:
    """Name of a model in `settings` → its folder."""
    return {TARGET: environment.target, DRAFT: environment.draft}
