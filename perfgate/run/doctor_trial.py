"""`perfgate doctor --trial`: all that a first gate would meet, tried in minutes by the confined user itself.

Each part is tried alone and is one line: what was tried, whether it works, and what mends it. Nothing is measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfgate.build.homes import Home
from perfgate.config.model import Resolved, ResolvedRecipe
from perfgate.engine.command import EnvironmentParts, child_environment, server_command
from perfgate.engine.faults import LaunchError
from perfgate.engine.server import LaunchSpec, Server, free_port
from perfgate.errors import PerfgateError
from perfgate.host.canary import CanaryProcess, CanarySetup
from perfgate.host.doctor import trial_script
from perfgate.host.doctor.cuda_checks import cuda_mismatch, nvcc_version
from perfgate.host.gpu import share_of
from perfgate.host.handover import hand_over
from perfgate.host.inputs import given_to
from perfgate.host.nccl import read_nccl_logs
from perfgate.host.sandbox import OUTER_ENVIRONMENT, Confinement, confine, interpreter_folders
from perfgate.host.temporary import temporary_folder
from perfgate.records import Check
from perfgate.run.launch import NCCL_TELLS, ranks_of

STEP_S = 600.0
READ_ENDS = 'while IFS= read -r f; do head -c 4096 "$f" >/dev/null && tail -c 4096 "$f" >/dev/null || exit 1; done'
WRITE_EACH = 'for d; do mkdir -p "$d" && : >"$d/trial" && rm "$d/trial" || exit 1; done'
C_PROGRAM = "#include <Python.h>\nint main(void) { return PY_MAJOR_VERSION != 3; }\n"
CUDA_PROGRAM = "__global__ void kernel(float *x) { x[threadIdx.x] += 1; }\n"
NO_ENVIRONMENT = "give the interpreter of an environment with SGLang in it: --python"


@dataclass(frozen=True, kw_only=True)
class TrialSetup:
    """What is tried. `python`: of an environment that serves; None: what needs one is told as not tried."""

    resolved: Resolved
    confinement: Confinement
    python: Path | None
    path_entries: tuple[Path, ...] = ()  # where its sglang lies, if not in the environment
    variables: Mapping[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = print

    @property
    def device(self) -> str:
        return "cuda" if self.resolved.needs_gpus else "cpu"


def try_box(setup: TrialSetup, *, serve: bool = False) -> Iterator[Check]:
    """Every part, in the order in which a gate would meet them."""
    with temporary_folder("trial") as place:
        place.chmod(0o755)
        room = _Room.made(setup, place)
        parts: list[tuple[str, Callable[[], Check]]] = [
            ("trial: models", room.models),
            ("trial: caches", room.caches),
            ("trial: C compiler", room.c_compiler),
        ]
        if setup.resolved.needs_gpus:
            parts.append(("trial: nvcc", room.nvcc))
        parts += [("trial: torch.compile", room.inductor), ("trial: all-reduce", room.all_reduce)]
        if serve:
            parts.append(("trial: server", room.server))
        for name, part in parts:
            setup.say(f"{name.removeprefix('trial: ')} …")
            yield _safely(name, part)


def _safely(name: str, part: Callable[[], Check]) -> Check:
    try:
        return part()
    except (PerfgateError, OSError, subprocess.SubprocessError) as error:
        return _failed(name, str(error).splitlines()[0], getattr(error, "remedy", "") or "see the line before")


def _ok(name: str, text: str) -> Check:
    return Check(name=name, status="ok", text=text)


def _failed(name: str, text: str, remedy: str) -> Check:
    return Check(name=name, status="fail", text=text, why="a server would fail there", remedy=remedy)


def _not_tried(name: str, why: str, remedy: str) -> Check:
    return Check(name=name, status="warn", text=f"not tried: {why}", why="the first gate would", remedy=remedy)


@dataclass(frozen=True)
class _Said:
    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return lines[-1][:300] if lines else f"it ended with {self.code} and said nothing"


@dataclass(frozen=True)
class _Room:
    """A HOME like a side's, and what a server is given."""

    setup: TrialSetup
    place: Path
    home: Home

    @classmethod
    def made(cls, setup: TrialSetup, place: Path) -> _Room:
        home = place / "home"
        (home / "tmp").mkdir(parents=True)
        (home / "nccl").mkdir()
        shutil.copyfile(Path(trial_script.__file__), place / "trial.py")
        (place / "trial.c").write_text(C_PROGRAM)
        (place / "trial.cu").write_text(CUDA_PROGRAM)
        hand_over([home], setup.confinement)
        return cls(setup, place, Home(home, {}))

    @property
    def readable(self) -> tuple[Path, ...]:
        python = interpreter_folders(self.setup.python) if self.setup.python else ()
        given = given_to(self.setup.resolved, os.environ).readable
        return (self.place, *python, *self.setup.path_entries, *given)

    def environment(self, recipe: ResolvedRecipe | None = None) -> dict[str, str]:
        resolved, setup = self.setup.resolved, self.setup
        hf_home = resolved.box.hf_home
        tells = {**NCCL_TELLS, "NCCL_DEBUG_FILE": str(self.home.path / "nccl" / "%h.%p")}
        parts = EnvironmentParts(
            python=setup.python or Path("/usr/bin/python3"),
            path_entries=setup.path_entries,
            home=self.home.variables,
            hf_home=Path(hf_home) if hf_home else None,
            build={**setup.variables, **resolved.box.env},
            recipe={**(recipe.env if recipe else {}), **share_of(resolved.box).variables},
            nccl={**resolved.nccl, **(tells if resolved.needs_gpus else {})},
            tmp=Path("/tmp") if setup.confinement.private_tmp else None,
        )
        found = child_environment(os.environ, parts)
        return {**found, "PATH": ":".join([*resolved.box.tools.values(), found["PATH"]])}

    def run(self, argv: Sequence[str], told: str = "") -> _Said:
        command = confine(
            argv,
            self.environment(),
            confinement=self.setup.confinement,
            readable=(*self.readable, *map(Path, self.setup.resolved.box.tools.values())),
            writable=(self.home.path,),
            cwd=self.home.path,
        )
        done = subprocess.run(
            command, env=OUTER_ENVIRONMENT, input=told, capture_output=True, text=True, timeout=STEP_S, check=False
        )
        return _Said(done.returncode, done.stdout, done.stderr)

    # ------------------------------------------------------------------------------------------ what is tried

    def models(self) -> Check:
        files = given_to(self.setup.resolved, os.environ).files
        said = self.run(["/bin/sh", "-c", READ_ENDS], "".join(f"{file}\n" for file in files))
        if said.code:
            return _failed("trial: models", f"not every file can be read: {said.last}", "chmod -R a+rX its folder")
        return _ok("trial: models", f"{len(files)} files opened to their ends")

    def caches(self) -> Check:
        folders = sorted({value for value in self.home.variables.values() if value.startswith(str(self.home.path))})
        said = self.run(["/bin/sh", "-c", WRITE_EACH, "trial", *folders])
        if said.code:
            return _failed("trial: caches", f"a cache cannot be written: {said.last}", "df -h; mount: /tmp read-only?")
        return _ok("trial: caches", f"{len(folders)} folders of a private HOME written")

    def c_compiler(self) -> Check:
        include = self._include()
        if include is None:
            return _not_tried("trial: C compiler", "no environment whose Python.h could be used", NO_ENVIRONMENT)
        said = self.run(["cc", "-c", f"-I{include}", str(self.place / "trial.c"), "-o", "trial.o"])
        if said.code:
            remedy = "sudo apt-get install gcc libc6-dev; Python.h comes with uv's Python, or python3-dev"
            return _failed("trial: C compiler", f"cc with Python.h: {said.last}", remedy)
        return _ok("trial: C compiler", "a program with Python.h compiled")

    def _include(self) -> str | None:
        if self.setup.python is None:
            return None
        said = self.run([str(self.setup.python), "-I", str(self.place / "trial.py"), "headers"])
        return str(Path(said.out.strip()).parent) if said.out.strip() else None

    def nvcc(self) -> Check:
        said = self.run(["nvcc", "-c", str(self.place / "trial.cu"), "-o", "kernel.o"])
        if said.code:
            return _failed("trial: nvcc", said.last, "install the CUDA toolkit of torch's major; tools: {nvcc: FOLDER}")
        return _ok("trial: nvcc", "a kernel compiled")

    def inductor(self) -> Check:
        name = "trial: torch.compile"
        if self.setup.python is None:
            return _not_tried(name, "no environment", NO_ENVIRONMENT)
        said = self.run([str(self.setup.python), str(self.place / "trial.py"), "inductor", self.setup.device])
        if "No module named 'torch'" in said.err:
            return _not_tried(name, "no torch in this environment", NO_ENVIRONMENT)
        if said.code:
            return _failed(name, said.last, "a C compiler and Python.h are needed: see the lines before")
        path = ":".join([*self.setup.resolved.box.tools.values(), os.environ.get("PATH", "")])
        nvcc = shutil.which("nvcc", path=path) if self.setup.resolved.needs_gpus else None
        torch_cuda = said.out.partition("CUDA ")[2].partition(":")[0]
        if nvcc and (why := cuda_mismatch(nvcc_version(nvcc), torch_cuda if torch_cuda != "none" else None)):
            return _failed(name, why, "install the toolkit of torch's major, and name it: tools: {nvcc: FOLDER}")
        return _ok(name, said.out.strip().splitlines()[-1])

    def all_reduce(self) -> Check:
        name, resolved = "trial: all-reduce", self.setup.resolved
        if self.setup.python is None:
            return _not_tried(name, "no environment", NO_ENVIRONMENT)
        ranks = max((ranks_of(recipe.flags) for recipe in resolved.recipes), default=1) if resolved.needs_gpus else 2
        log = {"NCCL_DEBUG_FILE": "/dev/stderr"}
        canary = CanarySetup(
            python=self.setup.python,
            device="cuda" if resolved.needs_gpus else "cpu",
            ranks=ranks,
            environment={**resolved.nccl, **resolved.box.env, **share_of(resolved.box).variables, **NCCL_TELLS, **log},
            confinement=self.setup.confinement,
            readable=self.readable,
            limit_s=STEP_S,
            log=self.place / "nccl.log",
        )
        with CanaryProcess(canary) as process:
            reading = process.measure()
        times = {key: values for key, values in reading.readings.items() if key.startswith("allreduce")}
        if not reading.readings:
            return _failed(name, "; ".join(reading.notes), "perfgate doctor; NCCL_DEBUG=INFO says more")
        if not times:
            return _not_tried(name, "; ".join(reading.notes) or "one rank", NO_ENVIRONMENT)
        report = read_nccl_logs([self.place / "nccl.log"])
        refused = sorted({f"{key}={value}" for rank in report.ranks for key, value in rank.invalid.items()})
        links = ", ".join(dict.fromkeys(link for rank in report.ranks for link in rank.links))
        if refused:
            return _failed(name, f"NCCL refuses {', '.join(refused)}", "correct it under `nccl:` in the box file")
        first = min(times, key=lambda key: int("".join(filter(str.isdigit, key)) or 0))
        way = f" over {links}" if links else " over gloo" if not resolved.needs_gpus else ""
        return _ok(name, f"{ranks} ranks{way}, {min(times[first]):.0f} µs for the smallest")

    def server(self) -> Check:
        name = "trial: server"
        if self.setup.python is None:
            return _not_tried(name, "no environment", NO_ENVIRONMENT)
        recipe = min(self.setup.resolved.recipes, key=lambda one: (one.speculative, one.name))
        spec = self._spec(recipe, self.setup.python)
        server = Server.start(spec)
        try:
            seconds = server.wait_ready(lambda stage: self.setup.say(f"    {stage}"))
        except LaunchError as error:
            return _failed(name, f"{recipe.name}: {error.text}", "its log: see the lines above")
        finally:
            server.stop()
        return _ok(name, f"{recipe.name} answered after {seconds:.0f} s")

    def _spec(self, recipe: ResolvedRecipe, python: Path) -> LaunchSpec:
        port, limits = free_port(), self.setup.resolved.limits
        argv = server_command(
            python,
            recipe.flags,
            model=recipe.model_path,
            revision=recipe.revision,
            draft=recipe.draft_path,
            draft_revision=recipe.draft_revision,
            port=port,
        )
        return LaunchSpec(
            argv=argv,
            environment=self.environment(recipe),
            cwd=self.home.path,
            port=port,
            log=self.place / "server.log",
            stall_s=limits.launch_stall_s,
            stop_s=limits.stop_s,
            confinement=self.setup.confinement,
            readable=self.readable,
            writable=(self.home.path,),
        )
