"""One kind of error for everything a person can mend: what is wrong, where, and the next step."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `gate` and `judge`; the other commands use OK, USAGE and CANNOT."""

    OK = 0  # pass or skipped
    REGRESSION = 1
    USAGE = 2  # usage or configuration
    INCONCLUSIVE = 3
    CANNOT = 4  # environment, build_failed, bench_failed
    INTERRUPTED = 130
    TERMINATED = 143


class PerfgateError(Exception):
    """Bad input or a world that does not play along. Shown as one line, without a traceback."""

    exit_code: Exit = Exit.USAGE

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        remedy = f" → {self.remedy}" if self.remedy else ""
        return f"{where}{self.what}{remedy}"
