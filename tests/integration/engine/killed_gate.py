"""A small perfgate that is there to be killed: holds a lock, starts a server, says so, and waits.

python killed_gate.py LOCK RECORDS SPEC        SPEC: a pickled LaunchSpec
"""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import sys
import time
from pathlib import Path

from perfgate.engine.server import Server
from perfgate.engine.watchdog import Watchdog


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background of a shell
    lock, records, spec = sys.argv[1:4]
    held = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    watchdog = Watchdog.start(held, Path(records))
    server = Server.start(pickle.loads(Path(spec).read_bytes()), watchdog=watchdog)
    if len(sys.argv) == 4:
        server.wait_ready()
    print(watchdog.process.pid, *server.look_around(), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
