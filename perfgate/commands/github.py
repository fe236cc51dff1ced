"""The commands that run inside GitHub's workflows, and `init`; part of perfgate's command line.

Each imports what it needs itself: GitHub's library is large, and no other command should wait for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from perfgate.config.places import BOX_PATH

app = typer.Typer()


@app.command()
def respond() -> None:
    """On GitHub: answer the event that started this workflow. Who asks for what, and may they?"""
    from perfgate.github.respond import respond_step

    respond_step(os.environ)


@app.command(hidden=True)
def gate_request(box: Annotated[Path, typer.Option(help="The box's own file.")] = BOX_PATH) -> None:
    """On the box: run the gate on what `respond` authorised."""
    from perfgate.github.box import gate_request_step
    from perfgate.run.progress import Progress

    raise typer.Exit(int(gate_request_step(os.environ, box, Progress())))


@app.command()
def publish(
    artifact: Annotated[Path, typer.Argument(help="Folder with what the box sent: result.json, or one zip.")],
) -> None:
    """On GitHub: say what was measured. The comment, the check, the job summary."""
    from perfgate.github.publish import publish_step

    raise typer.Exit(int(publish_step(os.environ, artifact)))


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Checkout of the repository that is to use perfgate.")] = Path(),
    box: Annotated[bool, typer.Option("--box", help="Write this machine's box file instead.")] = False,
    to: Annotated[Path, typer.Option(help="Where the box file goes.")] = BOX_PATH,
    gpus: Annotated[bool, typer.Option(help="Whether the box is to have GPUs; the doctor misses them then.")] = True,
    perfgate: Annotated[
        str, typer.Option(help="perfgate itself, OWNER/NAME@SHA. Default: where this one is from.")
    ] = "",
    runs_on: Annotated[str, typer.Option(help="Labels of the box's runner.")] = "self-hosted,perfgate",
    private: Annotated[bool, typer.Option("--private", help="The repository is private.")] = False,
    renew: Annotated[bool, typer.Option("--renew", help="Only write the gate's jobs anew, of this perfgate.")] = False,
) -> None:
    """Write the workflow and a commented perfgate.yml into a repository, or this box's own file."""
    from perfgate.commands.init import Caller, init_box, init_repository, renew_gate

    if box:
        typer.echo(init_box(to, gpus=gpus))
    else:
        caller = Caller.of(perfgate, runs_on, private=private)
        typer.echo(renew_gate(folder, caller) if renew else init_repository(folder, caller))
