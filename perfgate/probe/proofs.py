"""From the probe's readings to the facts of what each process of a launch ran with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfgate.probe.inside.readings import variables
from perfgate.probe.reading import ProbedProcess, ProbeReading
from perfgate.records import LaunchId, Proof

VOLATILE = frozenset({"SGLANG_RUN_ID"})  # variables that name one launch and can never be equal


def proofs_of(reading: ProbeReading, launch: LaunchId, given: Mapping[str, str]) -> tuple[Proof, ...]:
    """What each process ran with, under the launch's identity. `given`: the environment the server was started with.

    `at_start` is what the code under test found: the first process's variables before it imports sglang, and what a
    process's own sitecustomize changes. What SGLang itself has set by the time it starts a rank is not part of it.
    """
    root = next((process for process in reading.processes if process.root), None)
    return tuple(
        Proof(
            id=launch.launch_id,
            **launch.identity,
            pid=process.pid,
            role=process.role,
            rank=process.rank,
            given=_kept(variables(given)) or {},
            at_start=_kept(at_start(process, root)),
            effective=_kept(process.effective),
            argv=process.argv,
            sitecustomize=process.sitecustomize,
            nccl=process.nccl or (),
            versions=process.versions,
            worker=process.worker,
            device=process.gpu or process.device,
            notes=tuple(_proof_notes(process, variables(given))),
        )
        for process in reading.processes
    )


def at_start(process: ProbedProcess, root: ProbedProcess | None) -> Mapping[str, str] | None:
    """See `proofs_of`. None where the first process left no reading."""
    if root is None or root.start is None:
        return None
    if process is root or process.entry is None or process.start is None:
        return root.start
    names = {*process.entry, *process.start}
    changed = {name for name in names if process.entry.get(name) != process.start.get(name)}
    kept = {name: value for name, value in root.start.items() if name not in changed}
    return {**kept, **{name: process.start[name] for name in changed if name in process.start}}


def _kept(reading: Mapping[str, str] | None) -> dict[str, str] | None:
    if reading is None:
        return None
    return {name: value for name, value in sorted(reading.items()) if name not in VOLATILE}


def _proof_notes(process: ProbedProcess, given: Mapping[str, str]) -> Iterable[str]:
    yield from process.notes
    if process.root and process.entry is not None:
        for name in sorted({*given, *process.entry}):
            if given.get(name) != process.entry.get(name):
                yield f"{name} was given as {given.get(name)!r} and came as {process.entry.get(name)!r}"
    for name, value in process.moved.items():
        yield f"{name} became {value!r} after the first collective"
    for file in process.nccl_files:
        yield f"NCCL reads {file.get('path')} ({file.get('hash', 'unread')[:12]})"
    for link in process.sitecustomize:
        if "error" in link:
            yield f"{link['path']} raised {link['error']}"
