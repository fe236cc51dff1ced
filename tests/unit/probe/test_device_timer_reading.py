"""SGLang's own timer, asked over HTTP: what a server answers, and what it does not."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from perfgate.engine.device_timer import MAX_CHARACTERS, cycles_of, device_timer, read_metrics
from perfgate.records import Request, Sample, Side

LINE = 'sglang:forward_execution_seconds_total{category="target_verify",tp_rank="0"} '


class _Metrics(http.server.BaseHTTPRequestHandler):
    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def a_sample(concurrency: int, verify_ct: int | None, tokens: int = 65) -> Sample:
    request = Request(
        prompt="a", prompt_kind="code", tokens=tokens, ttft_s=0.1, decode_s=1.0, output="x", verify_ct=verify_ct
    )
    return Sample(
        id="e/p01/head/a1/s0",
        recipe="e",
        pair=1,
        side=Side.HEAD,
        position=1,
        attempt=1,
        sample=0,
        concurrency=concurrency,
        begin=0.0,
        end=1.0,
        requests=(request, request),
        tok_s=None,
        ttft_ms=None,
        cycle_ms=None,
        accept_length=None,
    )


def test_two_readings_give_milliseconds_a_cycle(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Metrics, "body", f"{LINE}1.0\n".encode())
    before = read_metrics(url)
    monkeypatch.setattr(_Metrics, "body", f"{LINE}1.6\n".encode())
    cycles = cycles_of([a_sample(1, verify_ct=15), a_sample(8, verify_ct=99)])
    assert cycles == 30  # samples of many requests at once count no cycles
    assert device_timer(before, read_metrics(url), cycles) == pytest.approx({"target": 20.0})


def test_plain_decoding_takes_a_cycle_a_token_after_the_first() -> None:
    assert cycles_of([a_sample(1, verify_ct=None, tokens=65)]) == 128


def test_a_server_that_is_gone_offers_no_timer(url: str) -> None:
    assert read_metrics("http://127.0.0.1:1") == ""


def test_a_flood_is_cut(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Metrics, "body", b"x" * (MAX_CHARACTERS + 1000))
    assert len(read_metrics(url)) == MAX_CHARACTERS
