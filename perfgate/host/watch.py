"""The box watched during a run: who used its cores and GPUs in each sample, and what speaks against a launch.

`BoxWatch` lives as long as the run and reads the GPUs; `LaunchWatch` turns its readings into `telemetry` facts. What
makes a launch unfit is told by `unfit`: heat or power brake, a lost GPU, a stranger on a GPU. Nothing here decides
whose fault a slow launch is.

    box = BoxWatch.open()
    watch = box.launch(launch, emit)
    watch.ready(server.pids)
    watch.before_sample(server.pids); …; watch.after_sample(sample.sample, sample.begin, sample.end)
    watch.after_stop(server_log, nccl_logs, ranks, flags)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from perfgate.host.gpu import (
    ALL_GPUS,
    GpuProcess,
    GpuReading,
    GpuShare,
    describe_gpus,
    gpu_processes,
    read_gpus,
    why_not_free,
)
from perfgate.host.nccl import read_nccl_logs
from perfgate.host.nccl_paths import all_reduce_in
from perfgate.host.nvml import Nvml, NvmlAbsentError
from perfgate.host.processes import snapshot, tree
from perfgate.host.system import SystemWatch
from perfgate.host.telemetry import PERIOD_S, GpuTelemetry, complaints
from perfgate.records import LaunchId, Telemetry

Emit = Callable[[Telemetry], object]


class BoxWatch:
    """NVML and its telemetry thread for a whole run; without NVML only the system is watched, and `absent` says why."""

    def __init__(
        self,
        nvml: Nvml | None,
        absent: str | None = None,
        period_s: float = PERIOD_S,
        share: GpuShare = ALL_GPUS,
    ) -> None:
        self.nvml = nvml
        self.share = share
        self.absent = absent
        self.telemetry = GpuTelemetry.of(nvml, period_s).start() if nvml is not None else None

    @classmethod
    def open(cls, period_s: float = PERIOD_S, share: GpuShare = ALL_GPUS) -> Self:
        try:
            return cls(Nvml.open(share.visible), period_s=period_s, share=share)
        except NvmlAbsentError as error:
            return cls(None, str(error), share=share)

    def close(self) -> None:
        if self.telemetry is not None:
            self.telemetry.stop()
        if self.nvml is not None:
            self.nvml.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def why_not_free(self, ours: Collection[int] = ()) -> tuple[str, ...]:
        """One sentence for each GPU that others use now."""
        if self.nvml is None:
            return ()
        return why_not_free(describe_gpus(self.nvml, time.monotonic()), ours, self.share)

    def gpus_free(self) -> bool:
        return not self.why_not_free()

    def read_gpus(self) -> Callable[[float], Sequence[GpuReading]] | None:
        """For the canary: reads all GPUs at once."""
        nvml = self.nvml
        return None if nvml is None else lambda at: read_gpus(nvml, at)

    def gpu_names(self) -> tuple[str | None, ...]:
        """Models of the GPUs; none without NVML."""
        nvml = self.nvml
        return () if nvml is None else tuple(nvml.text("nvmlDeviceGetName", handle) for handle in nvml.handles)

    def launch(self, launch: LaunchId, emit: Emit) -> LaunchWatch:
        return LaunchWatch(self, launch, emit)


@dataclass(frozen=True)
class GpuGuest:
    """A stranger's process on a GPU while a launch was measured."""

    gpu: int
    pid: int
    command: str | None  # short hash


class LaunchWatch:
    """One launch, made before its server is started. Every method is cheap and is called from one thread."""

    def __init__(self, box: BoxWatch, launch: LaunchId, emit: Emit) -> None:
        self._box = box
        self._head = {"id": launch.launch_id, **launch.identity}
        self._emit = emit
        self._system: SystemWatch | None = None
        self._window: tuple[float, float] | None = None
        self._unseen_at_ready: frozenset[int] = frozenset()
        self._guests: dict[tuple[int, int], GpuGuest] = {}
        self._gpus: tuple[Mapping[str, Any], ...] = ()
        self._note_guests(())  # whoever is there before the server starts is not the server

    def ready(self, pids: Collection[int]) -> None:
        """The server answers. GPU processes that cannot be seen from here and are there now are taken as its own:
        where the driver counts pids otherwise than this container, they cannot be told apart."""
        ours = _ours(pids)
        self._unseen_at_ready = frozenset(
            process.pid for _, process in self._processes() if process.command is None and process.pid not in ours
        )

    def before_sample(self, pids: Collection[int]) -> None:
        self._system = SystemWatch.start(pids)
        if self._box.telemetry is not None:
            self._box.telemetry.read_now()

    def after_sample(self, number: int, begin: float, end: float, pids: Collection[int] = ()) -> None:
        """Emits the telemetry of one sample; `begin` and `end` are the sample's own (time.monotonic())."""
        system = self._system.stop() if self._system is not None else {}
        telemetry = self._box.telemetry
        if telemetry is not None:
            telemetry.read_now()
        gpus = telemetry.between(begin, end) if telemetry is not None else ()
        self._note_guests(pids)
        self._window = (self._window[0] if self._window else begin, end)
        guests = [asdict(guest) for guest in self._guests.values()]
        self._write(f"s{number}", number, gpus, {**system, **({"gpu_guests": guests} if guests else {})})

    def after_stop(
        self, log: Path, nccl_logs: Iterable[Path] = (), ranks: int = 1, flags: Mapping[str, Any] | None = None
    ) -> None:
        """Emits the telemetry of the whole launch, with what NCCL reported and which all-reduce was active."""
        telemetry = self._box.telemetry
        if telemetry is not None and self._window is not None:
            self._gpus = telemetry.between(*self._window)
        report = read_nccl_logs(nccl_logs)
        system = {
            "all_reduce": asdict(all_reduce_in(ranks, flags or {}, log)),
            **({"nccl": report.as_facts()} if report.ranks else {}),
            **({"gpu_guests": [asdict(guest) for guest in self._guests.values()]} if self._guests else {}),
        }
        self._write("launch", None, self._gpus, system)

    def unfit(self) -> tuple[str, ...]:
        """Why this launch says nothing about its commit, one sentence each; asked after the last sample."""
        telemetry = self._box.telemetry
        if telemetry is not None and self._window is not None:
            self._gpus = telemetry.between(*self._window)
        return (*unfit_gpus(self._gpus), *map(guest_words, self._guests.values()))

    def _processes(self) -> list[tuple[int, GpuProcess]]:
        nvml = self._box.nvml
        if nvml is None:
            return []
        return [
            (index, one)
            for index, handle in nvml.numbered
            for one in gpu_processes(nvml, handle)
            if not self._box.share.allows(one)
        ]

    def _note_guests(self, pids: Collection[int]) -> None:
        found = self._processes()
        if not found:
            return
        ours = _ours(pids) | self._unseen_at_ready
        for gpu, process in found:
            if process.pid not in ours:
                self._guests[gpu, process.pid] = GpuGuest(gpu, process.pid, process.command)

    def _write(
        self, name: str, sample: int | None, gpus: tuple[Mapping[str, Any], ...], system: Mapping[str, Any]
    ) -> None:
        head = {**self._head, "id": f"{self._head['id']}/telemetry/{name}"}
        self._emit(Telemetry(**head, sample=sample, gpus=gpus, system=system))


def unfit_gpus(gpus: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """What telemetry of GPUs says against a launch: lost, or held back by heat, hardware or the power brake."""
    return tuple(f"GPU {gpu['index']} {what}" for gpu in gpus for _, what in complaints(gpu))


def guest_words(guest: GpuGuest) -> str:
    who = f"command {guest.command}" if guest.command else "not visible from here"
    return f"another process (pid {guest.pid}, {who}) used GPU {guest.gpu}"


def _ours(pids: Collection[int]) -> frozenset[int]:
    return frozenset(tree(snapshot(), (*pids, os.getpid())))
