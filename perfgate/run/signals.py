"""Ctrl-C and a runner's cancel: the first one ends the run in order, the second one at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from perfgate.errors import Exit

CODES = {signal.SIGINT: Exit.INTERRUPTED, signal.SIGTERM: Exit.TERMINATED}


class Cancelled(KeyboardInterrupt):
    """Somebody wants the run to end. No `except Exception` on the way stops it."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number

    @property
    def exit_code(self) -> Exit:
        return CODES[self.number]


@contextmanager
def cancellable() -> Iterator[None]:
    """Within it the first SIGINT or SIGTERM raises Cancelled; the second ends the process, the watchdog cleans up."""
    cancelled = False

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal cancelled
        if cancelled:
            os._exit(CODES[signal.Signals(number)])
        cancelled = True
        raise Cancelled(signal.Signals(number))

    before = {number: signal.signal(number, on_signal) for number in CODES}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
