"""What the box is and who used it, read from made-up and from the real /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.host import system
from perfgate.host.cgroup import cgroup_limits, throttled_s
from perfgate.host.processes import TICK_S, ProcessTimes, cpu_between, snapshot, thread_times, tree
from perfgate.host.system import SystemWatch, _count_list, describe_system

SERVER, SCHEDULER, PERFGATE, NEIGHBOUR, KTHREAD = 100, 101, 50, 900, 2


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def stat_line(pid: int, parent: int, own: float, reaped: float = 0, kernel: bool = False, started: int = 7) -> str:
    ticks = [round(own / TICK_S), 0, round(reaped / TICK_S), 0]
    fields: list[object] = [
        "S",
        parent,
        0,
        0,
        0,
        0,
        0x00200000 if kernel else 0,
        0,
        0,
        0,
        0,
        *ticks,
        20,
        0,
        1,
        0,
        started,
        0,
    ]
    return f"{pid} (a ) name (x) {' '.join(map(str, fields))}\n"


def box(root: Path, *, server: float, scheduler: float, neighbour: float, kthread: float, wait: float) -> None:
    """A box on which five processes have used so much CPU so far (seconds)."""
    total = round((server + scheduler + neighbour + kthread) / TICK_S)
    put(
        root,
        {
            "proc/stat": f"cpu  {total} 0 0 5 5 9 9 {round(wait / TICK_S)} 0 0\ncpu0 1 2 3\n",
            "proc/loadavg": "3.25 1 1 1/100 1\n",
            f"proc/{KTHREAD}/stat": stat_line(KTHREAD, 0, kthread, kernel=True),
            f"proc/{PERFGATE}/stat": stat_line(PERFGATE, 1, 0),
            f"proc/{SERVER}/stat": stat_line(SERVER, PERFGATE, server),
            f"proc/{SCHEDULER}/stat": stat_line(SCHEDULER, SERVER, scheduler),
            f"proc/{NEIGHBOUR}/stat": stat_line(NEIGHBOUR, 1, neighbour),
            f"proc/{NEIGHBOUR}/cmdline": "/home/anna/train.py\0--secret\0",
            f"proc/{SERVER}/task/{SERVER}/schedstat": f"{int(server * 1e9)} 0 1\n",
            f"proc/{SCHEDULER}/task/{SCHEDULER}/schedstat": f"{int(scheduler * 1e9)} {int(wait * 1e9)} 1\n",
            f"proc/{SCHEDULER}/task/102/schedstat": f"0 {int(wait * 2e9)} 1\n",
        },
    )


def test_watch_tells_server_neighbour_and_kernel_apart(tmp_path: Path) -> None:
    box(tmp_path, server=10, scheduler=20, neighbour=500, kthread=40, wait=1)
    watch = SystemWatch.start([SERVER], root=tmp_path, own=PERFGATE)
    box(tmp_path, server=11, scheduler=24, neighbour=503, kthread=42, wait=1.5)
    seen = watch.stop()
    assert seen["server_cpu_s"] == pytest.approx(5)
    assert seen["own_cpu_s"] == pytest.approx(5)
    assert seen["others_cpu_s"] == pytest.approx(3)
    assert seen["steal_s"] == pytest.approx(0.5)
    assert seen["main_wait_s"] == pytest.approx(0.5)
    assert seen["server_wait_s"] == pytest.approx(1.5)
    assert seen["load1"] == 3.25
    assert [(one["pid"], one["cpu_s"]) for one in seen["foreign"]] == [(NEIGHBOUR, pytest.approx(3))]


def test_foreign_command_lines_leave_only_as_hashes(tmp_path: Path) -> None:
    box(tmp_path, server=0, scheduler=0, neighbour=0, kthread=0, wait=0)
    watch = SystemWatch.start([SERVER], root=tmp_path, own=PERFGATE)
    box(tmp_path, server=0, scheduler=0, neighbour=9, kthread=0, wait=0)
    told = repr(watch.stop())
    assert "anna" not in told
    assert "secret" not in told


def test_what_nobody_is_seen_to_have_used_is_not_others(tmp_path: Path) -> None:
    """A server whose parent ignores SIGCHLD leaves children of whom only the box's total knows."""
    box(tmp_path, server=0, scheduler=0, neighbour=0, kthread=0, wait=0)
    watch = SystemWatch.start([SERVER], root=tmp_path, own=PERFGATE)
    (tmp_path / "proc/stat").write_text(f"cpu  {round(2 / TICK_S)} 0 0 5 5 9 9 0 0 0\n")
    assert watch.stop()["others_cpu_s"] == pytest.approx(0)


def test_another_container_is_seen_by_what_our_group_did_not_use(tmp_path: Path) -> None:
    """Its processes are not to be seen from here, also where they have come and gone."""

    def used(seconds: float) -> None:
        put(tmp_path, {"sys/fs/cgroup/cpu.stat": f"usage_usec {round(seconds * 1e6)}\n", "proc/self/cgroup": "0::/\n"})

    box(tmp_path, server=0, scheduler=0, neighbour=0, kthread=0, wait=0)
    used(0)
    watch = SystemWatch.start([SERVER], root=tmp_path, own=PERFGATE)
    (tmp_path / "proc/stat").write_text(f"cpu  {round(5 / TICK_S)} 0 0 5 5 9 9 0 0 0\n")
    used(3)
    assert watch.stop()["others_cpu_s"] == pytest.approx(2)


def test_a_family_that_has_ended_is_counted_from_the_start_on() -> None:
    """A parent, its child and its grandchild end between two readings: their earlier lives are not of this span."""
    start = {
        1: ProcessTimes(1, 0, 0, 1.0, 0.0, False),
        5: ProcessTimes(5, 1, 0, 10.0, 3.0, False),
        6: ProcessTimes(6, 5, 0, 100.0, 0.0, False),
        7: ProcessTimes(7, 6, 0, 1000.0, 0.0, False),
    }
    stop = {1: ProcessTimes(1, 0, 0, 1.0, 1114.0, False)}
    assert cpu_between(start, stop, [1]) == pytest.approx(1.0)


def test_nothing_readable_is_none_not_zero(tmp_path: Path) -> None:
    seen = SystemWatch.start([SERVER], root=tmp_path, own=PERFGATE).stop()
    for key in ("server_cpu_s", "server_wait_s", "main_wait_s", "others_cpu_s", "steal_s", "throttled_s", "pressure_s"):
        assert seen[key] is None, key


def test_real_busy_child_is_ours_and_a_stranger_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the real /proc: seen from a process that is nobody's parent, a busy process of ours is a neighbour."""
    monkeypatch.setattr(system, "FOREIGN_TOLD", 1000)  # this machine may have busier ones
    program = "import time\nwhile True: sum(range(1000))"
    busy = subprocess.Popen([sys.executable, "-c", program])
    idle = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        as_server = SystemWatch.start([busy.pid], own=os.getpid())
        as_stranger = SystemWatch.start([idle.pid], own=idle.pid)
        begun = cpu_of(busy.pid)  # it may have worked for a while before both were watching
        while cpu_of(busy.pid) < begun + 1.0:
            time.sleep(0.02)
        ours, strangers = as_server.stop(), as_stranger.stop()
    finally:
        busy.kill()
        busy.wait()
        idle.communicate(b"")
    assert ours["server_cpu_s"] >= 0.2
    assert busy.pid not in [one["pid"] for one in ours["foreign"]]
    assert strangers["server_cpu_s"] < 0.2
    assert busy.pid in [one["pid"] for one in strangers["foreign"]]
    assert strangers["others_cpu_s"] >= 0.2


def cpu_of(pid: int) -> float:
    return snapshot()[pid].own_s


def test_threads_of_a_process_are_read() -> None:
    times = thread_times([os.getpid()])
    assert times[os.getpid(), os.getpid()].run_s > 0


def test_tree_holds_descendants_only() -> None:
    now = {
        pid: ProcessTimes(pid, parent, 0, 0.0, 0.0, False) for pid, parent in ((1, 0), (5, 1), (6, 5), (7, 1), (8, 6))
    }
    assert tree(now, [5, 99]) == {5, 6, 8}


def test_a_child_that_ended_moves_to_its_parent_once() -> None:
    """A child that had used 100 s before the sample and 3 s in it, then ended and was waited for, counts 3 s."""
    parent = ProcessTimes(1, 0, 0, 10.0, 0.0, False)
    start = {1: parent, 2: ProcessTimes(2, 1, 5, 100.0, 0.0, False)}
    stop = {1: replace(parent, own_s=11.0, reaped_s=103.0)}
    assert cpu_between(start, stop, [1, 2]) == pytest.approx(4.0)


def test_a_reused_pid_is_a_new_process() -> None:
    start = {2: ProcessTimes(2, 1, 5, 100.0, 0.0, False)}
    stop = {2: ProcessTimes(2, 1, 6, 1.0, 0.0, False)}
    assert cpu_between(start, stop, [2]) == pytest.approx(1.0)


@given(st.binary(max_size=200))
def test_any_stat_line_is_read_or_skipped(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    root = tmp_path_factory.mktemp("proc")
    (root / "17").mkdir()
    (root / "17/stat").write_bytes(junk)
    assert set(snapshot(root)) <= {17}


GENOA = {
    "proc/sys/kernel/osrelease": "6.8.0-51-generic\n",
    "proc/sys/kernel/random/boot_id": "4e1f0a5c-0000\n",
    "proc/uptime": "86400.5 100.0\n",
    "proc/loadavg": "0.50 0.4 0.3 1/9 9\n",
    "proc/cpuinfo": "processor : 0\nmodel name\t: AMD EPYC 9575F 64-Core Processor\nflags\t\t: fpu vme\n\n"
    "processor : 1\nmodel name : x\n",
    "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 600 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\nHugePages_Total: 0\n",
    "proc/sys/kernel/numa_balancing": "1\n",
    "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
    "sys/devices/system/cpu/online": "0-127,130\n",
    "sys/devices/system/cpu/smt/active": "1\n",
    "sys/devices/system/cpu/cpufreq/boost": "0\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "schedutil\n",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
    "sys/devices/system/cpu/cpu1/topology/physical_package_id": "1\n",
    "sys/devices/system/node/node0/x": "",
    "sys/devices/system/node/node1/x": "",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
}


def test_box_is_described(tmp_path: Path) -> None:
    put(tmp_path, GENOA)
    facts = describe_system(tmp_path)
    assert facts.kernel == "6.8.0-51-generic"
    assert facts.os == "Ubuntu 24.04.1 LTS"
    assert facts.cpu_model == "AMD EPYC 9575F 64-Core Processor"
    assert (facts.cpus_online, facts.sockets, facts.numa_nodes, facts.numa_balancing) == (129, 2, 2, True)
    assert (facts.governor, facts.turbo, facts.smt, facts.virtual) == ("performance+schedutil", False, True, False)
    assert (facts.memory_total, facts.memory_available, facts.swap_used) == (1024_000, 614_400, 6144)
    assert (facts.huge_pages, facts.load1, facts.uptime_s) == ("madvise", 0.5, 86400.5)
    assert facts.container is None


def test_intel_says_turbo_the_other_way_round(tmp_path: Path) -> None:
    put(tmp_path, {"sys/devices/system/cpu/intel_pstate/no_turbo": "1\n"})
    assert describe_system(tmp_path).turbo is False


def test_an_empty_root_is_all_unknown(tmp_path: Path) -> None:
    facts = describe_system(tmp_path)
    for name in (
        "boot",
        "uptime_s",
        "cpu_model",
        "sockets",
        "numa_nodes",
        "governor",
        "turbo",
        "load1",
        "memory_total",
    ):
        assert getattr(facts, name) is None, name


def test_host_name_and_boot_id_are_hashed() -> None:
    facts = describe_system()
    assert os.uname().nodename not in repr(facts)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert boot not in repr(facts)


@given(st.text("0123456789-,", max_size=12))
def test_core_lists_never_crash(text: str) -> None:
    assert _count_list(text) is None or isinstance(_count_list(text), int)


def test_limits_of_version_2_take_the_tightest_on_the_way_up(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/cgroup": "0::/runner.slice/job\n",
            "sys/fs/cgroup/runner.slice/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/runner.slice/job/cpu.max": "max 100000\n",
            "sys/fs/cgroup/runner.slice/job/memory.max": "4096\n",
            "sys/fs/cgroup/runner.slice/memory.max": "max\n",
            "sys/fs/cgroup/runner.slice/job/cpuset.cpus.effective": "0-7\n",
            "sys/fs/cgroup/runner.slice/job/cpu.stat": "usage_usec 5\nthrottled_usec 2500000\n",
        },
    )
    limits = cgroup_limits(tmp_path)
    assert (limits.cpus, limits.memory_bytes, limits.cpuset) == (2.0, 4096, "0-7")
    assert throttled_s(tmp_path) == 2.5


def test_limits_of_version_1_and_a_path_that_only_the_host_knows(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.stat": "nr_periods 1\nthrottled_time 3000000000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    limits = cgroup_limits(tmp_path)
    assert (limits.cpus, limits.memory_bytes) == (1.5, None)
    assert throttled_s(tmp_path) == 3.0
