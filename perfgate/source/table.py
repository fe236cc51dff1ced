"""Which paths of SGLang's repository matter to a CUDA server of a language model, and to which part of it.

The first group that holds a path decides. The last one holds every path: what the table does not know is measured, for
a list of what is harmless can be trusted only where it is explicit. Places are those of SGLang 0.5.8 to 0.5.23.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfgate.source.patterns import matches_any

KERNEL_PROJECTS = ("python/sglang/kernels/aot", "sgl-kernel")
"""Where the kernel package's source is, newest place first."""

KERNEL_HEADERS = ("python/sglang/kernels/jit/include", "python/sglang/jit_kernel/include")
"""Headers of the kernels compiled at run time, which those compiled ahead of time include, too."""

TREE_CORE_CRATES = ("rust/sglang-radix-tree", "rust/sglang-mem-cache", "rust/mem-cache")
"""Crates of the one extension module that a server loads unless told otherwise, newest name first."""

NOTHING, PYTHON, KERNEL, KERNEL_PYTHON, RUST = "nothing", "python", "kernel", "kernel_python", "rust"


def _in_kernels(*parts: str) -> tuple[str, ...]:
    return tuple(f"{project}/{part}" for project in KERNEL_PROJECTS for part in parts)


@dataclass(frozen=True)
class Group:
    """Paths that mean the same for a measurement, and what they are, in words."""

    kind: str
    what: str
    patterns: tuple[str, ...] = ()
    words: re.Pattern[str] | None = None  # in a name below SERVED

    def holds(self, path: str) -> bool:
        if self.words is not None and path.startswith(_SERVED) and self.words.search(path):
            return True
        return matches_any(path, self.patterns)


_SERVED = ("python/sglang/", *(f"{project}/" for project in KERNEL_PROJECTS))

_ANOTHER_MAKER = re.compile(
    r"(?<![a-z])(npu|ascend|torchair|amd|rocm\d*|hip|aiter|mori|musa|mthreads|mlx|metal|xpu|hpu|gaudi|tpu)(?![a-z])",
    re.IGNORECASE,
)
"""A folder, file or part of a name that says for whose hardware the code is."""

CPU_GROUP = Group(
    NOTHING,
    "code for CPU servers",
    (
        *("python/sglang/srt/hardware_backend/cpu/**", "python/sglang/srt/platforms/cpu.py"),
        *("python/sglang/**/*_cpu.py", "python/sglang/**/cpu_graph_runner.py", "python/sglang/**/*amx*"),
        *("python/sglang/jit_kernel/csrc/cpu/**", "python/sglang/kernels/jit/csrc/cpu/**"),
        *_in_kernels("csrc/cpu/**"),
    ),
)

GROUPS = (
    Group(NOTHING, "documentation", ("*.md", "*.mdx", "*.rst", "*.ipynb", "docs*/**", "assets/**")),
    Group(PYTHON, "Python code", ("python/sglang/test/scripted_runtime/**",)),  # the scheduler imports it
    Group(
        NOTHING,
        "tests",
        (
            *("test/**", "tests/**", "python/sglang/test/**", "python/sglang/**/tests/**", "rust/**/tests/**"),
            *_in_kernels("tests/**", "test/**", "python/sgl_kernel/testing/**", "python/sgl_kernel/test_utils.py"),
        ),
    ),
    Group(
        NOTHING,
        "benchmarks",
        (
            *("benchmark/**", "python/sglang/benchmark/**", "/python/sglang/bench_*.py", "rust/**/benches/**"),
            *("/python/sglang/auto_benchmark*.py", "python/sglang/**/benchmark/**", "/python/sglang/profiler.py"),
            *_in_kernels("benchmark/**", "benchmarks/**"),
        ),
    ),
    Group(
        NOTHING,
        "files of the repository and its CI",
        (
            *("/.*", "scripts/**", "docker/**", "examples/**", "/LICENSE", "/Makefile", "/CODEOWNERS"),
            *("python/LICENSE", "*.Dockerfile", "Dockerfile*"),
        ),
    ),
    Group(
        NOTHING,
        "other programs",
        ("3rdparty/**", "playground/**", "experimental/**", "sgl-model-gateway/**", "sgl-router/**"),
    ),
    Group(
        NOTHING,
        "tools that no server runs",
        (
            *("python/sglang/cli/**", "python/sglang/eval/**", "/python/sglang/check_env.py"),
            *("python/sglang/srt/debug_utils/comparator/**", "python/sglang/srt/debug_utils/schedule_simulator/**"),
        ),
    ),
    Group(
        NOTHING,
        "generation of images and video",
        (
            "python/sglang/multimodal_gen/**",
            *(f"python/sglang/{place}/**/diffusion/**" for place in ("kernels", "jit_kernel")),
        ),
    ),
    Group(
        NOTHING,
        "code for other hardware",
        (
            *("python/pyproject_*.toml", "python/sglang/srt/hardware_backend/mps/**"),
            *("python/sglang/**/wave_backend.py", "python/sglang/**/wave_ops/**"),
            # AMD's alone, by the project's own lists of sources
            *_in_kernels("pyproject_*.toml", "setup_*.py", "csrc/**/*quick_all_reduce*", "*.metal"),
        ),
        _ANOTHER_MAKER,
    ),
    CPU_GROUP,
    Group(
        NOTHING,
        "how the kernel package is published",
        _in_kernels(
            "*.sh",
            "scripts/**",
            "docker/**",
            "Dockerfile*",
            "Makefile",
            "LICENSE",
            "THIRDPARTYNOTICES*",
            ".*",
            "analyze_*.py",
        ),
    ),
    Group(NOTHING, "version numbers of the kernel package", _in_kernels("python/sgl_kernel/version.py")),
    Group(
        NOTHING,
        "Rust crates that are off unless asked for",
        (
            *("proto/**", "rust/sglang-server/**", "rust/sglang-grpc*/**", "rust/sglang-bench/**"),
            *("rust/sglang-mm/**", "rust/**/pyproject.toml", "rust/**/rustfmt.toml", "rust/**/.gitignore"),
        ),
    ),
    Group(KERNEL_PYTHON, "Python code of the kernel package", _in_kernels("python/sgl_kernel/**/*.py")),
    Group(KERNEL, "the kernels", tuple(f"{place}/**" for place in (*KERNEL_PROJECTS, *KERNEL_HEADERS))),
    Group(RUST, "the Rust extensions", ("rust/**", "/python/setup.py")),
    Group(PYTHON, "Python code", ("**",)),
)


def group_of(path: str, *, cpu_serves: bool = False) -> Group:
    """`cpu_serves`: the server runs on the CPU, so that its code counts, too."""
    found = (group for group in GROUPS if not (cpu_serves and group is CPU_GROUP) and group.holds(path))
    return next(found, GROUPS[-1])


JIT = ("python/sglang/jit_kernel/**", "python/sglang/kernels/jit/**", "python/sglang/srt/**/jit_kernel/**")
SPECULATIVE = ("python/sglang/srt/speculative/**", "*eagle*", "*speculative*", "spec_*", "*_spec_*")
TUNED = (
    *("*autotune*", "*flashinfer*", *JIT, *(f"{project}/**" for project in KERNEL_PROJECTS)),
    *("python/sglang/srt/layers/moe/**", "python/sglang/srt/layers/quantization/**"),
    "python/sglang/srt/model_executor/**",  # it starts the tuning and chooses its shapes
)
"""Code whose tuned choices may differ after the diff: autotune results of before must not be handed to it."""
