"""`perfgate init`: the caller's workflow and a commented perfgate.yml; `init --box`: the box's own file.

Nothing is ever overwritten. What is written says what to look at next.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from jinja2 import Environment, StrictUndefined

from perfgate.config.files import example
from perfgate.config.places import BOX_PATH
from perfgate.errors import PerfgateError
from perfgate.host.survey import Survey, box_file, survey
from perfgate.records.files import write_whole
from perfgate.store.strangers import is_regular

WORKFLOW = Path(".github/workflows/perfgate.yml")
GATE = Path(".github/workflows/perfgate-gate.yml")
CONFIG = Path(".github/perfgate.yml")
_SPEC = re.compile(r"([A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100})@([0-9a-f]{40})")
_REMOTE = re.compile(  # a repository on a server; one in a folder has no owner
    r"(?:(?:https?|ssh|git)://(?:[^/@\s]+@)?[A-Za-z0-9.-]+\.[A-Za-z0-9.-]+(?::\d+)?/|[^/@:\s]+@[A-Za-z0-9.-]+:)"
    r"([A-Za-z0-9_-][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]+?)(?:\.git)?/?"
)
_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,100}")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """What the workflow of a repository that uses perfgate says."""

    repository: str  # of perfgate
    ref: str  # full SHA
    runs_on: tuple[str, ...]
    private: bool = False

    @classmethod
    def of(cls, perfgate: str, runs_on: str, *, private: bool) -> Caller:
        """`perfgate`: OWNER/NAME@SHA, or empty for where this perfgate came from; `runs_on`: labels with commas."""
        labels = tuple(label.strip() for label in runs_on.split(",") if label.strip())
        if not labels or not all(map(_LABEL.fullmatch, labels)):
            raise PerfgateError(
                f"{runs_on!r} is no list of runner labels",
                where="--runs-on",
                remedy="labels with commas and without spaces: self-hosted,perfgate",
            )
        match = _SPEC.fullmatch(perfgate or own_origin())
        if match is None and perfgate:
            raise PerfgateError(
                f"{perfgate!r} is no OWNER/NAME@SHA with a full SHA of 40 digits",
                where="--perfgate",
                remedy="git ls-remote https://github.com/OWNER/NAME main names one; read that commit first",
            )
        if match is None:
            raise PerfgateError(
                "perfgate's own repository and commit are not known here",
                where="--perfgate",
                remedy="give OWNER/NAME@FULL_SHA, the commit of perfgate that you have read",
            )
        return cls(repository=match[1], ref=match[2], runs_on=labels, private=private)

    def workflow(self) -> str:
        """What starts the gate: no logic, 30 lines."""
        return self._written("workflow.yml.j2")

    def gate(self) -> str:
        """The gate's jobs; each of them checks out perfgate at one commit."""
        return self._written("gate.yml.j2")

    def _written(self, name: str) -> str:
        text = files("perfgate.commands").joinpath("init_files", name).read_text(encoding="utf-8")
        templates = Environment(
            undefined=StrictUndefined,
            keep_trailing_newline=True,
            autoescape=False,
            trim_blocks=True,
            variable_start_string="[[",  # GitHub's own expressions stand in {{ }}
            variable_end_string="]]",
            block_start_string="[%",
            block_end_string="%]",
            comment_start_string="[#",
            comment_end_string="#]",
        )
        return templates.from_string(text).render(
            repository=self.repository, ref=self.ref, runs_on=json.dumps(self.runs_on), private=self.private
        )


def init_repository(folder: Path, caller: Caller) -> str:
    """Writes the three files; returns what to do next."""
    if not (folder / ".git").exists():
        raise PerfgateError("not the top of a git checkout", where=str(folder), remedy="give the checkout's folder")
    _write_new({folder / WORKFLOW: caller.workflow(), folder / GATE: caller.gate(), folder / CONFIG: example()})
    return "\n".join(
        (
            f"Written: {folder / WORKFLOW}",
            f"         {folder / GATE}",
            f"         {folder / CONFIG}",
            "Next:",
            f"  1. Name the models and their revisions in {CONFIG}; delete what you do not change.",
            f"     perfgate config --check {CONFIG}",
            "  2. Read docs/security.md: a runner of your own is about to meet pull requests from strangers.",
            "  3. Set up the box: docs/adopt.md. Its runner has the labels " + ", ".join(caller.runs_on) + ".",
            "  4. Commit all three to the default branch.",
            "  5. Only if it is to block: require the check `perfgate`. Then every head of a fork's pull request waits",
            "     for somebody's `/perfgate run SHA`, also where there is nothing to measure.",
        )
    )


def renew_gate(folder: Path, caller: Caller) -> str:
    """The gate's jobs of a newer perfgate in place of those that are there."""
    path = folder / GATE
    if not is_regular(path):
        raise PerfgateError("is not there to be renewed", where=str(path), remedy="perfgate init, without --renew")
    write_whole(path, caller.gate())
    return f"Written: {path}, for {caller.repository} at {caller.ref}.\nNext: read the difference, then commit it."


def init_box(to: Path, *, gpus: bool = True) -> str:
    """Writes this machine's box file; returns what was found and what to do next."""
    found = survey()
    _write_new({to: box_file(found, gpus=gpus)})
    return "\n".join((f"Written: {to}", *_told(found), "Next:", *_calibrate(to, found)))


def _told(found: Survey) -> Sequence[str]:
    return (
        f"  GPUs: {', '.join(found.gpus) or f'none ({found.why_no_gpus})'}",
        f"  models: {len(found.models)}" + (f" below {found.hf_home}" if found.hf_home else ""),
        f"  NCCL: {len(found.nccl)} variables" + "".join(f", {path}" for path in found.nccl_files),
        *(f"  look at: {note}" for note in found.notes),
    )


CALIBRATION_PAIRS = 8
LAUNCH_MINUTES = 4.0  # of a model of 200 GB, start to last sample; the first pair tells the box's own figure


def _calibrate(to: Path, found: Survey) -> Sequence[str]:
    minutes = 2 * CALIBRATION_PAIRS * LAUNCH_MINUTES
    box = "" if to == BOX_PATH else f" --box {to}"
    confined = found.bubblewrap or found.second_user
    return (
        f"  perfgate doctor{box}",
        *(() if confined else ("  bubblewrap, or a second user for pull requests' code: docs/security.md",)),
        f"  perfgate calibrate --repo CHECKOUT_OF_SGLANG --config perfgate.yml{box}",
        f"      about {minutes:.0f} minutes of the box for each recipe, at {LAUNCH_MINUTES:.0f} minutes a launch; "
        "it says what this box can detect",
    )


def _write_new(texts: dict[Path, str]) -> None:
    """All of them or none."""
    there = [path for path in texts if path.exists() or path.is_symlink()]
    if there:
        raise PerfgateError("is there already", where=str(there[0]), remedy="move it away, or edit it")
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise PerfgateError(
                f"cannot be written: {error.strerror}", where=str(path), remedy="sudo -E, or another place"
            ) from error


# ------------------------------------------------------------------------------------------------ where we came from


def own_origin() -> str:
    """OWNER/NAME@SHA of the perfgate that runs, as far as pip or git know it; else empty."""
    try:
        data = json.loads(distribution("perfgate").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return ""
    url, commit = str(data.get("url", "")), (data.get("vcs_info") or {}).get("commit_id")
    if commit is None and url.startswith("file:"):
        folder = url2pathname(urlsplit(url).path)
        url, commit = _git(folder, "remote", "get-url", "origin"), _git(folder, "rev-parse", "HEAD")
    name = _REMOTE.fullmatch(url)
    return f"{name[1]}@{commit}" if name and commit else ""


def _git(folder: str, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
