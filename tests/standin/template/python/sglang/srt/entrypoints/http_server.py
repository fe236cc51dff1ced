"""The main process: HTTP in, the schedulers behind it."""

import contextlib
import hashlib
import json
import multiprocessing
import os
import queue
import signal
import socket
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sglang.srt import log, scripted
from sglang.srt.managers.detokenizer_manager import run_detokenizer_process
from sglang.srt.managers.scheduler import run_scheduler_process

WORDS = [
    "the",
    "of",
    "a",
    "model",
    "token",
    "cache",
    "page",
    "draft",
    "cycle",
    "verify",
    "batch",
    "answer",
    "so",
    "is",
    "it",
    "and",
    "box",
]


class Engine:
    """Hands requests to the scheduler and its tokens back to the waiting handlers."""

    def __init__(self, args):
        self.args = args
        self.waiting = {}
        self.lock = threading.Lock()
        self.children = []
        self.ready = False
        self.flushes_refused = 0
        context = multiprocessing.get_context("spawn")
        factor = scripted.launch_factor(scripted.launch_number())
        self.inboxes = []
        for rank in range(min(args.tp_size, scripted.get("ranks", 1))):
            theirs, ours = context.Pipe(duplex=False)
            results, sender = context.Pipe(duplex=False)
            child = context.Process(target=run_scheduler_process, args=(args, rank, theirs, sender, factor))
            child.start()
            theirs.close()
            sender.close()
            self.children.append(child)
            self.inboxes.append(ours)
            if rank == 0:
                self.results = results
            else:
                threading.Thread(target=self.drain, args=(results,), daemon=True).start()
        theirs, self.detokenizer_inbox = context.Pipe(duplex=False)
        child = context.Process(target=run_detokenizer_process, args=(theirs,))
        child.start()
        theirs.close()
        self.children.append(child)

    @staticmethod
    def drain(results):
        try:
            while True:
                results.recv()
        except EOFError:
            pass

    def wait_ready(self):
        try:
            self.results.recv()
        except EOFError:
            time.sleep(0.5)  # SIGQUIT of the failed child comes first
            code = self.children[0].exitcode
            log.line(
                f"Rank 0 scheduler died during initialization (exit code: {code}). Possible causes: out of memory."
            )
            self.end(1)
        threading.Thread(target=self.pump, daemon=True).start()

    def pump(self):
        try:
            while True:
                rid, *state = self.results.recv()
                with self.lock:
                    receiver = self.waiting.get(rid)
                if receiver:
                    receiver.put(state)
        except EOFError:
            time.sleep(0.5)
            log.line("Rank 0 scheduler is dead. Please check if there are relevant logs.")
            self.end(1)

    def submit(self, text, max_new_tokens):
        rid = uuid.uuid4().hex
        receiver = queue.SimpleQueue()
        with self.lock:
            self.waiting[rid] = receiver
            for inbox in self.inboxes:
                inbox.send((rid, text, max_new_tokens))
        return rid, receiver

    def forget(self, rid):
        with self.lock:
            self.waiting.pop(rid, None)

    def end(self, code):
        log.line(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
        for child in self.children:
            if child.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
        os._exit(code)


def answer(rid, text, tokens, cycles, done, started, first_at):
    """One chunk as SGLang sends it: everything so far, and the figures so far."""
    seed = hashlib.sha256(f"{text}/{scripted.get('answers', 0)}".encode()).digest()
    ids = [(seed[i % 32] * 7 + i * 31) % 1024 for i in range(tokens)]
    meta = {
        "id": rid,
        "finish_reason": {"type": "length", "length": tokens} if done else None,
        "prompt_tokens": len(text.split()),
        "weight_version": "default",
        "completion_tokens": tokens,
        "cached_tokens": 0,
    }
    if done:
        meta["e2e_latency"] = time.monotonic() - started
        meta["first_token_latency"] = first_at - started
        if cycles:
            meta |= speculative_meta(tokens, cycles)
    return {"text": " ".join(WORDS[i % len(WORDS)] for i in ids), "output_ids": ids, "meta_info": meta}


def speculative_meta(tokens, cycles):
    correct, proposed = tokens - 1 - cycles, 2 * cycles
    meta = {"spec_verify_ct": cycles, "spec_accept_length": tokens / cycles, "spec_accept_rate": correct / proposed}
    if scripted.get("generation", "new") == "new":
        return meta | {"spec_num_correct_drafts": correct, "spec_num_proposed_drafts": proposed}
    return meta | {"spec_accept_token_num": correct, "spec_draft_token_num": proposed}


def spoil(reply, how):
    """Answers no honest server gives."""
    if how == "short":
        reply["meta_info"]["completion_tokens"] //= 2
        reply["output_ids"] = reply["output_ids"][: len(reply["output_ids"]) // 2]
    elif how == "absurd_meta":
        reply["meta_info"] |= {
            "spec_verify_ct": -7,
            "spec_accept_length": "many",
            "e2e_latency": float("inf"),
            "queue_time": [[]],
        }
    elif how == "meta_types":
        reply["meta_info"] = [1, 2, 3]
    elif how == "no_ids":
        reply.pop("output_ids")
    elif how == "error":
        return {"error": {"message": "scripted error"}}
    return reply


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 0

    def do_GET(self):
        path = self.path.split("?")[0]
        if path in ("/health", "/health_generate"):
            return self.reply(200 if self.server.engine.ready else 503, "")
        if path in ("/model_info", "/get_model_info"):
            return self.reply_json({"model_path": self.server.engine.args.model_path, "is_generation": True})
        new = scripted.get("generation", "new") == "new"
        if path == "/get_server_info" or (path == "/server_info" and new):
            info = {**vars(self.server.engine.args), "version": "0.5.23+standin", "status": "ready"}
            return self.reply_json(info)
        if path == "/flush_cache":
            return self.flush()
        return self.reply_json({"detail": "Not Found"}, 404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.split("?")[0]
        if path == "/generate":
            return self.generate(body)
        if path == "/flush_cache":
            return self.flush()
        return self.reply_json({"detail": "Not Found"}, 404)

    def flush(self):
        engine = self.server.engine
        if engine.flushes_refused < scripted.get("flush_refusals", 0) or engine.waiting:
            engine.flushes_refused += 1
            return self.reply(400, "Flush cache failed.\n")
        engine.flushes_refused = 0
        log.line("Cache flushed successfully!")
        return self.reply(200, "Cache flushed.\n")

    def generate(self, body):
        try:
            request = json.loads(body)
            text = request["text"]
            sampling = request.get("sampling_params") or {}
            limit = int(sampling.get("max_new_tokens", 16))
        except (ValueError, KeyError, TypeError) as error:
            return self.reply_json({"error": {"message": str(error)}}, 400)
        if scripted.get("garbage") == "http500":
            return self.reply(500, "Internal Server Error")
        engine = self.server.engine
        started = time.monotonic()
        rid, receiver = engine.submit(text, limit)
        try:
            if request.get("stream"):
                return self.stream(rid, text, receiver, started)
            while True:
                tokens, cycles, done = receiver.get()
                if done:
                    return self.reply_json(answer(rid, text, tokens, cycles, done, started, time.monotonic()))
        finally:
            engine.forget(rid)

    def stream(self, rid, text, receiver, started):
        garbage = scripted.get("garbage")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        first_at = None
        interval = self.server.engine.args.stream_interval
        while True:
            tokens, cycles, done = receiver.get()
            first = first_at is None
            first_at = first_at or time.monotonic()
            if not (first or done or tokens % interval == 0) or (garbage == "in_one_piece" and not done):
                continue
            reply = answer(rid, text, tokens, cycles, done, started, first_at)
            if garbage == "not_json":
                self.chunk("data: {oops\n\n")
            elif garbage == "truncated" and done:
                self.close_connection = True
                return self.connection.shutdown(socket.SHUT_RDWR)
            elif garbage == "endless":
                self.chunk("data: " + "x" * 65536)
                continue
            elif not (garbage == "unfinished" and done):
                self.chunk(f"data: {json.dumps(spoil(reply, garbage) if done else reply, separators=(',', ':'))}\n\n")
            if done:
                self.chunk("data: [DONE]\n\n")
                return self.wfile.write(b"0\r\n\r\n")

    def chunk(self, text):
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def reply(self, status, text, kind="text/plain"):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def reply_json(self, value, status=200):
        self.reply(status, json.dumps(value), "application/json")

    def log_request(self, code="-", size="-"):
        log.line(f'INFO:     {self.client_address[0]}:{self.client_address[1]} - "{self.requestline}" {int(code)} OK')

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def server_bind(self):
        """As HTTPServer's, without asking the name server who we are."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]

    def handle_error(self, request, client_address):
        """A client that went away is no news."""


def say_what_would_run(args):
    if args.speculative_algorithm:
        log.line("Non-overlap (synchronous) spec v2 is used for eagle/eagle3/standalone speculative decoding.")
    log.line(f"server_args={vars(args)}")


def leave_an_orphan(server):
    """A process outside the tree and session, without our environment, that holds the port and ignores SIGTERM."""
    there, says_so = os.pipe()
    code = (
        f"import os,signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.close({says_so}); time.sleep(3600)"
    )
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.set_inheritable(server.fileno(), True)
            os.set_inheritable(says_so, True)
            os.execve(sys.executable, [sys.executable, "-S", "-c", code], {})
        os._exit(0)
    os.wait()
    os.close(says_so)
    os.read(there, 1)  # ends when nobody has the other end: the process is what it is to be
    os.close(there)


def launch_server(args):
    for name, value in scripted.get("sets_env", {}).items():
        os.environ[name] = value
    for name in scripted.get("drops_env", []):
        os.environ.pop(name, None)
    if scripted.get("on_start"):
        exec(scripted.get("on_start"), {"__name__": "on_start"})
    say_what_would_run(args)
    engine = Engine(args)

    def child_failed(_signal, _frame):
        log.line("Received sigquit from a child process. It usually means the child failed.")
        engine.end(131)

    def asked_to_end(_signal, _frame):
        log.line("INFO:     Shutting down")
        log.line(f"INFO:     Finished server process [{os.getpid()}]")
        engine.end(0)

    signal.signal(signal.SIGQUIT, child_failed)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if scripted.get("ignore_sigterm") else asked_to_end)
    engine.wait_ready()
    log.line(f"INFO:     Started server process [{os.getpid()}]")
    try:
        server = Server((args.host, args.port), Handler)
    except OSError as error:
        address = f"('{args.host}', {args.port})"
        told = f"[Errno {error.errno}] error while attempting to bind on address {address}: address already in use"
        log.line(f"ERROR:    {told}")
        engine.end(1)
    server.engine = engine
    log.line(f"INFO:     Uvicorn running on http://{args.host}:{args.port} (Press CTRL+C to quit)")
    if scripted.get("leaves_memory"):
        memory = Path(f"/dev/shm/standin_{os.getpid()}_{args.port}")
        memory.write_bytes(b"\0" * 4096)
        engine.memory = memory.open("rb")
    if scripted.get("orphan"):
        leave_an_orphan(server)
    if scripted.get("crash") == "ready":
        log.line("Initialization failed. warmup error: scripted")
        engine.end(1)
    if scripted.get("hang") == "ready":
        time.sleep(3600)
    engine.ready = True
    log.line("The server is fired up and ready to roll!")
    server.serve_forever(poll_interval=0.5)
