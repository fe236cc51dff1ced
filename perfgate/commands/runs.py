"""The commands that make a run or read one, as a command line; part of perfgate's own.

What a command needs is imported in it: nobody who asks for help waits for NVML, the hub and git.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from perfgate.commands.options import BoxOption, ConfigOption, OutOption, ProfileOption, RepoOption, RunArgument
from perfgate.config.profile import Profile
from perfgate.cpu.changes import Change
from perfgate.report.export import Format
from perfgate.text import visible

if TYPE_CHECKING:
    from perfgate.run.gate import GateOutcome

app = typer.Typer()


@app.command()
def gate(
    repo: RepoOption,
    head: Annotated[str, typer.Option(help="The commit to judge: branch, tag or SHA.")],
    base: Annotated[
        str | None, typer.Option(help="What to compare with. Default: the merge base with the default branch.")
    ] = None,
    base_branch: Annotated[
        str | None, typer.Option(help="The branch the change goes to, whose perfgate.yml holds.")
    ] = None,
    config: ConfigOption = None,
    box: BoxOption = None,
    profile: ProfileOption = Profile.GPU,
    out: OutOption = None,
    max_pairs: Annotated[int | None, typer.Option(min=1, max=24, help="At most so many pairs a recipe.")] = None,
    recipes: Annotated[str | None, typer.Option(help="Only these recipes, separated by commas.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the order of launches. Default: drawn.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Measure a diff that touches nothing served, too.")] = False,
    wait: Annotated[float, typer.Option(help="Minutes to wait for the box when another gate has it.")] = 0.0,
) -> None:
    """Build two commits, serve both in alternation, compare them, and say whether head is slower.

    Exit codes: 0 pass or skipped, 1 regression, 2 usage or configuration, 3 inconclusive, 4 environment, build or
    benchmark failed, 130 and 143 interrupted, after clean-up.
    """
    from perfgate.run.gate import run_gate
    from perfgate.run.plan import GateRequest
    from perfgate.run.progress import Progress

    request = GateRequest(
        repo=repo,
        head=head,
        base=base,
        base_branch=base_branch,
        config=config,
        box=box,
        profile=profile,
        out=out,
        max_pairs=max_pairs,
        recipes=tuple(name.strip() for name in recipes.split(",")) if recipes else (),
        resume=resume,
        seed=seed,
        force=force,
        wait_s=wait * 60,
    )
    _end(run_gate(request, Progress()))


@app.command()
def demo(
    change: Annotated[Change, typer.Option(help="What the second commit does.")] = Change.VERIFY,
    since: Annotated[
        str | None, typer.Option(help="No planted change, but all of SGLang's since this release, e.g. 0.5.22.")
    ] = None,
    out: OutOption = None,
) -> None:
    """See perfgate at work on this machine, without a GPU: real SGLang, a tiny model, one commit that slows it.

    Exit codes as of `gate`: 1 for verify, baseline and accept, 0 for none.
    """
    from perfgate.commands import demo as demonstration
    from perfgate.run.progress import Progress

    _end(demonstration.run(change, out, Progress(), since))


def _end(outcome: GateOutcome) -> None:
    """The comment on standard output, what a person in a terminal wants on standard error."""
    from perfgate.report.comment import render_comment
    from perfgate.report.terminal import print_result

    if outcome.result is not None:
        typer.echo(render_comment(outcome.result))
        errors = Console(stderr=True)
        print_result(outcome.result, errors)
        errors.print(f"Comment, page, facts and logs: {outcome.run}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(int(outcome.exit_code))


@app.command()
def judge(run: RunArgument) -> None:
    """The verdict of a run again, from its facts alone. Exit codes as of `gate`."""
    from perfgate.run.conclude import conclude

    result = conclude(run)
    typer.echo(f"{result.verdict.value}: {visible(result.reason)}")
    raise typer.Exit(result.exit_code)


@app.command()
def report(run: RunArgument) -> None:
    """The comment of a run again, as Markdown on standard output, from its result alone."""
    from perfgate.records.files import read_result
    from perfgate.report.comment import render_comment

    typer.echo(render_comment(read_result(run)))


@app.command("export")
def export_result(
    run: RunArgument,
    form: Annotated[Format, typer.Option("--format", help="What is to read it; docs/export.md says of each.")],
) -> None:
    """The result of a run in the format of another tool, on standard output."""
    from perfgate.records.files import read_result
    from perfgate.report.export import export

    typer.echo(export(read_result(run), form), nl=False)


@app.command()
def calibrate(
    repo: RepoOption,
    commit: Annotated[str, typer.Option(help="The commit to measure against itself.")] = "HEAD",
    pairs: Annotated[  # the ledger asks for five, and a launch that had to be repeated costs its pair
        int, typer.Option(min=1, max=24, help="Pairs of each recipe; all are measured.")
    ] = 8,
    config: ConfigOption = None,
    box: BoxOption = None,
    profile: ProfileOption = Profile.GPU,
    out: OutOption = None,
    recipes: Annotated[str | None, typer.Option(help="Only these recipes, separated by commas.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a calibration that was interrupted.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the order of launches. Default: drawn.")] = None,
    wait: Annotated[float, typer.Option(help="Minutes to wait for the box when another gate has it.")] = 0.0,
) -> None:
    """Teach the ledger this box's noise: one commit against itself, then what can be detected with it.

    Exit codes: 0 every pair was measured, 2 usage, 3 not all of them, 4 environment, build or benchmark failed.
    """
    from perfgate.commands import calibrate as calibration
    from perfgate.run.plan import GateRequest
    from perfgate.run.progress import Progress

    request = GateRequest(
        repo=repo,
        head=commit,
        config=config,
        box=box,
        profile=profile,
        out=out,
        recipes=tuple(name.strip() for name in recipes.split(",")) if recipes else (),
        resume=resume,
        seed=seed,
        wait_s=wait * 60,
    )
    outcome = calibration.calibrate(request, pairs, Progress())
    if outcome.result is not None:
        Console(highlight=False).print(calibration.show_calibration(outcome, request))
    raise typer.Exit(int(outcome.exit_code))


@app.command()
def power(
    repo: RepoOption = Path(),
    config: ConfigOption = None,
    box: BoxOption = None,
    profile: ProfileOption = Profile.GPU,
) -> None:
    """Which slowdown is detected with which probability, at how many launches and GPU minutes, on this box."""
    from perfgate.commands import calibrate as calibration
    from perfgate.run.plan import GateRequest

    request = GateRequest(repo=repo, head="HEAD", config=config, box=box, profile=profile)
    Console(highlight=False).print(calibration.show_power(request))
