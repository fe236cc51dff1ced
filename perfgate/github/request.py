"""What was authorised: handed from `respond` to the box and to `publish`, as one line of JSON.

Only `respond` makes it, in a job that runs no code of the pull request. Everything is bound: full SHAs, tree hashes,
the run of the workflow.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from perfgate.errors import PerfgateError
from perfgate.github.events import FullSha, Repository

RecipeName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
Mutable = Literal["inconclusive", "environment", "bench_failed", "build_failed"]


class Authorised(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    v: Literal[1] = 1
    repository: Repository
    run: int = Field(gt=0)  # of the workflow
    attempt: int = Field(gt=0)
    pr: int | None = Field(None, gt=0)
    fork: bool = False
    base: FullSha  # the merge base
    base_tree: FullSha
    head: FullSha
    head_tree: FullSha
    config: FullSha  # the commit whose perfgate.yml holds
    recipes: tuple[RecipeName, ...] = ()  # that get more pairs; none: all
    comment: int | None = Field(None, gt=0)  # that asked
    minutes: int = Field(gt=0, le=7200)  # after which GitHub ends the job; 5 days at most on a runner of one's own
    fail_on: tuple[Mutable, ...] = ()
    note: str = Field("", max_length=300)  # what is wrong with head's own perfgate.yml; a stranger's words

    def to_line(self) -> str:
        return self.model_dump_json(exclude_none=True)


def request_from_line(line: str, repository: str) -> Authorised:
    """The request of this workflow run; refused if it speaks of another repository."""
    if len(line) > 10_000:
        raise PerfgateError("too long", where="request")
    try:
        request = Authorised.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "request"
        raise PerfgateError(f"{place}: {first['msg']}", where="request", remedy="re-run all jobs") from error
    if request.repository.lower() != repository.lower():
        raise PerfgateError(f"of {request.repository}, but this job runs in {repository}", where="request")
    return request
