"""Standard streams whose reader may go away, as `tee` does on Ctrl-C: what is said then is lost, and that is all.

rich and typer would end the process with 1 there, the exit code of a regression, in the midst of a clean-up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


class Unbroken:
    """A text stream that goes quiet at the first of the errors that are passed over."""

    def __init__(self, stream: TextIO, passed_over: type[OSError]) -> None:
        self._stream = stream
        self._passed_over = passed_over

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except self._passed_over:
            self._go_quiet()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except self._passed_over:
            self._go_quiet()

    def _go_quiet(self) -> None:
        """What is said from now on goes nowhere, and so does what the stream still holds when Python ends."""
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def unbroken_streams() -> Iterator[None]:
    """Within it no reader who has gone ends anything; nor does whatever else befalls standard error."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _unbroken(sys.stdout, BrokenPipeError), _unbroken(sys.stderr, OSError)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # while a reader who has gone still ends nothing
        sys.stdout, sys.stderr = before


def _unbroken(stream: TextIO | None, passed_over: type[OSError]) -> TextIO:
    """None for a stream that was closed from the start."""
    return cast(TextIO, stream and Unbroken(stream, passed_over))
