"""NVML, asked carefully: any call may be unsupported on some card, and then the answer is None, never 0.

`Nvml.open` raises NvmlAbsentError where there is no NVML at all (a box without NVIDIA GPUs); say so once and go on
without. A lost GPU answers every call with an error: `lost` tells it from a card that merely lacks a sensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NewType, Self

import pynvml

Handle = NewType("Handle", object)
"""An NVML device. Opaque."""

LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND})
MISSING = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, AttributeError, UnicodeDecodeError, ValueError)
"""What pynvml raises where the card, the driver, or pynvml itself is too old, too new or too odd for a question."""
UNKNOWN_NUMBER = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})  # what some drivers write for "not available"


class NvmlAbsentError(Exception):
    """No NVML, no driver, or no right to use it. The text is one readable reason."""


class Nvml:
    """NVML between `open` and `close`. Safe to use from several threads, as NVML itself is."""

    def __init__(self, numbered: tuple[tuple[int, Handle | None], ...]) -> None:
        self.numbered = numbered  # as nvidia-smi counts them; None where a GPU is listed but cannot be opened (lost)
        self.handles = tuple(handle for _, handle in numbered)

    @classmethod
    def open(cls, visible: Sequence[str] | None = None) -> Self:
        """`visible`: the GPUs that are meant, by number or the beginning of their UUID; None: all."""
        try:
            pynvml.nvmlInit()
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            raise NvmlAbsentError(_reason(error)) from error
        found = tuple((index, _handle(index)) for index in range(count))
        return cls(found if visible is None else _chosen(found, visible))

    def close(self) -> None:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer of one pynvml function; None where this card, driver or pynvml does not give it."""
        if None in arguments:
            return None
        try:
            return getattr(pynvml, function)(*arguments)
        except MISSING:
            return None

    def number(self, function: str, *arguments: Any, scale: float = 1.0) -> float | None:
        """A number, scaled; None also for the drivers' marks of "not available"."""
        answer = self.ask(function, *arguments)
        if not isinstance(answer, int) or answer in UNKNOWN_NUMBER:
            return None
        return answer * scale if scale != 1.0 else answer

    def count(self, function: str, *arguments: Any) -> int | None:
        answer = self.number(function, *arguments)
        return None if answer is None else int(answer)

    def text(self, function: str, *arguments: Any) -> str | None:
        answer = self.ask(function, *arguments)
        return str(answer).strip() or None if answer is not None else None

    def lost(self, handle: Handle | None) -> bool:
        """The GPU has fallen off the bus, or needs a reset."""
        if handle is None:
            return True
        try:
            pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        except pynvml.NVMLError as error:
            return error.value in LOST
        return False


def _chosen(
    found: Sequence[tuple[int, Handle | None]], visible: Sequence[str]
) -> tuple[tuple[int, Handle | None], ...]:
    """Those that are named, in that order."""
    return tuple(
        (index, handle) for name in visible for index, handle in found if _is_named(index, handle, name.strip())
    )


def _is_named(index: int, handle: Handle | None, name: str) -> bool:
    if name.isdecimal():
        return int(name) == index
    try:
        return handle is not None and bool(name) and str(pynvml.nvmlDeviceGetUUID(handle)).startswith(name)
    except MISSING:
        return False


def _handle(index: int) -> Handle | None:
    try:
        return Handle(pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError:
        return None


def _reason(error: pynvml.NVMLError) -> str:
    reasons = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver library (libnvidia-ml.so.1) on this machine",
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
        pynvml.NVML_ERROR_NO_PERMISSION: "this user may not talk to the NVIDIA driver",
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver and driver library differ in version: reboot",
    }
    return reasons.get(error.value, f"NVML does not start: {error}")
