"""Stand-in for Triton: kernels can be defined, and say so if they are ever launched. Saves a download of 190 MB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from placeholder import placeholder, pretend_submodules  # type: ignore[import-not-found]

import triton.runtime  # type: ignore[import-not-found]  # noqa: F401  reached as an attribute, too

__version__ = "0+perfgate"
__getattr__ = placeholder  # every name that is not here

pretend_submodules(__name__)


class Kernel:
    """What `@triton.jit` makes of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.__name__ = getattr(function, "__name__", "kernel")
        self.__doc__ = function.__doc__

    def __getitem__(self, *grid: object, **options: object) -> NoReturn:
        raise NotImplementedError(f"Triton kernel {self.__name__} launched; the cpu profile has no Triton")

    __call__ = __getitem__


def jit(function: Callable[..., Any] | None = None, **options: object) -> Any:
    """`@jit` and `@jit(option=…)`."""
    return jit if function is None else Kernel(function)


def autotune(*args: object, **options: object) -> Callable[[Any], Any]:
    """Leaves the kernel as it is: there is nothing to tune."""
    return lambda kernel: kernel


heuristics = autotune


def cdiv(dividend: int, divisor: int) -> int:
    """Division, rounded up."""
    return -(-dividend // divisor)


def next_power_of_2(number: int) -> int:
    """The least power of two that is not below `number`."""
    return 1 << (number - 1).bit_length() if number > 0 else 1
