"""`perfgate demo`: two commits made of a real release, and the ordinary gate on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from perfgate.config.profile import Profile
from perfgate.cpu.changes import EDITS, Change
from perfgate.cpu.demo import DemoRepository, make_release_repository, make_repository
from perfgate.cpu.environment import RELEASE, CpuEnvironment, prepare, release_tree
from perfgate.cpu.profile import settings
from perfgate.host.sandbox import Isolation
from perfgate.host.trial import available, choose
from perfgate.run.gate import GateOutcome, run_gate
from perfgate.run.plan import GateRequest, find_box
from perfgate.run.progress import Progress

STORY = """\
perfgate asks whether a commit makes SGLang serve slower. This shows it on real SGLang, on this machine's CPU,
with a tiny Llama and an EAGLE-3 draft head trained on it.

  base   {base}
  head   {head}

The gate does not know which change it is. It starts a server of base and one of head in turn, asks both the same
prompts, and judges after each pair. A laptop is noisier than a GPU box, so a loss must be {budget} here to fail
(3 % there), and a pair counts for less.
"""

NOT_ISOLATED = "note: both commits are perfgate's own and run without isolation, which does not work here: {why}"


def run(change: Change, out: Path | None, progress: Progress, since: str | None = None) -> GateOutcome:
    """The demo, on a planted change or on all that has changed `since` a release.

    Its environment is kept in the state directory; the run's files go to `out`.
    """
    name = change.value if since is None else f"since-{since}"
    request = GateRequest(repo=Path(), head="", profile=Profile.CPU, out=out or _free_folder(name))
    base, head = ("the release as it is", EDITS[change].subject) if since is None else (since, RELEASE)
    progress.tell(STORY.format(base=base, head=head, budget=f"{100 * settings().metrics['tok_s'].budget:.0f} %"))
    box = find_box(request)
    if choose(box.isolation, run_as=box.run_as).kind is Isolation.NONE:  # at once, not after minutes of building
        progress.say(NOT_ISOLATED.format(why=available(Isolation.BUBBLEWRAP).text))
        request = replace(request, isolation="none")
    state = Path(box.state_dir)
    repository = _repository(state, prepare(state, progress.say), change, since, progress)
    return run_gate(
        replace(request, repo=repository.path, base=repository.base_sha, head=repository.head_sha), progress
    )


def _repository(
    state: Path, environment: CpuEnvironment, change: Change, since: str | None, progress: Progress
) -> DemoRepository:
    repositories = state / "demo"
    if since is None:
        progress.say("writing both commits")
        return make_repository(environment, change, repositories / f"repository-{change.value}")
    base, head = (release_tree(state, release, environment, progress.say) for release in (since, RELEASE))
    progress.say("writing both commits")
    return make_release_repository(base, head, repositories / f"repository-since-{since}")


def _free_folder(name: str) -> Path:
    """demo/verify, or with a number where that is taken."""
    first = Path("demo") / name
    return next(
        path for n in range(1, 1000) if not (path := first if n == 1 else first.with_name(f"{first.name}-{n}")).exists()
    )
