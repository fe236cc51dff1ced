"""One whole launch: start, readiness, warm-up, samples at each concurrency, end. Facts are told as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from perfgate.config.model import Workload
from perfgate.engine import tree
from perfgate.engine.client import LoadClient
from perfgate.engine.faults import ClientError, LaunchError, PortTaken, ServerNotFreed
from perfgate.engine.found import found_at_start
from perfgate.engine.server import LaunchSpec, Progress, Server, free_port
from perfgate.engine.watchdog import Watchdog
from perfgate.records import Fact, LaunchBegin, LaunchEnd, LaunchId, Sample

PORT_TRIES = 3
BROKEN_OFF = frozenset({"connection_lost", "answer_cut", "answer_empty"})
DEATH_S = 1.0  # for a dying server to be gone after its connection broke


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """What to launch, and its place in the run. The port in `spec` is only where to begin looking."""

    launch: LaunchId
    sha: str
    build: str  # key
    spec: LaunchSpec
    workload: Workload
    speculative: bool
    log: str  # as the facts name it: relative to the run
    seed: int = 0  # of the run: what prompts are marked by
    autotune: str = ""  # what it starts from: "fresh", "seed <hash>", "none", "off"


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class LaunchHooks:
    """What others do around the measuring, each in the thread that called `run_launch`.

    A hook may raise LaunchError: the launch is not valid then.
    """

    over_again: Callable[[], None] = _nothing  # another port is tried: what the first try wrote is to be forgotten
    ready: Callable[[Server], None] = _nothing  # first answer is there, nothing measured yet
    before_sample: Callable[[Server, int, int], None] = _nothing  # concurrency, number of the sample in the launch
    after_sample: Callable[[Server, Sample], None] = _nothing
    before_stop: Callable[[Server], None] = _nothing  # all samples taken, server alive
    after_stop: Callable[[Sequence[Sample]], None] = _nothing  # processes gone, their files complete; before launch_end


@dataclass
class _Run:
    """A launch in progress."""

    plan: LaunchPlan
    emit: Callable[[Fact], object]
    hooks: LaunchHooks
    progress: Progress
    watchdog: Watchdog | None
    gpus_free: Callable[[], bool] | None
    server: Server | None = None
    ready_s: float | None = None
    samples: list[Sample] = field(default_factory=list)
    faults: list[LaunchError] = field(default_factory=list)  # the one that counts first
    pids: tuple[int, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)  # of the warm-up

    @property
    def fault(self) -> LaunchError | None:
        return self.faults[0] if self.faults else None

    def measure(self) -> None:
        """From the start to the last sample. Raises LaunchError."""
        server = self._start()
        self.hooks.ready(server)
        client = self._client(server)
        try:
            self._load(server, client)
        except ClientError as error:
            raise explained(server, error) from error
        self.hooks.before_stop(server)

    def _client(self, server: Server) -> LoadClient:
        plan = self.plan
        return LoadClient(
            server.url,
            plan.workload,
            speculative=plan.speculative,
            seed=f"{plan.seed}/{plan.launch.recipe}",
            launch=plan.launch,
            look=server.check_output,
        )

    def _start(self) -> Server:
        """A ready server, on another port where somebody took the first."""
        for last in (False,) * (PORT_TRIES - 1) + (True,):
            spec = self.plan.spec.on_port(self._free_port())
            self.emit(begin_fact(self.plan, spec, found_at_start(spec)))
            try:
                self.server = Server.start(spec, watchdog=self.watchdog, gpus_free=self.gpus_free)
                self.ready_s = self.server.wait_ready(self.progress)
            except PortTaken:
                if last:
                    raise
                self.stop()
                self.hooks.over_again()
            else:
                return self.server
        raise AssertionError("unreachable")

    def _free_port(self) -> int:
        try:
            return free_port()
        except PortTaken:
            self.emit(begin_fact(self.plan, self.plan.spec, None))  # what ends has begun
            raise

    def _load(self, server: Server, client: LoadClient) -> None:
        self.progress("warming up")
        warm_up = client.warm_up()
        self.outputs = warm_up.outputs
        if not warm_up.steady:
            self.progress(f"warming up · still getting faster after {warm_up.requests} requests")
        workload, samples = self.plan.workload, self.plan.workload.sample_count
        total = len(workload.concurrency) * samples
        for number in range(total):
            concurrency = workload.concurrency[number // samples]
            self.progress(f"measuring · sample {number + 1} of {total}, concurrency {concurrency}")
            self.hooks.before_sample(server, concurrency, number)
            sample = client.sample(concurrency, number)
            server.check_output()
            self.emit(sample)
            self.samples.append(sample)
            self.hooks.after_sample(server, sample)

    def stop(self) -> None:
        """Ends the server. Raises ServerNotFreed."""
        server = self.server
        if server is None:
            return
        try:
            server.stop()
        finally:
            self.pids = server.pids
        self.server = None


def run_launch(
    plan: LaunchPlan,
    emit: Callable[[Fact], object],
    *,
    hooks: LaunchHooks | None = None,
    progress: Progress = _nothing,
    watchdog: Watchdog | None = None,
    gpus_free: Callable[[], bool] | None = None,
) -> LaunchEnd:
    """Makes one launch and tells its facts, `launch_end` last; a launch that failed is an end that is not valid.

    Raises ServerNotFreed, all facts told, where something of the launch is left. It counts before what went wrong
    earlier: a rank that hangs in the driver first gives no answer, and then does not end.

    `emit` writes a fact down before it returns; what it raises (a full disk) ends the launch and is passed on. So is
    an interrupt, at once: the watchdog, where there is one, ends the server then.
    """
    run = _Run(plan, emit, hooks or LaunchHooks(), progress, watchdog, gpus_free)
    began = time.monotonic()
    server: Server | None = None
    left: ServerNotFreed | None = None
    try:
        try:
            run.measure()
        except LaunchError as error:
            run.faults.append(error)
        server = run.server
        run.progress("ending the server")
        try:
            run.stop()
            run.hooks.after_stop(run.samples)
        except ServerNotFreed as error:
            left = error
            run.faults.insert(0, error)
        except LaunchError as error:
            run.faults.append(error)
    except (KeyboardInterrupt, SystemExit):
        if run.server is not None:
            run.server.kill_now()
        raise
    except BaseException:
        with suppress(ServerNotFreed):
            run.stop()
        raise
    end = end_fact(run, server, time.monotonic() - began)
    emit(end)
    if left is not None:
        raise left
    return end


def explained(server: Server, error: ClientError) -> LaunchError:
    """The server's own fault where a failed answer comes from one: it is dying, or its log says why it hangs."""
    if error.code in BROKEN_OFF:
        tree.wait_until(lambda: not server.alive(), DEATH_S)
    state = server.log.read()
    if not server.alive() or state.fatal:
        return server.died()
    return ClientError(error.code, error.text, state.useful, remedy=error.remedy, blame=error.blame)


# ------------------------------------------------------------------------------------------------ facts


def begin_fact(plan: LaunchPlan, spec: LaunchSpec, found: Mapping[str, str] | None) -> LaunchBegin:
    return LaunchBegin(
        id=plan.launch.launch_id,
        **plan.launch.identity,
        sha=plan.sha,
        build=plan.build,
        argv=spec.argv,
        given=dict(spec.environment),
        port=spec.port,
        log=plan.log,
        autotune=plan.autotune,
        at_start=found,
    )


def end_fact(run: _Run, server: Server | None, wall_s: float) -> LaunchEnd:
    plan, fault = run.plan, run.fault
    return LaunchEnd(
        id=plan.launch.launch_id,
        **plan.launch.identity,
        valid=fault is None,
        reasons=tuple(one.text for one in run.faults),
        log=plan.log,
        ready_s=run.ready_s,
        wall_s=wall_s,
        code="" if fault is None else fault.code,
        blame=None if fault is None else fault.blame,
        lines=() if fault is None else fault.lines,
        pids=run.pids,
        outputs=run.outputs,
        facts_from_log={} if server is None else server.log.read_all().facts,
    )
