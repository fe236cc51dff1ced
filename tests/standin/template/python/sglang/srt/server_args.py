"""The few flags the stand-in understands; all others are accepted, as a newer release would."""

import argparse
import sys

from sglang.srt import scripted


def parse(argv):
    parser = argparse.ArgumentParser(prog="launch_server", allow_abbrev=False)
    parser.add_argument("--model-path", "--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--tp-size", "--tensor-parallel-size", "--tp", type=int, default=1)
    parser.add_argument("--random-seed", type=int, default=None)
    parser.add_argument("--max-total-tokens", type=int, default=8192)
    parser.add_argument("--max-running-requests", type=int, default=16)
    parser.add_argument("--decode-log-interval", type=int, default=40)
    parser.add_argument("--stream-interval", type=int, default=1)
    parser.add_argument("--speculative-algorithm", default=None)
    parser.add_argument("--speculative-draft-model-path", "--speculative-draft-model", default=None)
    parser.add_argument("--speculative-num-steps", type=int, default=2)
    parser.add_argument("--speculative-eagle-topk", type=int, default=1)
    parser.add_argument("--speculative-num-draft-tokens", type=int, default=3)
    args, _others = parser.parse_known_args(argv)
    refused = [flag for flag in scripted.get("refused_flags", []) if flag in argv]
    if refused:
        parser.print_usage(sys.stderr)
        print(f"launch_server.py: error: unrecognized arguments: {' '.join(refused)}", file=sys.stderr)
        sys.exit(2)
    return args
