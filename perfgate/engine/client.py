"""The load client: asks a server for its prompts and measures the answers. The same client for both sides.

What is measured, per answer: the wait for the first token, the time from the first token to the answer's end
(`decode_s`), and the tokens that came in it. A sample is one pass over the whole prompt set at one concurrency:

- concurrency 1: one prompt after the other; tok_s = Σ decode tokens / Σ decode time.
- concurrency c: waves of c prompts asked at once, the last wave filled up from the start of the set. Of each wave only
  the time counts in which all c requests decode, from the last first token to the first end:

      request 1   ···▒▒▒███████████████▒▒
      request 2   ·····▒███████████████        · waiting for the first token
      request 3   ······███████████████▒▒▒▒    ▒ decoding, not counted: fewer than c requests decode
                        ^             ^        █ counted
                        last first    first end

Times are time.monotonic(), as everywhere in the facts: of the bytes' arrival, as the kernel noted it (`exchange`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from perfgate.config.model import Workload
from perfgate.engine.answers import AnswerReader, InOnePiece, TimedAnswer, verify_count
from perfgate.engine.exchange import Call, exchange, kernel_stamps, post, status_of
from perfgate.engine.faults import ClientError
from perfgate.engine.prompts import Prompt, prompts_for
from perfgate.records import Blame, LaunchId, Request, Sample
from perfgate.records.files import short_hash

FLUSH_S = 20.0  # for the server to have nothing pending
FLUSH_POLL_S = 0.1
TRIES = 5  # of a request that came in one piece
STARVED_SHARE = 0.1  # of an answer's time that this client waited for a core: then it may have missed its beginning
STEADY = 4  # requests on each side of the comparison
STEADY_SHARE = 0.95  # still getting faster: the newest requests' step is shorter than this share of those before


@dataclass(frozen=True)
class WarmUp:
    requests: int
    steady: bool  # False: still getting faster when the limit was reached
    outputs: Mapping[str, str]  # prompt → hash of its first answer


@dataclass(frozen=True)
class AskedPrompt:
    """A prompt and its answer."""

    prompt: Prompt
    answer: TimedAnswer
    text: str = ""  # as it was sent: the prompt behind its mark


def _nothing() -> None: ...


class LoadClient:
    """Asks one server. Raises ClientError for answers that cannot be measured and for a server that is gone."""

    def __init__(
        self,
        base_url: str,
        workload: Workload,
        *,
        speculative: bool,
        seed: str,
        launch: LaunchId,
        look: Callable[[], None] = _nothing,
    ) -> None:
        """`seed`: of the run, which no server knows; `look`: called now and then while an answer comes, to end it by
        what it raises.

        Warming up asks the same at every launch, so that answers can be compared; what is measured is asked once.
        """
        self.base_url = base_url
        self.workload = workload
        self.speculative = speculative
        self._seed = seed
        self._launch = launch
        self._look = look
        self.prompts = prompts_for(workload)
        self._flush = post(f"{base_url}/flush_cache")

    def _call(self, text: str) -> Call:
        sampling = {"max_new_tokens": self.workload.output_tokens, "temperature": 0.0, "ignore_eos": True}
        body = {"text": text, "sampling_params": sampling, "stream": True}
        return post(f"{self.base_url}/generate", body)

    @kernel_stamps()
    def warm_up(self) -> WarmUp:
        """Requests until their speed rises no more, within the workload's bounds; then one wave of each concurrency."""
        limit = self.workload.warmup_max
        steps: list[float] = []
        steady = False
        outputs: dict[str, str] = {}
        for prompt in islice(cycle(self.prompts), limit):
            (asked,) = self._wave([prompt], f"{self._seed}/warm-up")
            answer = asked.answer
            outputs.setdefault(prompt.id, answer.output)
            steps.append(answer.decode_s / answer.decode_tokens)
            steady = _steady(steps)
            if steady and len(steps) >= self.workload.warmup_min:
                break
        for concurrency in self.workload.concurrency:
            if concurrency > 1:
                self._wave(self._filled(self.prompts[:concurrency], concurrency), f"{self._seed}/warm-up/wave")
        return WarmUp(len(steps), steady, outputs)

    def sample(self, concurrency: int, number: int) -> Sample:
        """One pass over the prompt set, from an empty cache. `number`: of the sample in the launch."""
        self.flush()
        asking = (
            f"{self._seed}/{self._launch.pair}/{self._launch.attempt}/s{number}"  # the same for both sides of a pair
        )
        with _quiet_memory(), kernel_stamps():
            begin = time.monotonic()
            waves = [self._wave(wave, f"{asking}/w{place}") for place, wave in enumerate(self._waves(concurrency))]
            end = time.monotonic()
        return summarise(self._launch, number, (begin, end), waves, speculative=self.speculative)

    def flush(self) -> None:
        """Empties the server's prefix cache; it refuses while requests are pending."""
        deadline = time.monotonic() + FLUSH_S
        while True:
            status = status_of(self._flush, self.workload.request_timeout_s)
            if status == 200:
                return
            if status != 400 or time.monotonic() >= deadline:
                raise ClientError("flush_refused", f"the server does not empty its cache (status {status})")
            time.sleep(FLUSH_POLL_S)

    def _waves(self, concurrency: int) -> Iterator[Sequence[Prompt]]:
        for start in range(0, len(self.prompts), concurrency):
            yield self._filled(self.prompts[start : start + concurrency], concurrency)

    def _filled(self, prompts: Sequence[Prompt], concurrency: int) -> list[Prompt]:
        """So many prompts, the first ones of the set again where they are too few."""
        return [*prompts, *islice(cycle(self.prompts), concurrency - len(prompts))]

    def _wave(self, prompts: Sequence[Prompt], asking: str) -> list[AskedPrompt]:
        """All prompts at once; again where a busy box kept this client from seeing an answer begin."""
        starved = False
        for again in range(TRIES):
            began, waited_s = time.monotonic(), _waited_for_a_core_s()
            try:
                return self._wave_once(prompts, f"{asking}/t{again}")
            except InOnePiece as error:
                fault = error
                starved |= _waited_for_a_core_s() - waited_s > STARVED_SHARE * (time.monotonic() - began)
        raise ClientError(fault.code, fault.text, blame=Blame.BOX if starved else Blame.SIDE)

    def _wave_once(self, prompts: Sequence[Prompt], asking: str) -> list[AskedPrompt]:
        readers = [AnswerReader() for _ in prompts]
        texts = [prompt.marked(f"{asking}/{place}") for place, prompt in enumerate(prompts)]
        calls = [self._call(text) for text in texts]
        exchange(list(zip(calls, readers, strict=True)), self.workload.request_timeout_s, self._look)
        answers = [reader.finish(self.workload.output_tokens) for reader in readers]
        return [AskedPrompt(*one) for one in zip(prompts, answers, texts, strict=True)]


@contextmanager
def _quiet_memory() -> Iterator[None]:
    """No collection of garbage in the middle of a sample."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _waited_for_a_core_s() -> float:
    """Seconds that this thread was ready to run and did not (proc(5), schedstat), 0 where the kernel does not count."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _steady(steps: Sequence[float]) -> bool:
    if len(steps) < 2 * STEADY:
        return False
    before, now = steps[-2 * STEADY : -STEADY], steps[-STEADY:]
    return median(now) >= STEADY_SHARE * median(before)


# ------------------------------------------------------------------------------------------------ figures


def summarise(
    launch: LaunchId,
    number: int,
    times: tuple[float, float],
    waves: Sequence[Sequence[AskedPrompt]],
    *,
    speculative: bool,
) -> Sample:
    """The figures of one pass. Pure."""
    concurrency = len(waves[0])
    asked = [one for wave in waves for one in wave]
    answers = [one.answer for one in asked]
    requests = tuple(_request(one, speculative) for one in asked)
    return Sample(
        id=f"{launch.launch_id}/s{number}",
        **launch.identity,
        sample=number,
        concurrency=concurrency,
        begin=times[0],
        end=times[1],
        requests=requests,
        tok_s=_rate(answers) if concurrency == 1 else _wave_rate(waves),
        ttft_ms=1000 * median(answer.ttft_s for answer in answers),
        cycle_ms=_cycle_ms(answers, speculative),
        accept_length=_accept_length(requests),
        tok_s_by_kind=_by_kind(asked),
    )


def _request(asked: AskedPrompt, speculative: bool) -> Request:
    answer = asked.answer
    cycles = verify_count(answer.meta, answer.tokens) if speculative else None
    return Request(
        prompt=asked.prompt.id,
        prompt_kind=asked.prompt.kind,
        tokens=answer.tokens,
        ttft_s=answer.ttft_s,
        decode_s=answer.decode_s,
        output=answer.output,
        verify_ct=cycles,
        accept_length=None if cycles is None else (answer.tokens - 1) / cycles,
        cycle_ms=_cycle_ms([answer], speculative),
        asked=short_hash(asked.text) if asked.text else "",
    )


def _cycle_ms(answers: Sequence[TimedAnswer], speculative: bool) -> float | None:
    """Decode time per step; None unless every answer says how many steps it took."""
    steps = [_steps_seen(answer, speculative) for answer in answers]
    known = [count for count in steps if count is not None]
    return 1000 * sum(answer.decode_s for answer in answers) / sum(known) if len(known) == len(steps) else None


def _steps_seen(answer: TimedAnswer, speculative: bool) -> float | None:
    """Decode steps between the first chunk and the last: one for each token, or speculative cycles.

    Where the first chunk already held several tokens, the cycles before it are taken off in proportion, so that an
    answer's speed is always its accept length divided by its cycle.
    """
    if not speculative:
        return answer.decode_tokens
    cycles = verify_count(answer.meta, answer.tokens)
    return None if cycles is None else cycles * answer.decode_tokens / (answer.tokens - 1)


def _rate(answers: Sequence[TimedAnswer]) -> float:
    return sum(answer.decode_tokens for answer in answers) / sum(answer.decode_s for answer in answers)


def _wave_rate(waves: Sequence[Sequence[AskedPrompt]]) -> float | None:
    """Tokens per second while all requests of a wave decode; None where in no wave they ever did at the same time."""
    tokens, seconds = 0.0, 0.0
    for wave in waves:
        answers = [one.answer for one in wave]
        start = max(answer.first_at or 0.0 for answer in answers)
        stop = min(answer.last_at or 0.0 for answer in answers)
        if stop > start:
            tokens += sum(answer.tokens_at(stop) - answer.tokens_at(start) for answer in answers)
            seconds += stop - start
    return tokens / seconds if tokens > 0 else None


def _accept_length(requests: Sequence[Request]) -> float | None:
    """Tokens per cycle over the whole pass; None unless every answer says how many cycles it took."""
    cycles = [request.verify_ct for request in requests if request.verify_ct is not None]
    return sum(request.tokens - 1 for request in requests) / sum(cycles) if len(cycles) == len(requests) else None


def _by_kind(asked: Sequence[AskedPrompt]) -> dict[str, float]:
    """Speed of each kind's requests, each by itself whatever ran beside it."""
    kinds = dict.fromkeys(one.prompt.kind for one in asked)
    return {kind: _rate([one.answer for one in asked if one.prompt.kind == kind]) for kind in kinds}
