"""GitHub's rule for runners of one's own: a called workflow gets them only from its own owner.

"Reusable workflows … can access self-hosted runners of the caller's repository or organisation only where the called
workflow's repository belongs to the same owner."
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

HOSTED = ("ubuntu-", "${{ inputs.hosted }}")


@dataclass(frozen=True)
class Job:
    name: str
    on: str  # its `runs-on`
    repository: str  # in which its workflow lies
    gets_runner: bool


def jobs_of(repository: str, files: Mapping[str, str], workflow: str, others: Mapping[str, str]) -> Iterator[Job]:
    """All jobs of a workflow and of those it calls. `others`: "owner/name/path@ref" → text, of other repositories."""
    yield from _walk(repository, repository, yaml.safe_load(files[workflow]), files, others)


def _walk(
    caller: str, here: str, data: dict[Any, Any], files: Mapping[str, str], others: Mapping[str, str]
) -> Iterator[Job]:
    for name, job in data["jobs"].items():
        called = job.get("uses")
        if called is None:
            hosted = str(job["runs-on"]).startswith(HOSTED)
            same_owner = here.split("/")[0].lower() == caller.split("/")[0].lower()
            yield Job(name, str(job["runs-on"]), here, hosted or same_owner)
        elif called.startswith("./"):
            yield from _walk(caller, here, yaml.safe_load(files[called.removeprefix("./")]), files, others)
        else:
            there = "/".join(called.split("/")[:2])
            yield from _walk(caller, there, yaml.safe_load(others[called]), files, others)
