"""The canary: a fixed micro-measurement of the box before and after each launch, the same whatever the sides are.

All-reduce at the sizes of decoding under the box's NCCL variables, and a fixed computing load, each a few seconds.
While it runs, the GPUs' clocks are read: under the same load they should be the same, whoever is measured next. It
runs in an environment that no pull request touches: base's, or the one that a profile fixes. Confined like a server:
what base depends on comes from an index, and an interpreter runs it before any line of ours.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter

from perfgate.host import canary_script
from perfgate.host.gpu import GpuReading
from perfgate.host.handover import hand_over
from perfgate.host.sandbox import OUTER_ENVIRONMENT, UNCONFINED, Confinement, confine
from perfgate.host.temporary import temporary_folder

SCRIPT = Path(__file__).with_name("canary_script.py")
SIZES = (32 * 1024, 64 * 1024, 256 * 1024)
REPEATS = 5
CPU_RANKS = 2
LIMIT_S = 120.0  # eight GPUs and NCCL need about ten
CLOCK_PERIOD_S = 0.1
SAME_S = 30.0  # a reading so soon after another one is that one: one between two launches
NCCL_SAYS = b" NCCL "  # with NCCL_DEBUG it writes to stdout, if no file is named
LOAD_BEGINS, LOAD_ENDS = canary_script.LOAD_BEGINS.encode(), canary_script.LOAD_ENDS.encode()
HANDED_ON = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH")
FIXED = {"OMP_NUM_THREADS": "1", "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
MAX_ANSWER = 1 << 20  # bytes; an answer has a few hundred


@dataclass(frozen=True, kw_only=True)
class CanarySetup:
    """Where and how the canary runs. `environment`: the NCCL variables and the box's own, as servers get them."""

    python: Path
    device: Literal["cuda", "cpu"]
    ranks: int
    environment: Mapping[str, str] = field(default_factory=dict)
    confinement: Confinement = UNCONFINED
    readable: tuple[Path, ...] = ()  # what its interpreter needs
    sizes: tuple[int, ...] = SIZES
    repeats: int = REPEATS
    limit_s: float = LIMIT_S
    log: Path | None = None  # for what its libraries print


@dataclass(frozen=True, kw_only=True)
class CanaryReading:
    """`readings` for `records.Canary.readings`; empty where the canary failed, with the reason in `notes`."""

    readings: Mapping[str, tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...]]
    notes: tuple[str, ...]


_ANSWER = TypeAdapter(CanaryReading)


Keep = Callable[[], AbstractContextManager[Mapping[str, str]]]


def _unkept() -> AbstractContextManager[Mapping[str, str]]:
    return nullcontext({})


class CanaryProcess:
    """The canary's process, started at the first reading and kept until `close`. Holds no GPU memory in between.

    Where it runs as the user of the servers it is ended after each reading: they could signal it, and write its files.

    `keep` is entered before the process starts and left when it has ended: somebody outside ends all that carries these
    variables, should perfgate be killed meanwhile. What it raises is passed on.
    """

    def __init__(
        self,
        setup: CanarySetup,
        read_gpus: Callable[[float], Sequence[GpuReading]] | None = None,
        keep: Keep = _unkept,
    ) -> None:
        self._setup = setup
        self._read_gpus = read_gpus
        self._keep = keep
        self._kept = ExitStack()
        self._place = ExitStack()
        self._last: tuple[float, CanaryReading] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """Its own process, to tell it from strangers'."""
        return () if self._process is None else (self._process.pid,)

    def before_launch(self) -> CanaryReading:
        """The reading after the launch before, where that was a moment ago; else a new one."""
        if self._last is not None and time.monotonic() - self._last[0] < SAME_S:
            return self._last[1]
        return self.measure()

    def measure(self) -> CanaryReading:
        """One reading. A canary that cannot sing is a note, not the end of a run; one that cannot be ended is."""
        begin = time.monotonic()
        try:
            text, clocks = self._ask(begin + self._setup.limit_s)
            answer = _ANSWER.validate_json(text)
        except (OSError, ValueError) as error:  # pydantic's error is a ValueError
            self.close()
            return CanaryReading(readings={}, notes=(f"the canary gave no answer: {str(error).splitlines()[0]}",))
        if self._setup.confinement.sole_user is not None:
            self.close()
        reading = CanaryReading(readings={**answer.readings, **clocks_under_load(clocks)}, notes=answer.notes)
        self._last = time.monotonic(), reading
        return reading

    def close(self) -> None:
        """Ends the process and its ranks."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end(process)
        self._place.close()
        self._kept.__exit__(kind, error, trace)

    def _ask(self, deadline: float) -> tuple[bytes, list[Sequence[GpuReading]]]:
        """Its answer, and the GPUs' states meanwhile."""
        setup = self._setup
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        request = {"ranks": setup.ranks, "device": setup.device, "sizes": setup.sizes, "repeats": setup.repeats}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout is not None
        told = _Told()
        clocks: list[Sequence[GpuReading]] = []
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while told.answer is None or (told.began and self._read_gpus is not None):
                if time.monotonic() > deadline:
                    raise ValueError(f"not within {self._setup.limit_s:.0f} s")
                if (told.loaded or told.began) and self._read_gpus is not None:
                    told.began = False
                    clocks.append(self._read_gpus(time.monotonic()))
                if told.answer is None and selector.select(CLOCK_PERIOD_S):
                    part = os.read(process.stdout.fileno(), 65536)
                    if not part:
                        raise ValueError(f"its process ended with status {process.wait()}")
                    told.hear(part)
        return told.answer, clocks[1:] or clocks  # the first is of the moment in which the load begins

    def _start(self) -> subprocess.Popen[bytes]:
        setup, confinement = self._setup, self._setup.confinement
        marks = self._kept.enter_context(self._keep())
        place = self._place.enter_context(temporary_folder("canary"))
        place.chmod(0o755)
        script, home = place / SCRIPT.name, place / "home"
        shutil.copyfile(SCRIPT, script)  # perfgate's own folders are shown to nobody
        home.mkdir()
        hand_over([home], confinement)
        own = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
        places = {"HOME": str(home), "TMPDIR": "/tmp" if confinement.private_tmp else str(home)}
        argv = confine(
            [str(setup.python), "-I", str(script)],
            {**own, **FIXED, **setup.environment, **places, **marks},
            confinement=confinement,
            readable=(place, *setup.readable),
            writable=(home,),
            cwd=home,
        )
        with (setup.log or Path(os.devnull)).open("ab") as log:
            return subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**OUTER_ENVIRONMENT, **marks},
                start_new_session=True,
            )


class _Told:
    """What the canary says: that its load begins or ends, and its answer."""

    def __init__(self) -> None:
        self._text = b""
        self.loaded = False
        self.began = False  # and nothing has been read since: a load too short to be met is read beside
        self.answer: bytes | None = None

    def hear(self, part: bytes) -> None:
        *lines, self._text = (self._text + part).split(b"\n")
        for line in lines:
            if line in (LOAD_BEGINS, LOAD_ENDS):
                self.loaded = line == LOAD_BEGINS
                self.began = self.began or self.loaded
            elif NCCL_SAYS not in line:
                self.answer = line
        if len(self._text) > MAX_ANSWER:
            raise ValueError("it says too much")


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    process.wait()


def clocks_under_load(readings: Sequence[Sequence[GpuReading]]) -> dict[str, tuple[float, ...]]:
    """Per GPU the median clock, and the best link, of readings inside the load: "gpu0_sm_clock_mhz", "gpu0_pcie_gen".

    What a card does not tell is left out.
    """
    found: dict[str, tuple[float, ...]] = {}
    for states in zip(*readings, strict=True):
        index = states[0].index
        clocks = [state.sm_clock_mhz for state in states if state.sm_clock_mhz]
        if clocks:
            found[f"gpu{index}_sm_clock_mhz"] = (float(sorted(clocks)[len(clocks) // 2]),)
        links = [state.pcie_gen for state in states if state.pcie_gen]
        if links:
            found[f"gpu{index}_pcie_gen"] = (float(max(links)),)
    return found
