"""The commands, one short function each."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from perfgate import __version__
from perfgate.commands.github import app as on_github
from perfgate.commands.streams import unbroken_streams
from perfgate.config.profile import Profile
from perfgate.cpu.changes import Change
from perfgate.errors import Exit, PerfgateError
from perfgate.report.export import Format
from perfgate.text import visible

if TYPE_CHECKING:
    from perfgate.config.model import Resolved
    from perfgate.run.gate import GateOutcome

# What a command needs is imported in it: nobody who asks for help waits for NVML, the hub and git.

app = typer.Typer(
    name="perfgate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Did this change make serving slower, by how much, in which phase, and how sure are we?",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"perfgate {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


OutOption = Annotated[
    Path | None, typer.Option("--out", help="Directory for the run's files. Default: in the state directory.")
]
RepoOption = Annotated[Path, typer.Option(help="A checkout of SGLang or of a fork of it.")]
ConfigOption = Annotated[Path | None, typer.Option(help="Use this perfgate.yml, not the base branch's.")]
BoxOption = Annotated[Path | None, typer.Option(help="The box's file. Default: /etc/perfgate/box.yml.")]
ProfileOption = Annotated[Profile, typer.Option(help="cpu: real SGLang without a GPU, with a tiny model.")]
RunArgument = Annotated[Path, typer.Argument(help="Directory of a run, with its facts.jsonl.", show_default=False)]


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


@app.command()
def config(
    check: Annotated[Path | None, typer.Option(help="Say what is wrong with a perfgate.yml or a box file.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="JSON Schema, for editors.")] = False,
    example: Annotated[bool, typer.Option("--example", help="A commented perfgate.yml with all defaults.")] = False,
) -> None:
    """Check a configuration, or show what can be configured."""
    from perfgate.config import files as config_file

    if (check is not None) + schema + example != 1:
        raise PerfgateError("give one of --check FILE, --schema, --example", where="config")
    if check is not None:
        for note in config_file.check(check):
            typer.echo(f"{check}: {note}")
        typer.echo(f"{check}: fine")
    elif schema:
        typer.echo(json.dumps(config_file.schema(), indent=2))
    else:
        typer.echo(config_file.example())


@app.command()
def bisect(
    repo: RepoOption,
    good: Annotated[str, typer.Option(help="A commit that was fast.")],
    bad: Annotated[str, typer.Option(help="A later commit that is slow.")],
    recipe: Annotated[str | None, typer.Option(help="Whose speed. Default: the first that speculates.")] = None,
    metric: Annotated[str, typer.Option(help="Of that recipe, at its first concurrency.")] = "tok_s",
    minutes: Annotated[float, typer.Option(min=1, help="At most so long; then the smallest range is told.")] = 240.0,
    every_commit: Annotated[
        bool, typer.Option("--all", help="Commits of merged branches as well, not only the first parents'.")
    ] = False,
    config: ConfigOption = None,
    box: BoxOption = None,
    profile: ProfileOption = Profile.GPU,
    out: OutOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a bisect that was interrupted.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the order of launches. Default: drawn.")] = None,
    wait: Annotated[float, typer.Option(help="Minutes to wait for the box when another gate has it.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Which commit made serving slower, found by measuring: named and confirmed, or the smallest range.

    Exit codes: 0 named and confirmed, 3 a range or no difference, 4 could not measure, 2 usage.
    """
    from perfgate.blame.bisect.steps import Interrupted
    from perfgate.blame.bisect.told import as_data, exit_code
    from perfgate.commands import bisect as bisecting
    from perfgate.run.plan import GateRequest
    from perfgate.run.progress import Progress

    request = GateRequest(
        repo=repo,
        head=bad,
        config=config,
        box=box,
        profile=profile,
        out=out,
        resume=resume,
        seed=seed,
        wait_s=wait * 60,
    )
    question = bisecting.Question(good, bad, recipe, metric, minutes, first_parent=not every_commit)
    try:
        folder, found = bisecting.bisect(question, request, Progress())
    except Interrupted as interrupted:
        raise typer.Exit(int(interrupted.exit_code)) from None
    if as_json:
        typer.echo(json.dumps(as_data(found), indent=2))
    else:
        bisecting.show(found, lambda line: typer.echo(visible(line)))
        Console(stderr=True).print(f"Steps, answer, git bisect log: {folder}", markup=False, highlight=False)
    raise typer.Exit(int(exit_code(found)))


@app.command()
def trace(
    logs: Annotated[list[Path], typer.Argument(help="Logs of servers, or result files of bench_serving.")],
    repo: RepoOption = Path(),
    zone: Annotated[
        str | None, typer.Option(help="Of the logs' clock, where they do not say: Europe/Berlin or +01:00.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Which commit a checkout was at when logs were written, and how sure that is. Reads, and changes nothing."""
    from perfgate.commands import trace as tracing

    found = tracing.trace(repo, logs, zone)
    if as_json:
        typer.echo(tracing.as_json(found))
    else:
        tracing.show(found, lambda line: typer.echo(visible(line, keep_spaces=True)))


@app.command()
def probe(
    check_tree: Annotated[Path, typer.Option(help="A checkout of SGLang, an installed package, or a wheel.")],
) -> None:
    """Say whether the probe will find what it times in a commit, and what moved where it will not. Runs nothing."""
    from perfgate.probe.layout import tree_report

    typer.echo(tree_report(check_tree))


app.add_typer(on_github)


@app.command()
def doctor(
    config: ConfigOption = None,
    box: BoxOption = None,
    profile: ProfileOption = Profile.GPU,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    trial: Annotated[
        bool, typer.Option("--trial", help="Try what a first gate would meet, as PR code: minutes.")
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="With --trial: start a server of the smallest recipe.")
    ] = False,
    python: Annotated[
        Path | None, typer.Option("--python", help="With --trial: of an environment that has SGLang.")
    ] = None,
) -> None:
    """Examine this box at rest: what is wrong, why it matters, and the command that mends it. Exit codes: 0, 4."""
    from perfgate.commands import doctor as examination

    wanted = examination.Trial(serve=serve, python=python) if trial or serve else None
    raise typer.Exit(examination.examine(config, box, profile, as_json=as_json, trial=wanted))


models_app = typer.Typer(no_args_is_help=True, help="Targets and drafts at pinned revisions in the box's HF_HOME.")
app.add_typer(models_app, name="models")


def _resolved(config: Path | None, box: Path | None) -> Resolved:
    from perfgate.config import files as config_file
    from perfgate.run.plan import GateRequest, find_box

    if config is None:
        raise PerfgateError(
            "which models are wanted stands in a perfgate.yml",
            where="--config",
            remedy="give it: --config .github/perfgate.yml",
        )
    return config_file.resolve(config_file.load_file(config), find_box(GateRequest(repo=Path(), head="", box=box)))


@models_app.command("fetch")
def models_fetch(config: ConfigOption = None, box: BoxOption = None) -> None:
    """Fetch what is missing. The only command that uses a hub token (HF_TOKEN)."""
    from perfgate.commands import models

    models.fetch(_resolved(config, box), typer.echo)


@models_app.command("verify")
def models_verify(config: ConfigOption = None, box: BoxOption = None) -> None:
    """Check that every model is there, and that its weights have the hash they are filed under."""
    from perfgate.commands import models

    models.verify(_resolved(config, box), typer.echo)


def main() -> None:
    """Runs one command; a PerfgateError becomes one line and its exit code."""
    with unbroken_streams():
        _run()


def _run() -> None:
    try:
        app()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer takes any for its own, and would end with 1
            traceback.print_exception(ended.__context__)
            sys.exit(Exit.CANNOT)
        raise
    except PerfgateError as error:
        shown = "\n".join(visible(line, keep_spaces=True) for line in str(error).split("\n"))  # holds strangers' text
        Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(f"perfgate: {shown}")
        sys.exit(error.exit_code)
    except Exception:  # noqa: BLE001 - a fault of perfgate's own must not end with the exit code of a regression
        traceback.print_exc()
        sys.exit(Exit.CANNOT)
