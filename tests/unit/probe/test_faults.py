"""Whatever goes wrong with the probe, the server serves on and what is read stays honest."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from perfgate.probe.inside import copy_probe, probe_environment, probe_path
from perfgate.probe.phases import phases_of
from perfgate.probe.proofs import proofs_of
from perfgate.probe.reading import ProbeReading, read_probe
from perfgate.records import LaunchFact, Side
from tests.unit.probe.standin import RUN, StandIn, layout_of

QUICK = {"draft": 0.1, "verify": 0.4, "draft_extend": 0.1, "decode": 0.2}
ALL_TIME = (0, 0.0, 1e9)
LAUNCH = LaunchFact(id="eagle3/p01/head/a1", recipe="eagle3", pair=1, side=Side.HEAD, position=1, attempt=1)


@pytest.fixture
def standin(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path / "tree", layout_of("0.5.23"), ms=QUICK).write()


@pytest.fixture
def probe_dir(tmp_path: Path) -> Path:
    path = tmp_path / "probe"
    path.mkdir()
    return path


def codes(reading: ProbeReading) -> set[str]:
    return {warning.code for warning in phases_of(reading, [ALL_TIME]).warnings}


@pytest.mark.parametrize("name", ["missing", "a-file"])
def test_unwritable_directory(standin: StandIn, tmp_path: Path, name: str) -> None:
    (tmp_path / "a-file").write_text("")
    done = standin.run("eagle_v2", tmp_path / name)
    assert done.returncode == 0
    assert done.stderr.startswith("perfgate probe: off: ")
    assert done.stderr.count("\n") == 1
    reading = read_probe(tmp_path / name)
    assert reading.processes == ()
    assert codes(reading) == {"probe_silent"}


def test_disk_full(standin: StandIn, probe_dir: Path) -> None:
    script = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n" + RUN
    done = standin.run("eagle_v2", probe_dir, cycles=400, script=script, linger=0.5)
    assert done.returncode == 0, done.stderr
    assert "cannot be written: File too large" in done.stderr
    (process,) = read_probe(probe_dir).processes  # up to the last whole line
    assert 0 < len(process.cycles) < 400
    assert sum(process.dropped.values()) == 0


def test_file_is_bounded_and_says_so(standin: StandIn, probe_dir: Path) -> None:
    bound = {"PERFGATE_PROBE_MAX_BYTES": "20000"}
    done = standin.run("eagle_v2", probe_dir, cycles=1000, environment=bound)
    assert done.returncode == 0, done.stderr
    (path,) = probe_dir.iterdir()
    assert path.stat().st_size <= 20000
    reading = read_probe(probe_dir)
    assert reading.processes[0].full
    assert "probe_full" in codes(reading)


def test_killed_while_writing(standin: StandIn, probe_dir: Path) -> None:
    """Killed at any moment, every line but the last is whole, and all but the last batch is there."""
    draw = random.Random(20261130)
    for run in range(6):
        script = f"""
import os, signal, threading
stop = threading.Timer({draw.uniform(0.02, 0.4)}, lambda: os.kill(os.getpid(), signal.SIGKILL))
stop.start()
while True: cycle()
"""
        done = standin.run("eagle_v2", probe_dir, script=script, launch=f"l{run}")
        assert done.returncode == -signal.SIGKILL
        reading = read_probe(probe_dir, launch=f"l{run}")
        assert len(reading.processes) == 1
        assert {reason for reason in reading.dropped if reason != "of another launch"} == set()


def test_everything_is_on_disk_half_a_second_after_the_last_cycle(standin: StandIn, probe_dir: Path) -> None:
    script = RUN + "\nimport os, signal\ntime.sleep(1.0)\nos.kill(os.getpid(), signal.SIGKILL)"
    done = standin.run("eagle_v2", probe_dir, cycles=10, script=script)
    assert done.returncode == -signal.SIGKILL
    (process,) = read_probe(probe_dir).processes
    assert len(process.cycles) == 26


def test_a_torn_last_line_is_no_fault(standin: StandIn, probe_dir: Path) -> None:
    standin.run("eagle_v2", probe_dir)
    (path,) = probe_dir.iterdir()
    whole = path.read_bytes()
    before = len(read_probe(probe_dir).processes[0].cycles)
    path.write_bytes(whole[:-20])
    reading = read_probe(probe_dir)
    assert len(reading.processes[0].cycles) == before - 1
    assert reading.dropped == {}


def test_two_servers_in_one_directory(standin: StandIn, probe_dir: Path) -> None:
    standin.run("eagle_v2", probe_dir, launch="a")
    standin.run("eagle_v2", probe_dir, launch="b")
    own = read_probe(probe_dir, launch="a")
    assert [process.launch for process in own.processes] == ["a"]
    assert own.dropped == {"of another launch": 1}
    assert "probe_two_launches" in codes(read_probe(probe_dir))


def test_unknown_layout(tmp_path: Path, probe_dir: Path) -> None:
    """A release that has renamed everything: it serves, nothing is measured, and it is told what is missing."""
    standin = StandIn(tmp_path / "tree", layout_of("0.5.23"), ms=QUICK).write()
    path = standin.root / "sglang/srt/speculative/eagle_worker_v2.py"
    path.write_text(path.read_text().replace("verify", "check").replace("def draft(", "def propose("))
    path.write_text(path.read_text().replace("self.draft_worker.draft(", "self.draft_worker.propose("))
    path.write_text(path.read_text().replace("is_check", "is_verify"))
    done = standin.run("eagle_v2", probe_dir)
    assert done.returncode == 0, done.stderr
    reading = read_probe(probe_dir)
    phases = phases_of(reading, [ALL_TIME])
    assert phases.whole is not None
    assert phases.whole.verify_ms is None
    assert phases.whole.draft_ms is None
    assert phases.whole.cycle_ms is not None
    (warning,) = phases.warnings
    assert warning.code == "probe_no_target"
    assert warning.data["targets"] == {
        "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.verify": "no verify",
        "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker.draft": "no draft",
    }


def test_unknown_cycle_still_gives_the_phases_that_are_found(tmp_path: Path, probe_dir: Path) -> None:
    standin = StandIn(tmp_path / "tree", layout_of("0.5.23"), ms=QUICK).write()
    path = standin.root / "sglang/srt/speculative/eagle_worker_v2.py"
    path.write_text(path.read_text().replace("def forward_batch_generation", "def step"))
    script = RUN.replace("cycle()", "worker.step(support.Batch())")
    done = standin.run("eagle_v2", probe_dir, script=script, cycles=40)
    assert done.returncode == 0, done.stderr
    whole = phases_of(read_probe(probe_dir), [ALL_TIME]).whole
    assert whole is not None
    assert whole.cycle_ms is None
    assert whole.verify_ms is not None
    assert whole.verify_ms >= QUICK["verify"]


def test_an_error_of_sglang_passes_through(standin: StandIn, probe_dir: Path) -> None:
    script = """
import sglang.srt.speculative.eagle_worker_v2 as module
for _ in range(20): cycle()
fail = support.Batch()
support.MS['draft'] = 'no number'
try:
    cycle()
except TypeError as error:
    print('seen', type(error).__name__)
support.MS['draft'] = 0.1
for _ in range(20): cycle()
"""
    done = standin.run("eagle_v2", probe_dir, script=script)
    assert done.stdout == "seen TypeError\n", done.stderr
    (process,) = read_probe(probe_dir).processes
    assert len(process.cycles) == 41


def test_a_broken_batch_stops_the_timers_not_the_server(standin: StandIn, probe_dir: Path) -> None:
    script = """
class Odd:
    is_extend_in_batch = False
    seq_lens = 5
    class forward_mode:
        is_extend = staticmethod(lambda: False)
for _ in range(10): assert worker.forward_batch_generation(Odd()) == 'result'
"""
    done = standin.run("eagle_v2", probe_dir, script=script)
    assert done.returncode == 0, done.stderr
    (process,) = read_probe(probe_dir).processes
    assert any(note.startswith("timers off: AttributeError") for note in process.notes)


def test_a_batch_that_does_not_say_whether_it_decodes_does_not_count(standin: StandIn, probe_dir: Path) -> None:
    script = """
class Silent(support.Batch):
    def __getattribute__(self, name):
        if name == 'forward_mode': raise AttributeError(name)
        return super().__getattribute__(name)
for _ in range(40):
    try: worker.forward_batch_generation(Silent())
    except AttributeError: pass
"""
    assert standin.run("eagle_v2", probe_dir, script=script).returncode == 0
    (process,) = read_probe(probe_dir).processes
    assert {cycle.mark for cycle in process.cycles} == {"extend"}


def test_a_device_without_a_clock_gives_no_numbers(tmp_path: Path, probe_dir: Path) -> None:
    standin = StandIn(tmp_path / "tree", layout_of("0.5.23"), device="xpu", ms=QUICK).write()
    assert standin.run("eagle_v2", probe_dir).returncode == 0
    reading = read_probe(probe_dir)
    assert reading.processes[0].notes == ["timers off: no clock for device xpu"]
    assert codes(reading) == {"probe_no_cycles"}


def test_a_forked_child_leaves_the_parents_file_alone(standin: StandIn, probe_dir: Path) -> None:
    script = """
import os
for _ in range(5): cycle()
pid = os.fork()
for _ in range(20): cycle()
if pid == 0: os._exit(0)
os.waitpid(pid, 0)
"""
    assert standin.run("eagle_v2", probe_dir, script=script).returncode == 0
    (process,) = read_probe(probe_dir).processes
    assert [cycle.number for cycle in process.cycles] == list(range(25))
    assert sum(process.dropped.values()) == 0


# ------------------------------------------------------------------------------------------------ sitecustomize


def site(path: Path, text: str) -> Path:
    path.mkdir(parents=True)
    (path / "sitecustomize.py").write_text(text)
    return path


def test_the_users_sitecustomize_runs_and_what_it_sets_is_recorded(
    standin: StandIn, probe_dir: Path, tmp_path: Path
) -> None:
    own = site(tmp_path / "own", "import os\nos.environ['NCCL_PROTO'] = 'LL'\nMARK = 'mine'\n")
    script = "import sitecustomize\nprint(sitecustomize.MARK, sitecustomize.__file__)\n" + RUN
    given = {"NCCL_ALGO": "Ring", "SGLANG_API_KEY": "hush"}
    done = standin.run("eagle_v2", probe_dir, script=script, first_on_path=(own,), environment=given)
    assert done.stdout == f"mine {own}/sitecustomize.py\n"
    (proof,) = proofs_of(read_probe(probe_dir), LAUNCH, given)
    assert proof.given["NCCL_ALGO"] == "Ring"
    assert "NCCL_PROTO" not in proof.given
    assert proof.at_start is not None
    assert proof.at_start["NCCL_PROTO"] == "LL"
    assert "NCCL_FROM_SGLANG" not in proof.at_start
    assert proof.effective is not None
    assert proof.effective["NCCL_FROM_SGLANG"] == "1"
    assert [link["path"] for link in proof.sitecustomize] == [
        str(probe_path() / "sitecustomize.py"),
        str(own / "sitecustomize.py"),
    ]
    assert proof.given["SGLANG_API_KEY"] == proof.at_start["SGLANG_API_KEY"]
    assert "hush" not in str(proof)


def test_only_the_next_sitecustomize_runs_as_without_the_probe(
    standin: StandIn, probe_dir: Path, tmp_path: Path
) -> None:
    first = site(tmp_path / "first", "print('first')")
    second = site(tmp_path / "second", "print('second')")
    done = standin.run("eagle_v2", probe_dir, first_on_path=(first, second))
    assert done.stdout == "first\n"


def test_a_sitecustomize_that_looks_for_the_next_itself_finds_the_users(
    standin: StandIn, probe_dir: Path, tmp_path: Path
) -> None:
    chaining = """
import os, runpy, sys
own = os.path.dirname(__file__)
print('first')
for entry in sys.path:
    other = os.path.join(entry, 'sitecustomize.py')
    if entry != own and os.path.exists(other):
        runpy.run_path(other)
        break
"""
    first = site(tmp_path / "first", chaining)
    second = site(tmp_path / "second", "print('second')")
    done = standin.run("eagle_v2", probe_dir, first_on_path=(first, second))
    assert done.stdout == "first\nsecond\n", done.stderr


def test_a_sitecustomize_that_raises(standin: StandIn, probe_dir: Path, tmp_path: Path) -> None:
    own = site(tmp_path / "own", "import os\nos.environ['NCCL_PROTO'] = 'LL'\nraise RuntimeError('mine is broken')\n")
    done = standin.run("eagle_v2", probe_dir, first_on_path=(own,))
    assert done.returncode == 0
    plain = subprocess.run(
        [sys.executable, "-c", ""], env={"PYTHONPATH": str(own)}, capture_output=True, text=True, check=True
    )
    assert done.stderr == plain.stderr  # as Python tells it without the probe
    (proof,) = proofs_of(read_probe(probe_dir), LAUNCH, {})
    assert proof.at_start is not None
    assert proof.at_start["NCCL_PROTO"] == "LL"
    assert any("mine is broken" in note for note in proof.notes)
    assert len(read_probe(probe_dir).processes[0].cycles) == 24


def test_the_one_in_site_packages_runs(standin: StandIn, probe_dir: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    (packages,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (packages / "sitecustomize.py").write_text("print('of the environment')")
    for variables in (probe_environment(probe_dir), {}):  # on, and off with the path still set
        done = subprocess.run(
            [tmp_path / "venv/bin/python", "-c", "import sys; print('perfgate' in str(sys.path))"],
            env={"PYTHONPATH": f"{probe_path()}:{standin.root}", **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "of the environment\nFalse\n"
        assert done.stderr == ""
    assert list(probe_dir.iterdir()) == []  # sglang was never imported


def test_a_process_that_does_not_import_sglang_pays_next_to_nothing(probe_dir: Path) -> None:
    code = "import sys; print([name for name in sys.modules if name.startswith('perfgate')])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(probe_path()), **probe_environment(probe_dir)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['perfgate_probe']\n"


def test_a_copy_works_as_well(standin: StandIn, probe_dir: Path, tmp_path: Path) -> None:
    entry = copy_probe(tmp_path / "copied")
    assert not list(tmp_path.glob("copied/**/__pycache__"))
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in tmp_path.glob("copied/**/*"))
    done = subprocess.run(
        [sys.executable, "-c", "import sglang.srt.speculative.eagle_worker_v2"],
        env={"PYTHONPATH": f"{entry}:{standin.root}", **probe_environment(probe_dir)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    (process,) = read_probe(probe_dir).processes
    assert len(process.targets) == 4


def test_what_sglang_sets_before_it_starts_a_rank_is_not_at_start(standin: StandIn, probe_dir: Path) -> None:
    """The first process sets a variable, then starts a rank, which inherits it: the code's doing, not the box's."""
    script = """
import os, subprocess, sys
if os.environ.get('RANK_PROCESS') != '1':
    os.environ['NCCL_CUMEM_ENABLE'] = '0'
    env = {**os.environ, 'RANK_PROCESS': '1'}
    sys.exit(subprocess.run([sys.executable, *sys.argv], env=env).returncode)
"""
    done = standin.run("eagle_v2", probe_dir, script=script + RUN, environment={"NCCL_ALGO": "Ring"})
    assert done.returncode == 0, done.stderr
    main, rank = proofs_of(read_probe(probe_dir), LAUNCH, {"NCCL_ALGO": "Ring"})
    assert (main.role, rank.role) == ("main", "scheduler")
    assert main.at_start == rank.at_start == {"NCCL_ALGO": "Ring"}
    assert rank.effective is not None
    assert rank.effective["NCCL_CUMEM_ENABLE"] == "0"


def test_a_variable_that_got_lost_on_the_way_is_noted(standin: StandIn, probe_dir: Path) -> None:
    standin.run("eagle_v2", probe_dir, environment={"NCCL_ALGO": "Ring"})
    (proof,) = proofs_of(read_probe(probe_dir), LAUNCH, {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"})
    assert proof.notes == ("NCCL_PROTO was given as 'LL' and came as None",)


def test_nccl_files_are_named(standin: StandIn, probe_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "nccl.conf").write_text("# mine\nNCCL_BUFFSIZE=16777216\n")
    files = {"NCCL_CONF_FILE": str(tmp_path / "nccl.conf")}
    script = "import ctypes\nctypes.CDLL(None).setenv(b'NCCL_BUFFSIZE', b'16777216', 0)\n" + RUN  # as NCCL does
    standin.run("eagle_v2", probe_dir, script=script, environment=files)
    (process,) = read_probe(probe_dir).processes
    assert process.nccl_files[0]["path"] == files["NCCL_CONF_FILE"]
    assert process.moved == {"NCCL_BUFFSIZE": "16777216"}


def test_the_toggle_switches_timers_inside_one_process(standin: StandIn, probe_dir: Path) -> None:
    (probe_dir / "toggle").write_text("1")
    script = f"""
toggle = open({str(probe_dir / "toggle")!r}, 'r+b', buffering=0)
for number in range(40):
    toggle.seek(0); toggle.write(b'10'[number % 2:][:1])
    cycle()
"""
    done = standin.run("eagle_v2", probe_dir, script=script, environment={"PERFGATE_PROBE_TOGGLE": "1"})
    assert done.returncode == 0, done.stderr
    assert len(read_probe(probe_dir).processes[0].cycles) == 20


def test_proof_without_timers(standin: StandIn, probe_dir: Path) -> None:
    standin.run("eagle_v2", probe_dir, environment={"PERFGATE_PROBE_TIMERS": "0"})
    (process,) = read_probe(probe_dir).processes
    assert len(process.cycles) == 0
    assert process.effective is not None


def test_bytes_that_are_no_text_do_not_cost_the_reading(standin: StandIn, probe_dir: Path, tmp_path: Path) -> None:
    own = site(tmp_path / "own", "import os\nos.environb[b'NCCL_ODD'] = b'a\\xffb'\n")
    standin.run("eagle_v2", probe_dir, first_on_path=(own,))
    (process,) = read_probe(probe_dir).processes
    assert process.start is not None
    assert process.start["NCCL_ODD"] == "a\\udcffb"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_of_somebody_else(standin: StandIn, probe_dir: Path) -> None:
    probe_dir.chmod(0o500)
    assert standin.run("eagle_v2", probe_dir).returncode == 0
