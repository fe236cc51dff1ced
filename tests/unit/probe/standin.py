"""A stand-in for SGLang, written to disk from the recorded layout of a release: its modules, classes and methods, none
of its code. Work is simulated: on the host by waiting, on the fake device by moving its clock.

A driver script runs cycles of one family in a process of its own, under the probe.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perfgate.probe.inside import probe_environment, probe_path
from perfgate.probe.inside.targets import TARGETS
from perfgate.probe.layout import Layout

LAYOUTS = Path(__file__).parent / "layouts"
RELEASES = sorted((path.stem for path in LAYOUTS.glob("*.json")), key=lambda v: [int(n) for n in v.split(".")])
MS = {"draft": 2.0, "verify": 8.0, "draft_extend": 3.0, "decode": 5.0}  # of the device; verify includes its forward

BODIES = {
    "draft": "def draft(self, batch): work('draft')",
    "verify": "def verify(self, batch, *_): self.target.forward_batch_generation(batch, is_verify=True); work('rest')",
    "forward_draft_extend_after_decode": "def forward_draft_extend_after_decode(self, batch): work('draft_extend')",
    "_draft_extend_for_decode": "def _draft_extend_for_decode(self, batch, result): work('draft_extend')",
    "initialize_model_parallel": "def initialize_model_parallel(): os.environ.setdefault('NCCL_FROM_SGLANG', '1')",
}
CYCLE_V1 = """
def forward_batch_generation(self, batch):
    if batch.forward_mode.is_extend():
        return self.target.forward_batch_generation(batch)
    self.draft(batch)
    self.verify(batch, None)
    self.forward_draft_extend_after_decode(batch)
    return 'result'
"""
CYCLE_V2 = """
def forward_batch_generation(self, batch, on_publish=None):
    if batch.forward_mode.is_extend():
        return self.target.forward_batch_generation(batch)
    self.draft_worker.draft(batch)
    self.verify(batch)
    self.draft_worker._draft_extend_for_decode(batch, None)
    return 'result'
"""
BODIES["forward_batch_speculative_generation"] = CYCLE_V1.replace(
    "_batch_generation(self, batch):", "_batch_speculative_generation(self, batch):"
)
DECODE = "def forward_batch_generation(self, batch, is_verify=False): work('decode'); return 'logits'"

SUPPORT = """
import os, time
device = {device!r}
if device == 'cuda':
    import torch
MS = {ms!r}
def work(what):
    ms = MS.get('verify', 0) - MS.get('decode', 0) if what == 'rest' else MS.get(what, 0)
    if device == 'cuda':
        torch.cuda.work(ms)
    else:
        end = time.perf_counter() + ms / 1000
        while time.perf_counter() < end:
            pass
class Mode:
    def __init__(self, name): self.name = name
    def is_extend(self): return self.name == 'extend'
    def is_decode(self): return self.name == 'decode'
    def is_idle(self): return self.name == 'idle'
class Batch:
    is_extend_in_batch = False
    def __init__(self, mode='decode', size=1):
        self.forward_mode = Mode(mode); self.seq_lens = [7] * size
"""

FAKE_TORCH = """
import types
__version__ = '2.99.0+fake'
version = types.SimpleNamespace(cuda='13.9')
class _Device:
    now = 0.0
    queue = 0
    capturing = False
    latency = {latency}
    stuck = {stuck!r}
class Event:
    made = 0
    def __init__(self, enable_timing=False):
        assert enable_timing
        Event.made += 1
        self.number = Event.made
    def record(self):
        assert not _Device.capturing, 'an event recorded into a graph'
        self.at = _Device.now
        self.queued = _Device.queue
    def query(self):
        assert not _Device.capturing, 'a query while a graph is captured'
        if _Device.stuck == 'all' or (_Device.stuck and self.number in _Device.stuck):
            return False
        late = _Device.latency * (3 if {shuffled} and self.number % 3 == 0 else 1)
        return _Device.queue >= self.queued + late
    def elapsed_time(self, end):
        assert self.query() and end.query(), 'read before it was ready'
        return end.at - self.at
    def synchronize(self):
        raise AssertionError('the probe must never wait')
def work(ms):
    _Device.now += ms
    _Device.queue += 1
cuda = types.SimpleNamespace(
    Event=Event, work=work, device=_Device, is_initialized=lambda: True, is_available=lambda: True,
    is_current_stream_capturing=lambda: _Device.capturing, current_device=lambda: 3,
    get_device_name=lambda index: 'Fake GPU', synchronize=Event.synchronize)
"""

DRIVER = """
import sys, time
import sglang
from sglang import support
from sglang.srt.distributed.parallel_state import initialize_model_parallel
from sglang.srt.managers.tp_worker import TpModelWorker
initialize_model_parallel()
family, cycles = sys.argv[1], int(sys.argv[2])
target = TpModelWorker(); target.device = {device!r}
if family == 'plain':
    worker = target
else:
    import importlib
    module, owner, drafter = {places!r}[family]
    module = importlib.import_module(module)
    worker = getattr(module, owner)(); worker.target = target; worker.device = {device!r}
    if drafter: worker.draft_worker = getattr(module, drafter)()
def cycle(mode='decode', size=1):
    run = getattr(worker, 'forward_batch_speculative_generation', worker.forward_batch_generation)
    return run(support.Batch(mode, size))
{script}
time.sleep({linger})
"""
RUN = "for _ in range(16 + cycles): assert cycle() in ('result', 'logits')"


@dataclass(frozen=True)
class StandIn:
    """A package tree under `root`; `device` "cpu" or "cuda" (fake)."""

    root: Path
    layout: Layout
    device: str = "cpu"
    ms: Mapping[str, float] = field(default_factory=lambda: dict(MS))
    latency: int = 0
    stuck: str | tuple[int, ...] = ()
    shuffled: bool = False

    def write(self) -> StandIn:
        for module in self.layout.modules:
            self._write(module.replace(".", "/") + ".py", self._module(module))
        for package in (
            "sglang",
            "sglang/srt",
            "sglang/srt/managers",
            "sglang/srt/distributed",
            "sglang/srt/speculative",
        ):
            self._write(f"{package}/__init__.py", "")
        self._write("sglang/support.py", SUPPORT.format(device=self.device, ms=dict(self.ms)))
        if self.device == "cuda":
            fake = FAKE_TORCH.format(latency=self.latency, stuck=self.stuck, shuffled=self.shuffled)
            self._write("torch/__init__.py", fake)
        return self

    def _write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _module(self, module: str) -> str:
        homes = {name: at for at, of in self.layout.modules.items() for name in of.classes}
        lines = ["import os", "from sglang.support import work"]
        for name, of in self.layout.modules[module].classes.items():
            bases = [base for base in of.bases if base in homes]
            lines += [f"from {homes[base]} import {base}" for base in bases if homes[base] != module]
            bodies = [self._body(name, method, base=bool(bases)) for method in of.methods] or ["pass"]
            lines.append(f"class {name}({', '.join(bases)}):\n" + textwrap.indent("\n".join(bodies), "    "))
        lines += [BODIES[name] for name in self.layout.modules[module].functions]
        return "\n".join(lines) + "\n"

    def _body(self, owner: str, method: str, *, base: bool) -> str:
        if method != "forward_batch_generation":
            return BODIES[method]
        if owner.endswith("TpWorker") or owner == "TpModelWorker":
            return DECODE
        return CYCLE_V2 if owner.endswith("V2") else CYCLE_V1

    def run(
        self,
        family: str,
        probe_dir: Path,
        *,
        cycles: int = 8,
        script: str = RUN,
        linger: float = 0.0,
        environment: Mapping[str, str] | None = None,
        first_on_path: tuple[Path, ...] = (),
        launch: str = "l1",
    ) -> subprocess.CompletedProcess[str]:
        """Runs cycles of a family in a new process under the probe."""
        driver = self.root / "driver.py"
        driver.write_text(DRIVER.format(device=self.device, places=_places(), script=script, linger=linger))
        path = ":".join(map(str, (probe_path(), *first_on_path, self.root)))
        variables = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
            **probe_environment(probe_dir, launch=launch),
            **(environment or {}),
        }
        return subprocess.run(
            [sys.executable, str(driver), family, str(cycles)],
            env=variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def _places() -> dict[str, tuple[str, str, str | None]]:
    places: dict[str, tuple[str, str, str | None]] = {}
    for target in TARGETS:
        if target.phase == "cycle":
            drafter = next(t.owner for t in TARGETS if t.family == target.family and t.phase == "draft")
            places[target.family] = (
                target.module,
                str(target.owner),
                drafter if drafter != target.owner else None,
            )
    return places


def layout_of(release: str) -> Layout:
    return Layout.from_json((LAYOUTS / f"{release}.json").read_text())


def families_of(layout: Layout) -> list[str]:
    return sorted(family for family, (module, owner, _) in _places().items() if _has(layout, module, owner))


def _has(layout: Layout, module: str, owner: str) -> bool:
    return module in layout.modules and owner in layout.modules[module].classes
