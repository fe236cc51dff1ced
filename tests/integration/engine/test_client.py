"""The client against the stand-in: right figures from scripted speeds, and clear errors for what cannot be measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from perfgate.config.model import Workload
from perfgate.engine import client as client_module
from perfgate.engine.client import LoadClient
from perfgate.engine.faults import ClientError
from perfgate.engine.server import Server
from perfgate.records import Blame, LaunchId, Sample, Side
from tests.integration.engine.conftest import SPECULATIVE, WORKLOAD, Make

LAUNCH = LaunchId("recipe", 1, Side.HEAD, 2, 1)
Start = Callable[..., Server]


@pytest.fixture
def ask(make: Make, serving: Start) -> Callable[..., Any]:
    """`with ask(speculative=…, **behaviour) as client`."""

    @contextmanager
    def asking(*, speculative: bool = False, workload: Workload = WORKLOAD, **behaviour: object) -> Any:
        server = serving(make(**behaviour).spec(SPECULATIVE if speculative else None))
        server.wait_ready()
        yield LoadClient(server.url, workload, speculative=speculative, seed="1/recipe", launch=LAUNCH)
        server.stop()

    return asking


def speed(data: Sample) -> float:
    assert data.tok_s is not None
    return data.tok_s


def test_plain_decoding_is_measured_per_token(ask: Callable[..., Any]) -> None:
    with ask(token_ms=4.0) as client:
        data = client.sample(1, 0)
    # The busiest box cannot make it much faster than scripted, but for an answer whose beginning is sent late.
    assert max(request.decode_s for request in data.requests) > 15 * 0.004 / 1.5
    assert data.cycle_ms == pytest.approx(1000 / speed(data))
    assert data.accept_length is None
    assert [request.prompt for request in data.requests] == [prompt.id for prompt in client.prompts]
    assert all(request.tokens == 16 for request in data.requests)
    assert data.begin < data.end
    assert sum(request.decode_s for request in data.requests) < data.end - data.begin


def test_speculation_is_measured_in_cycles(ask: Callable[..., Any]) -> None:
    workload = WORKLOAD.model_copy(update={"output_tokens": 64})  # what comes late at the beginning weighs less
    speeds = {"draft_ms": 1.0, "verify_ms": 6.0, "extend_ms": 1.0, "accept_length": 2.5}
    with ask(speculative=True, workload=workload, **speeds) as client:
        data = client.sample(1, 0)
    assert max(request.cycle_ms for request in data.requests) > 8.0 / 1.5
    assert 1.5 < data.accept_length <= 3.0
    assert all(request.verify_ct for request in data.requests)
    # exact for each answer; for the pass where each first piece held one token, else nearly
    assert speed(data) == pytest.approx(1000 * data.accept_length / data.cycle_ms, rel=0.03)


def test_older_names_in_meta_info_are_read_as_well(ask: Callable[..., Any]) -> None:
    with ask(speculative=True, generation="old") as client:
        old = client.sample(1, 0)
    assert old.accept_length is not None
    assert all(request.verify_ct for request in old.requests)


def test_a_loss_in_one_kind_of_prompt_is_seen_in_that_kind_only(ask: Callable[..., Any]) -> None:
    with ask(token_ms=3.0, kind_factor={"code": 20.0}) as client:
        kinds = client.sample(1, 0).tok_s_by_kind
    assert all(kinds["code"] < kinds[kind] / 2 for kind in ("chat", "maths", "summary", "json"))


@pytest.mark.parametrize("concurrency", [3, 12])
def test_several_at_a_time_are_counted_while_all_decode(
    ask: Callable[..., Any], concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:
    workload = WORKLOAD.model_copy(update={"output_tokens": 192, "concurrency": [concurrency]})
    with ask(token_ms=4.0, batch_cost=0.0, prefill_ms=1.0, workload=workload) as client:
        data = client.sample(concurrency, 0)
    slowest, fastest = min(data.tok_s_by_kind.values()), max(data.tok_s_by_kind.values())
    assert concurrency * slowest / 2 < speed(data) < concurrency * fastest * 2
    assert not [record for record in caplog.records if record.name.startswith("urllib3") and record.levelno > 20]
    assert len(data.requests) % concurrency == 0
    assert {request.prompt for request in data.requests} == {prompt.id for prompt in client.prompts}


def test_outputs_are_equal_for_equal_answers_and_differ_for_others(ask: Callable[..., Any]) -> None:
    outputs = []
    for number in (0, 0, 1):
        with ask(answers=number) as client:
            outputs.append([request.output for request in client.sample(1, 0).requests])
    assert outputs[0] == outputs[1]
    assert all(one != other for one, other in zip(outputs[0], outputs[2], strict=True))


def test_no_question_is_asked_twice_but_in_warming_up(ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one of another sample, of another place in the sample, or of a try that failed."""
    sent: list[str] = []
    call = LoadClient._call
    monkeypatch.setattr(LoadClient, "_call", lambda self, text: (sent.append(text), call(self, text))[1])
    with ask(workload=WORKLOAD.model_copy(update={"warmup_min": 2, "warmup_max": 2})) as client:
        warm_up = client.warm_up()
        in_warm_up = set(sent)
        samples = [client.sample(1, 0), client.sample(1, 1), client.sample(12, 2)]
    measured = sent[2:]
    assert len(set(measured)) == len(measured) == sum(len(data.requests) for data in samples)
    assert not in_warm_up & set(measured)
    assert {text.partition("\n\n")[2] for text in measured} == {prompt.text for prompt in client.prompts}
    assert len({request.asked for data in samples for request in data.requests}) == len(measured)
    assert set(warm_up.outputs) == {prompt.id for prompt in client.prompts[:2]}


def test_warm_up_is_bounded_and_covers_every_concurrency(ask: Callable[..., Any]) -> None:
    workload = WORKLOAD.model_copy(update={"warmup_min": 9, "warmup_max": 12, "concurrency": [1, 2]})
    with ask(workload=workload) as client:
        warm_up = client.warm_up()
    assert 9 <= warm_up.requests <= 12


def test_the_cache_is_emptied_once_nothing_is_pending(ask: Callable[..., Any]) -> None:
    with ask(flush_refusals=4) as client:
        client.flush()


def test_a_cache_that_is_never_emptied_is_told(ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FLUSH_S", 0.5)
    with ask(flush_refusals=10_000) as client, pytest.raises(ClientError) as caught:
        client.sample(1, 0)
    assert caught.value.code == "flush_refused"


@pytest.mark.parametrize(
    ("garbage", "code"),
    [
        ("not_json", "answer_garbage"),
        ("truncated", "answer_cut"),
        ("unfinished", "answer_length"),
        ("short", "answer_length"),
        ("meta_types", "answer_garbage"),
        ("error", "answer_error"),
    ],
)
@pytest.mark.parametrize("concurrency", [1, 2])
def test_garbage_is_one_clear_error(ask: Callable[..., Any], garbage: str, code: str, concurrency: int) -> None:
    with ask(garbage=garbage) as client, pytest.raises(ClientError) as caught:
        client.sample(concurrency, 0)
    assert caught.value.code == code
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("waited_s", "blame"), [(0.0, Blame.SIDE), (9.9, Blame.BOX)])
def test_an_answer_in_one_piece_is_the_servers_doing_where_the_client_had_its_core(
    ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, waited_s: float, blame: Blame
) -> None:
    waited = count(0.0, waited_s)
    monkeypatch.setattr(client_module, "_waited_for_a_core_s", lambda: next(waited))
    with ask(garbage="in_one_piece") as client, pytest.raises(ClientError) as caught:
        client.sample(1, 0)
    assert (caught.value.code, caught.value.blame) == ("answer_in_one_piece", blame)


def test_an_endless_answer_ends_at_the_limit(ask: Callable[..., Any]) -> None:
    workload = WORKLOAD.model_copy(update={"request_timeout_s": 1.0})
    with ask(garbage="endless", workload=workload) as client, pytest.raises(ClientError) as caught:
        client.sample(1, 0)
    assert caught.value.code in {"answer_slow", "answer_hung", "answer_endless"}


def test_absurd_figures_of_the_server_are_absent_and_the_clocks_figures_stay(ask: Callable[..., Any]) -> None:
    with ask(speculative=True, garbage="absurd_meta") as client:
        data = client.sample(1, 0)
    assert data.tok_s is not None
    assert data.cycle_ms is None
    assert data.accept_length is None


def test_answers_without_token_ids_are_compared_by_text(ask: Callable[..., Any]) -> None:
    with ask(garbage="no_ids") as client:
        data = client.sample(1, 0)
    assert all(request.output.startswith("text-") for request in data.requests)


def test_no_proxy_comes_between(ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with ask() as client:
        assert client.sample(1, 0).tok_s is not None
