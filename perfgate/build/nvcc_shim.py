"""Stands before nvcc and leaves out the architectures that this box does not have.

The kernel project's list of architectures is written into its CMakeLists; no option of any version restricts it, and
compiling for eight of them takes hours. A command that names the box's architecture is compiled for that alone; one
that does not (code for one other GPU only) is left as it is. Copied beside the build: standard library only.
"""

from __future__ import annotations

import os
import re
import sys

_GENCODE = re.compile(r"^(?:-gencode|--generate-code)(?:=(?P<value>.*))?$")
_CODE = re.compile(r"(?:compute|sm|lto)_(?P<number>\d+)(?P<suffix>[a-z]?)")


def only_arch(arguments: list[str], arch: str) -> list[str]:
    """Arguments of nvcc with the gencode options that serve `arch` (for example "12.0a" or "9.0") and no others."""
    options = list(_gencode_options(arguments))
    wanted = _best([_number(value) for _, _, value in options], int(arch.rstrip("abf").replace(".", "")))
    if wanted is None:
        return arguments
    dropped = {at for start, end, value in options if _number(value) != wanted for at in range(start, end)}
    return [argument for at, argument in enumerate(arguments) if at not in dropped]


def _gencode_options(arguments: list[str]) -> list[tuple[int, int, str]]:
    """Where each option begins and ends, and its value."""
    found = []
    for at, argument in enumerate(arguments):
        match = _GENCODE.match(argument)
        if match and match["value"] is not None:
            found.append((at, at + 1, match["value"]))
        elif match and at + 1 < len(arguments):
            found.append((at, at + 2, arguments[at + 1]))
    return found


def _number(value: str) -> int | None:
    numbers = [int(match["number"]) for match in _CODE.finditer(value)]
    return max(numbers) if numbers else None


def _best(offered: list[int | None], box: int) -> int | None:
    """The newest architecture offered whose code runs on the box: its own, or an older one of the same generation."""
    fitting = [number for number in offered if number is not None and number // 10 == box // 10 and number <= box]
    return max(fitting) if fitting else None


def main() -> None:
    nvcc, arch = os.environ["PERFGATE_NVCC"], os.environ["PERFGATE_CUDA_ARCH"]
    os.execv(nvcc, [nvcc, *only_arch(sys.argv[1:], arch)])


if __name__ == "__main__":
    main()
