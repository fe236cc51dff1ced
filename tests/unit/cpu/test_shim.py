"""The stand-ins: kernels in the cpu environment's Python, placeholders in any."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from perfgate.cpu.environment import SHIM, environment_key

CASES = Path(__file__).parent / "shim_cases.py"
NAMES = [
    node.name
    for node in ast.parse(CASES.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("case_")
]


@cache
def python_with_torch() -> Path | None:
    """The environment's interpreter, where it has been made: below PERFGATE_CPU_STATE or a laptop's state."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    states = [os.environ.get("PERFGATE_CPU_STATE"), f"{home}/perfgate"]
    places = [Path(state) / "environments" / f"cpu-{environment_key()}" / "venv" for state in states if state]
    return next((place / "bin" / "python" for place in places if (place / "bin" / "python").exists()), None)


@cache
def results() -> dict[str, str]:
    python = python_with_torch()
    if python is None:
        pytest.skip("the cpu profile's environment is not made here; `perfgate demo` makes it")
    done = subprocess.run(
        [python, CASES], env={"PYTHONPATH": str(SHIM)}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_kernel(name: str) -> None:
    assert results()[name] == ""


def run(code: str) -> str:
    """Runs code with the placeholders on the path, in an interpreter that has the real libraries as little as we."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(SHIM)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


TRITON = """
import triton, triton.language as tl
from triton.language.extra import libdevice
from triton.runtime.jit import JITFunction

@triton.autotune(configs=[triton.Config({"BLOCK": 1}, num_warps=4)], key=["n"])
@triton.heuristics({"EVEN": lambda args: True})
@triton.jit
def plain(x, n: tl.constexpr): "About it."

@triton.jit(do_not_specialize=["n"])
def with_options(x, n: "tl.constexpr | None" = None): pass

class Sub(tl.core.base_value): pass
"""


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("plain.__name__, plain.__doc__, with_options.__name__", "('plain', 'About it.', 'with_options')"),
        ("triton.cdiv(7, 2), triton.cdiv(6, 2), triton.next_power_of_2(5), triton.next_power_of_2(8)", "(4, 3, 8, 8)"),
        ("isinstance(plain, JITFunction), isinstance(3, Sub)", "(False, False)"),
        ("(tl.float32 | None) is not None, bool(tl.constexpr(3))", "(True, True)"),
        ("hasattr(triton, '__wrapped__'), hasattr(tl, '__path__')", "(False, True)"),
        ("triton.language is tl, triton.runtime.driver.__class__.__name__", "(True, '_Driver')"),
    ],
)
def test_triton_can_be_imported_and_kernels_defined(expression: str, value: str) -> None:
    assert run(f"{TRITON}\nprint(({expression}))") == value


@pytest.mark.parametrize("launch", ["plain[(1,)](1, 2)", "with_options[lambda meta: (1,)](1)", "plain(1, n=2)"])
def test_a_triton_kernel_that_is_launched_says_so(launch: str) -> None:
    code = f"{TRITON}\ntry:\n    {launch}\nexcept NotImplementedError as error:\n    print(error)"
    name = "with_options" if "options" in launch else "plain"
    assert run(code) == f"Triton kernel {name} launched; the cpu profile has no Triton"


def test_triton_has_no_device() -> None:
    code = (
        "import triton\ntry:\n    triton.runtime.driver.active.utils\nexcept RuntimeError as error:\n    print(error)"
    )
    assert run(code) == "no active Triton driver"


def test_torchvision_can_be_imported() -> None:
    code = """
import torchvision, torchvision.transforms.v2.functional as F
from torchvision.transforms import InterpolationMode
modes = {InterpolationMode.NEAREST: 0}
print(F.resize.__name__, len(modes), torchvision.__version__)
"""
    assert run(code) == "resize 1 0+perfgate"


def test_only_the_packages_own_submodules_are_pretended() -> None:
    code = "import triton\ntry:\n    import tritonish\nexcept ImportError as error:\n    print(error)"
    assert run(code) == "No module named 'tritonish'"


def test_datasets_and_ngram_speculation_are_refused_when_used() -> None:
    code = """
import datasets, sys, types
for call in (datasets.load_dataset,):
    try:
        call("x")
    except NotImplementedError as error:
        print(error)
"""
    assert run(code) == "the `datasets` package is not part of the cpu profile"
