"""The commands that check a configuration, find a commit, or look at a tree or a box, as a command line.

Each imports what it needs itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from perfgate.commands.options import BoxOption, ConfigOption, OutOption, ProfileOption, RepoOption
from perfgate.config.profile import Profile
from perfgate.errors import PerfgateError
from perfgate.text import visible

app = typer.Typer()


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
    question = bisecting.BisectRequest(good, bad, recipe, metric, minutes, first_parent=not every_commit)
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
