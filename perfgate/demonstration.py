"""`perfgate demo`: two commits made of a real release, and the ordinary gate on them."""

from __future__ import annotations

from pathlib import Path

from perfgate.cpu.changes import EDITS, Change
from perfgate.cpu.demo import make_repository
from perfgate.cpu.environment import prepare
from perfgate.gate import Outcome, run_gate
from perfgate.planning import GateRequest, find_box
from perfgate.progress import Progress

STORY = """\
perfgate asks whether a commit makes SGLang serve slower. This shows it on real SGLang, on this machine's CPU,
with a tiny Llama and an EAGLE-3 draft head trained on it.

  base   the release as it is
  head   {subject}

The gate does not know which change it is. It starts a server of base and one of head in turn, asks both the same
prompts, and judges after each pair. A laptop is noisier than a GPU box, so a loss must be {budget} here to fail
(3 % there), and a pair counts for less.
"""


def run(change: Change, out: Path | None, progress: Progress) -> Outcome:
    """The demo. Its environment is kept in the state directory; the run's files go to `out`."""
    request = GateRequest(repo=Path(), head="", profile="cpu", out=out or _free_folder(change))
    progress.tell(STORY.format(subject=EDITS[change].subject, budget="15 %"))
    state = Path(find_box(request).state_dir)
    environment = prepare(state, progress.say)
    progress.say("writing both commits")
    repository = make_repository(environment, change, state / "demo" / f"repository-{change.value}")
    return run_gate(
        GateRequest(
            repo=repository.path,
            base=repository.base_sha,
            head=repository.head_sha,
            profile="cpu",
            out=request.out,
        ),
        progress,
    )


def _free_folder(change: Change) -> Path:
    """demo/verify, or with a number where that is taken."""
    first = Path("demo") / change.value
    return next(
        path for n in range(1, 1000) if not (path := first if n == 1 else first.with_name(f"{first.name}-{n}")).exists()
    )
