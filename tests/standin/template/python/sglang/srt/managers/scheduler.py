"""The process that runs the batches: takes requests from the main process, sends tokens back."""

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from sglang.srt import log, scripted
from sglang.srt.distributed import parallel_state
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2


class ForwardMode:
    def __init__(self, name):
        self.name = name

    def is_extend(self, *args, **kwargs):
        return self.name == "EXTEND"

    def is_decode(self):
        return self.name == "DECODE"

    def is_target_verify(self):
        return self.name == "TARGET_VERIFY"

    def is_decode_or_idle(self):
        return self.is_decode()

    def is_idle(self):
        return False


class Request:
    def __init__(self, rid, text, max_new_tokens):
        self.rid = rid
        self.text = text
        self.max_new_tokens = max_new_tokens
        self.tokens = 0
        self.cycles = 0
        self.factor = scripted.get("kind_factor", {}).get(scripted.prompt_kind(text), 1.0)
        self.random = random.Random(text)

    def accept(self, steps):
        """Tokens of one cycle: one, and each draft with the same chance, so that the mean is the scripted one."""
        chance = (scripted.get("accept_length", 2.0) - 1) / steps
        return 1 + sum(self.random.random() < chance for _ in range(steps))

    @property
    def done(self):
        return self.tokens >= self.max_new_tokens


class ScheduleBatch:
    """One step's batch. Times are those of the slowest kind of prompt in it."""

    def __init__(self, mode, reqs, target_ms, draft_ms=0.0, extend_ms=0.0):
        slowest = max(request.factor for request in reqs)
        crowd = 1 + scripted.get("batch_cost", 0.05) * (len(reqs) - 1)
        self.forward_mode = ForwardMode(mode)
        self.reqs = reqs
        self.target_ms = target_ms * slowest * crowd
        self.draft_ms = draft_ms * slowest * crowd
        self.extend_ms = extend_ms * slowest * crowd

    def batch_size(self):
        return len(self.reqs)


class Scheduler:
    def __init__(self, args, rank, inbox, outbox, factor):
        self.args = args
        self.rank = rank
        self.inbox = inbox
        self.outbox = outbox
        self.speculative = bool(args.speculative_algorithm)
        self.tp_worker = TpModelWorker(factor)
        self.draft_worker = EAGLEWorkerV2(args, self.tp_worker, factor) if self.speculative else None
        self.model_worker = self.draft_worker or self.tp_worker
        self.running = []
        self.served = 0
        self.steps = 0
        self.tokens_since_line = 0
        self.line_at = time.monotonic()
        self.speculated = [0, 0]

    def event_loop_normal(self):
        while True:
            if not self.running:
                self.inbox.poll(None)
                scripted.PACE.restart()
            while self.inbox.poll(0):
                self.take(self.inbox.recv())
            waiting = [request for request in self.running if request.tokens == 0]
            if waiting:
                self.prefill(waiting)
            elif self.running:
                self.decode()

    def take(self, message):
        if message is None:
            sys.exit(0)
        self.running.append(Request(*message))

    def prefill(self, reqs):
        tokens = sum(len(request.text.split()) for request in reqs)
        log.line(
            f"Prefill batch, #new-seq: {len(reqs)}, #new-token: {tokens}, #cached-token: 0, token usage: 0.00, "
            f"#running-req: {len(self.running) - len(reqs)}, #queue-req: 0, #pending-token: 0, cpu graph: False, "
            "input throughput (token/s): 50.00"
        )
        self.model_worker.forward_batch_generation(ScheduleBatch("EXTEND", reqs, scripted.get("prefill_ms", 2.0)))
        for request in reqs:
            request.tokens = 1
            self.send(request)

    def decode(self):
        reqs = self.running
        if self.speculative:
            batch = ScheduleBatch(
                "DECODE",
                reqs,
                scripted.get("verify_ms", 2.0),
                scripted.get("draft_ms", 0.3),
                scripted.get("extend_ms", 0.2),
            )
        else:
            batch = ScheduleBatch("DECODE", reqs, scripted.get("token_ms", 1.5))
        got = self.model_worker.forward_batch_generation(batch)
        self.steps += 1
        for request in list(reqs):
            self.fail_if_scripted(request)
            new = min(got[id(request)], request.max_new_tokens - request.tokens)
            request.tokens += new
            request.cycles += self.speculative
            self.tokens_since_line += new
            self.speculated[0] += new
            self.speculated[1] += 1
            self.send(request)
        if self.steps % self.args.decode_log_interval == 0:
            self.decode_line(len(reqs))

    def decode_line(self, running):
        now = time.monotonic()
        spec = ""
        if self.speculative:
            mean = self.speculated[0] / self.speculated[1]
            spec = f"accept len: {mean:.2f}, accept rate: {(mean - 1) / self.args.speculative_num_steps:.2f}, "
        log.line(
            f"Decode batch, #running-req: {running}, #token: {sum(r.tokens for r in self.running)}, token usage: 0.01, "
            f"{spec}cpu graph: False, gen throughput (token/s): {self.tokens_since_line / (now - self.line_at):.2f}, "
            "#queue-req: 0"
        )
        self.tokens_since_line, self.line_at, self.speculated = 0, now, [0, 0]

    def send(self, request):
        if request.done:
            self.running.remove(request)
            self.served += 1
        if self.rank == 0:
            self.outbox.send((request.rid, request.tokens, request.cycles, request.done))

    def fail_if_scripted(self, request):
        limit = scripted.get("fail_after_requests")
        if limit is None or self.served < limit or request.tokens < request.max_new_tokens // 2:
            return
        how = scripted.get("fail", "die")
        if how == "hang":
            time.sleep(3600)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "out_of_memory":
            raise MemoryError("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
        raise ValueError("scripted: the scheduler dies here")


def load_model(args):
    log.line("Init parallel begin.")
    parallel_state.initialize_model_parallel(args.tp_size)
    log.line("Init parallel ends. elapsed=0.01 s")
    models = [(args.model_path, "LlamaForCausalLM")]
    if args.speculative_draft_model_path:
        models.append((args.speculative_draft_model_path, "LlamaForCausalLMEagle3"))
    for path, kind in models:
        if path.startswith("/") and not Path(path).exists():
            raise OSError(f"{path} is not a local folder and is not a valid model identifier")
        log.line("Load weight begin. avail mem=21.94 GB")
        time.sleep(scripted.get("start_s", 0.05))
        log.line(f"Load weight end. elapsed=0.08 s, type={kind}, avail mem=21.94 GB, mem usage=0.01 GB.")
    if scripted.get("hang") == "load":
        time.sleep(3600)
    if scripted.get("crash") == "load":
        raise RuntimeError("Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.3")
    log.line("KV Cache is allocated. dtype: torch.float32, #tokens: 8192, K size: 0.05 GB, V size: 0.05 GB")
    log.line(
        f"max_total_num_tokens={scripted.get('max_total_num_tokens', args.max_total_tokens)}, "
        "chunked_prefill_size=4096, max_prefill_tokens=16384, "
        f"max_running_requests={args.max_running_requests}, context_len=2048, available_cpu_mem=21.83 GB"
    )


def run_scheduler_process(args, rank, inbox, outbox, factor):
    """Entry of the child process. A failure is told as SGLang tells it: the traceback, then SIGQUIT to the parent."""
    Path("/proc/self/comm").write_text(f"sglang::schedu{rank}")
    if scripted.get("setsid", True):
        os.setsid()
    parent = os.getppid()
    try:
        load_model(args)
        scheduler = Scheduler(args, rank, inbox, outbox, factor)
        outbox.send("ready")
        scheduler.event_loop_normal()
    except EOFError:
        return
    except Exception:  # noqa: BLE001  as SGLang does
        log.line(f"Scheduler hit an exception: {traceback.format_exc()}")
        os.kill(parent, signal.SIGQUIT)
