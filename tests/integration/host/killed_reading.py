"""A small perfgate that is there to be killed while the canary sings: holds a lock, and asks for one reading.

python killed_reading.py LOCK RECORDS PYTHON GPUS_FREE        PYTHON: what the canary is run with; GPUS_FREE: a script
"""

from __future__ import annotations

import fcntl
import os
import sys
from functools import partial
from pathlib import Path

from perfgate.engine.watchdog import Watchdog
from perfgate.host.canary import CanaryProcess, CanarySetup


def main() -> None:
    lock, records, python, gpus_free = sys.argv[1:5]
    held = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    watchdog = Watchdog.start(held, Path(records), ["/bin/sh", "-c", gpus_free])
    setup = CanarySetup(python=Path(python), device="cpu", ranks=2)
    CanaryProcess(setup, keep=partial(watchdog.keeping, "canary")).measure()


if __name__ == "__main__":
    main()
