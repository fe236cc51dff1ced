"""What can go wrong with a launch, each with a code, one line for people, and the log's last useful lines."""

from __future__ import annotations

from perfgate.errors import Exit, PerfgateError
from perfgate.records import Blame


class LaunchError(PerfgateError):
    """A launch that gave no valid measurement. `code` names the fault in facts, `lines` are strangers' text."""

    exit_code = Exit.CANNOT
    blame = Blame.SIDE

    def __init__(
        self,
        code: str,
        text: str,
        lines: tuple[str, ...] = (),
        *,
        remedy: str | None = None,
        blame: Blame | None = None,
    ) -> None:
        if blame is not None:
            self.blame = blame
        self.code = code
        self.text = text
        self.lines = lines
        super().__init__(text, remedy=remedy)


class ServerDied(LaunchError):
    """The server ended although nobody asked it to."""


class ServerHung(LaunchError):
    """No sign of progress for longer than allowed."""


class PortTaken(LaunchError):
    """Another process has the port: try another one."""

    blame = Blame.BOX


class ServerNotFreed(LaunchError):
    """Processes, port or GPUs of an ended launch were not free in time.

    Nothing more may be launched: it would run beside them, and fail for want of memory through no fault of its own.
    """

    blame = Blame.BOX


class GpusNotFreed(ServerNotFreed):
    """The launch is gone, the GPUs are still in use."""


class CannotStart(LaunchError):
    """The server's process could not be started at all."""

    blame = Blame.BOX


class ClientError(LaunchError):
    """An answer that no measurement can be made of."""
