"""Triton's runtime, without a device."""

from __future__ import annotations

from typing import NoReturn

from placeholder import placeholder  # type: ignore[import-not-found]

__getattr__ = placeholder  # every name that is not here


class _Driver:
    @property
    def active(self) -> NoReturn:
        raise RuntimeError("no active Triton driver")  # as real Triton does; SGLang then falls back to the CPU


driver = _Driver()
