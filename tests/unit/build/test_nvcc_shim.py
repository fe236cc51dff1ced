from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.build.local import write_shim
from perfgate.build.nvcc_shim import only_arch

ALL = [
    f"-gencode=arch=compute_{number},code=sm_{number}" for number in ("90", "80", "89", "100a", "120a", "103a", "90a")
]


@pytest.mark.parametrize(
    ("arch", "kept"),
    [
        ("12.0a", ["120a"]),
        ("12.0", ["120a"]),
        ("9.0", ["90", "90a"]),
        ("8.9", ["89"]),
        ("8.6", ["80"]),
        ("10.3a", ["103a"]),
        ("10.1", ["100a"]),
    ],
)
def test_only_the_boxs_architecture_is_compiled_for(arch: str, kept: list[str]) -> None:
    wanted = {f"-gencode=arch=compute_{number},code=sm_{number}" for number in kept}
    assert set(only_arch(["-O3", *ALL, "-c", "x.cu"], arch)) == {"-O3", "-c", "x.cu"} | wanted


def test_other_spellings() -> None:
    arguments = [
        "-gencode",
        "arch=compute_80,code=sm_80",
        "--generate-code",
        "arch=compute_120a,code=[sm_120a]",
        "x.cu",
    ]
    assert only_arch(arguments, "12.0a") == ["--generate-code", "arch=compute_120a,code=[sm_120a]", "x.cu"]


def test_code_for_another_gpu_alone_is_left_as_it_is() -> None:
    hopper = ["-gencode=arch=compute_90a,code=sm_90a", "flash_sm90.cu"]
    assert only_arch(hopper, "12.0a") == hopper
    assert only_arch(["-c", "x.cu", "-gencode"], "12.0a") == ["-c", "x.cu", "-gencode"]


@given(
    st.lists(st.sampled_from([*ALL, "-c", "x.cu", "-gencode", "-O3"]), max_size=12), st.sampled_from(["12.0a", "9.0"])
)
def test_nothing_but_gencode_is_ever_dropped(arguments: list[str], arch: str) -> None:
    kept = only_arch(arguments, arch)
    rest = [argument for argument in arguments if "gencode" not in argument]
    if "-gencode" not in arguments:
        assert [argument for argument in kept if "gencode" not in argument] == rest
    assert only_arch(kept, arch) == kept


def test_the_script_stands_before_the_real_nvcc(tmp_path: Path) -> None:
    real = tmp_path / "real-nvcc"
    real.write_text('#!/bin/sh\nfor a in "$@"; do echo "$a"; done\nexit 3\n')
    real.chmod(0o755)
    shim = write_shim(tmp_path / "bin", Path(sys.executable))
    assert stat.S_IMODE(shim.stat().st_mode) & 0o111
    done = subprocess.run(
        [shim, *ALL, "-c", "a b.cu"],
        env={**os.environ, "PERFGATE_NVCC": str(real), "PERFGATE_CUDA_ARCH": "12.0a"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert done.stdout.splitlines() == ["-gencode=arch=compute_120a,code=sm_120a", "-c", "a b.cu"]
