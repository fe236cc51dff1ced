"""The log reader on recorded logs of SGLang, on lines of other releases, and on garbage."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.engine.causes import FailureCause
from perfgate.engine.logs import MAX_LINE, MAX_SHOWN, READY, LogFile, LogParser, LogState, clean, decode_batch

LOGS = Path(__file__).parents[2] / "fixtures" / "sglang-logs"


def read(text: str) -> LogState:
    parser = LogParser()
    parser.feed(text.encode())
    parser.finish()
    return parser.state()


def recorded(name: str) -> LogState:
    return LogFile(LOGS / name).read_all()


def test_a_recorded_speculative_launch_is_ready_and_tells_its_worker() -> None:
    state = recorded("eagle3.log")
    assert state.ready
    assert state.cause is None
    assert state.max_total_num_tokens == 8192
    assert state.spec_worker == (
        "Non-overlap (synchronous) spec v2 is used for eagle/eagle3/standalone speculative decoding.",
    )
    assert state.facts["log_accept_length"] == pytest.approx(1.7, abs=0.5)


def test_the_first_decode_line_after_idle_is_left_out() -> None:
    state = recorded("eagle3.log")
    speeds = [batch.tok_s for batch in state.decode]
    assert 5.57 not in speeds  # the recorded first line, which counts the wait before it
    assert speeds[:3] == [70.26, 72.67, 108.67]


def test_decode_lines_of_plain_decoding_have_no_accept_length() -> None:
    state = recorded("baseline-decode.log")
    assert len(state.decode) > 20
    assert {batch.accept_length for batch in state.decode} == {None}
    assert {batch.running for batch in state.decode} == {1, 4}
    assert state.facts["log_tok_s"] > 40


@pytest.mark.parametrize(
    ("name", "failure", "exception"),
    [
        (
            "eagle3-torch-native.log",
            FailureCause(
                "scheduler_exception", "ValueError: EAGLE is not supported in decode attention backend torch_native"
            ),
            "ValueError: EAGLE is not supported in decode attention backend torch_native",
        ),
        (
            "no-cpu-engine-env.log",
            FailureCause("child_failed", "ModuleNotFoundError: No module named 'vllm'"),
            "ModuleNotFoundError: No module named 'vllm'",
        ),
        ("no-shim-no-sgl-kernel.log", None, "ModuleNotFoundError: No module named 'sgl_kernel'"),
    ],
)
def test_recorded_failures(name: str, failure: FailureCause | None, exception: str) -> None:
    state = recorded(name)
    assert not state.ready
    assert state.cause == failure
    assert state.exception == exception
    assert not any("File " in line or "Traceback" in line for line in state.useful)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "out_of_memory"),
        ("[2026-02-19 10:00:00 TP3] torch.OutOfMemoryError: CUDA out of memory. Tried", "out_of_memory"),
        ("[2026-02-19 10:00:00 TP0] Capture cuda graph failed: CUDA error", "cuda_graph_failed"),
        ("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied.", "memory_unbalanced"),
        ("[2026-02-19 10:00:00] Initialization failed. warmup error: HTTPConnectionPool", "warmup_failed"),
        ("[2026-02-19 10:00:00] Watchdog timeout (self.watchdog_timeout=300)", "watchdog_timeout"),
        ("[2026-02-19 10:00:00] Rank 2 scheduler died during initialization (exit code: -9).", "scheduler_died"),
        ("[2026-02-19 10:00:00] Rank 0 scheduler is dead. Please check if there are relevant logs.", "scheduler_died"),
        ("[2026-02-19 10:00:00] ERROR:    [Errno 98] error while attempting to bind on address", "port_taken"),
        ("launch_server.py: error: unrecognized arguments: --speculative-num-drafts", "bad_flag"),
        ("OSError: meta/x is not a local folder and is not a valid model identifier", "model_missing"),
        ("Fatal Python error: Segmentation fault", "crashed"),
    ],
)  # fmt: skip
def test_failure_lines(line: str, code: str) -> None:
    failure = read(line + "\n").cause
    assert failure is not None
    assert failure.code == code
    assert failure.line == clean(line.partition("] ")[2] if line.startswith("[2") else line)


def test_the_cause_wins_over_its_consequences() -> None:
    state = read(
        "[2026-02-19 10:00:00] Rank 0 scheduler is dead.\n"
        "[2026-02-19 10:00:01 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "a.py", line 1, in f\n'
        "torch.OutOfMemoryError: CUDA out of memory.\n"
        "\n"
        "During handling of the above exception, another exception occurred:\n"
        "\n"
        "Traceback (most recent call last):\n"
        '  File "b.py", line 2, in g\n'
        "RuntimeError: cleaning up failed\n"
        "[2026-02-19 10:00:02] Received sigquit from a child process.\n"
    )
    assert state.cause == FailureCause("out_of_memory", "torch.OutOfMemoryError: CUDA out of memory.")
    assert "torch.OutOfMemoryError: CUDA out of memory." in state.useful


@pytest.mark.parametrize(
    "line",
    [
        "[2026-02-19 10:00:00] Port 30100 is already in use, trying port 30101",
        "[2026-02-19 10:00:00] Receive: obj=GenerateReqInput(text='why CUDA out of memory?')",
        "[2026-02-19 10:00:00] server_args={'watchdog_timeout': 300, 'note': 'Capture cuda graph failed'}",
        "/site-packages/x.py:7: UserWarning: Fatal Python error: is not meant",
    ],
)
def test_what_only_looks_like_a_failure(line: str) -> None:
    assert read(line + "\n").cause is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Decode batch. #running-req: 1, #token: 186, token usage: 0.00, accept len: 1.95, accept rate: 0.49, "
            "cuda graph: True, gen throughput (token/s): 178.86, #queue-req: 0, ",
            (1, 178.86, 1.95, True),
        ),
        (
            "Decode batch [41], #running-req: 8, #token: 9, token usage: 0.00, cpu graph: False, "
            "gen throughput (token/s): 12, #queue-req: 0",
            (8, 12.0, None, False),
        ),
        ("Decode batch, #running-req: 3", (3, None, None, None)),
    ],
)
def test_decode_lines_of_several_releases(line: str, expected: tuple[object, ...]) -> None:
    batch = decode_batch(line)
    assert batch is not None
    assert (batch.running, batch.tok_s, batch.accept_length, batch.graph) == expected


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e309", "9" * 40])
def test_absurd_numbers_of_a_decode_line_are_absent(value: str) -> None:
    batch = decode_batch(f"Decode batch, #running-req: 1, gen throughput (token/s): {value}, #queue-req: 0")
    assert batch is not None
    assert batch.tok_s is None


def test_stages_are_told_in_words() -> None:
    parser = LogParser()
    told = []
    for line in ("Load weight begin. avail mem=1 GB", "Capture cuda graph begin. This can take minutes", READY):
        parser.feed(f"[2026-02-19 10:00:00 TP0] {line}\n".encode())
        told.append(parser.state().stage)
    assert told == ["loading weights", "capturing CUDA graphs", "ready"]


def test_the_ready_line_inside_a_prompt_does_not_count() -> None:
    assert not read(f"[2026-02-19 10:00:00] Receive: obj=GenerateReqInput(text='{READY}')\n").ready


def test_control_characters_and_direction_marks_are_shown() -> None:
    dirty = "\x1b[31mred\x1b[0m \x1b]0;title\x07ok\x00\x07\u202eevil\u200b\tend"
    assert clean(dirty) == "red ok⟨U+0000⟩⟨U+0007⟩⟨U+202E⟩evil⟨U+200B⟩ end"


def test_a_log_that_the_server_cuts_short_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("[2026-02-19 10:00:00] Load weight begin.\n" * 50)
    log = LogFile(path)
    assert log.read().stage == "loading weights"
    path.write_text(f"[2026-02-19 10:00:00] {READY}\n")
    assert log.read().ready


def test_a_missing_log_says_nothing(tmp_path: Path) -> None:
    assert LogFile(tmp_path / "none").read() == LogState()


def test_an_endless_line_is_bounded_and_what_follows_is_read() -> None:
    parser = LogParser()
    for _ in range(40):
        parser.feed(b"x" * MAX_LINE)
    parser.feed(f"\n[2026-02-19 10:00:00] {READY}\n".encode())
    state = parser.state()
    assert state.ready
    assert all(len(line) <= MAX_SHOWN for line in state.useful)
    assert state.size > 40 * MAX_LINE


HOSTILE = [
    "Decode batch, #" + "a" * 4000,
    "Decode batch, #running-req: " + "1" * 4000,
    "Decode batch, " + "#a: b, " * 600,
    "\x1b[" + "0" * 4000,
    "\x1b]" * 2000,
    "\x1b[" * 2000,
    "a." * 2000,
    "Err" * 1300 + "Error" * 10,
    "[2026-02-19 10:00:00 " * 200,
    "x%|" + "[2026-02-19 10:00:00 " * 200,
    "[rank" * 800,
    "max_total_num_tokens=" * 190,
    "sglang is using nccl==" * 180,
    " \t" * 2000,
    "\u202e" * 1300,
    "Traceback (most recent call last):" * 100,
]


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: repr(line[:24]))
@pytest.mark.parametrize("lines", [True, False])
def test_the_time_for_a_byte_does_not_grow(line: str, lines: bool) -> None:
    """CPU time for twice as many bytes, once as long lines and once as one endless one: at most about twice."""

    def cost(count: int) -> float:
        data = (line + ("\n" if lines else "")).encode() * count
        spent = []
        for _ in range(3):
            began = time.thread_time()
            LogParser().feed(data)
            spent.append(time.thread_time() - began)
        return min(spent)

    assert cost(60) < 3.5 * cost(30) + 0.005
    assert decode_batch(line) is None or line.startswith("Decode")


def test_a_single_line_costs_what_its_length_costs() -> None:
    """The pairs of a `Decode batch` line of 16 kB once took nine seconds."""

    def cost(length: int) -> float:
        began = time.thread_time()
        for _ in range(20):
            decode_batch("Decode batch, #" + "a" * length)
        return time.thread_time() - began

    assert cost(16_000) < 40 * max(cost(1000), 0.0001)


def test_of_a_huge_file_both_ends_are_read(tmp_path: Path) -> None:
    """A server can make its log a sparse file of terabytes."""
    path = tmp_path / "log"
    path.write_text("[2026-02-19 10:00:00] max_total_num_tokens=4096, chunked_prefill_size=512\n")
    log = LogFile(path)
    os.truncate(path, 8 << 40)
    with path.open("r+b") as file:
        file.seek(0, 2)
        file.write(b"\n[2026-02-19 10:00:01 TP0] Scheduler hit an exception: Traceback (most recent call last):\n")
        file.write(b"KeyError: 'gate'\n")
    state = log.read_all()
    assert state.max_total_num_tokens == 4096
    assert state.cause == FailureCause("scheduler_exception", "KeyError: 'gate'")
    assert state.size == path.stat().st_size


LINES = st.sampled_from(
    [line + "\n" for name in sorted(LOGS.glob("*.log")) for line in name.read_text().splitlines()]
    + ["\r\n", "\x1b[1mbold\x1b[0m\n", "Traceback (most recent call last):\n", "  File x\n", "KeyError: 'a'\n"]
)


@given(st.lists(LINES, max_size=40), st.lists(st.integers(1, 200), max_size=40))
def test_it_does_not_matter_how_the_bytes_are_cut(lines: list[str], cuts: list[int]) -> None:
    data = "".join(lines).encode()
    whole, pieces = LogParser(), LogParser()
    whole.feed(data)
    rest = data
    for cut in cuts:
        pieces.feed(rest[:cut])
        rest = rest[cut:]
    pieces.feed(rest)
    assert pieces.state() == whole.state()


@given(st.lists(st.one_of(st.binary(max_size=300), LINES.map(str.encode)), max_size=30))
def test_any_bytes_give_a_bounded_printable_state(pieces: list[bytes]) -> None:
    parser = LogParser()
    for piece in pieces:
        parser.feed(piece)
    parser.finish()
    state = parser.state()
    shown = [*state.useful, *state.spec_worker, state.exception or "", state.cause.line if state.cause else ""]
    assert all(len(line) <= MAX_SHOWN and (line.isprintable() or not line) for line in shown)
    assert state.size >= sum(map(len, pieces))


def test_a_server_that_falls_back_from_the_rust_tree_core_is_noted_with_its_reason() -> None:
    line = "[2026-09-01 10:00:00 TP0] Using the Python TreeCore: the Rust TreeCore toolchain is unavailable (cargo)\n"
    parser = LogParser()
    parser.feed(line.encode())
    parser.finish()
    assert parser.state().facts["python_tree_core"] == "the Rust TreeCore toolchain is unavailable (cargo)"
    assert "python_tree_core" not in LogParser().state().facts
