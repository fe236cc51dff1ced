"""The server's command line and environment."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from perfgate.engine.command import EnvironmentParts, child_environment, server_command

PYTHON = Path("/env/bin/python")
PARTS = EnvironmentParts(
    python=PYTHON,
    path_entries=[Path("/probe"), Path("/tree/python")],
    home={"HOME": "/home/base", "TRITON_CACHE_DIR": "/home/base/.cache/triton", "TMPDIR": "/home/base/tmp"},
)


def test_flags_keep_the_meaning_the_configuration_gives_them() -> None:
    argv = server_command(
        PYTHON,
        {
            "tp_size": 8,
            "enable-metrics": True,
            "disable-radix-cache": False,
            "dtype": None,
            "mem-fraction-static": 0.85,
            "cuda-graph-bs": ["1", "2", "4"],
        },
        model="meta/target",
        revision="a" * 40,
        port=21000,
    )
    assert argv[:3] == ("/env/bin/python", "-m", "sglang.launch_server")
    text = " ".join(argv[3:])
    assert text == (
        "--random-seed 1 --tp-size 8 --enable-metrics --mem-fraction-static 0.85 --cuda-graph-bs 1 2 4 "
        f"--model-path meta/target --revision {'a' * 40} --host 127.0.0.1 --port 21000"
    )


def test_a_model_in_a_folder_has_no_revision() -> None:
    argv = server_command(
        PYTHON, {}, model="/models/t", revision="a" * 40, draft="/models/d", draft_revision="b" * 40, port=1
    )
    assert "--revision" not in argv
    assert "--speculative-draft-model-revision" not in argv
    assert argv[argv.index("--speculative-draft-model-path") + 1] == "/models/d"


def test_a_configured_seed_stays() -> None:
    argv = server_command(PYTHON, {"random_seed": 7}, model="m/m", port=1)
    assert argv.count("--random-seed") == 1
    assert argv[argv.index("--random-seed") + 1] == "7"


def test_later_parts_of_the_environment_win_and_perfgate_has_the_last_word() -> None:
    parts = EnvironmentParts(
        python=PYTHON,
        path_entries=[],
        home={"HOME": "/home/base"},
        build={"CUDA_HOME": "/build/cuda", "A": "build"},
        recipe={"A": "recipe", "HOME": "/somewhere", "HF_HUB_OFFLINE": "0", "SPT_NOENV": "0"},
        nccl={"NCCL_PROTO": "LL"},
        hf_home=Path("/models/hf"),
        tmp=Path("/tmp"),
    )
    environment = child_environment({"CUDA_HOME": "/own/cuda", "PATH": "/bin"}, parts)
    assert environment["CUDA_HOME"] == "/build/cuda"
    assert environment["A"] == "recipe"
    assert environment["HOME"] == "/home/base"
    assert environment["HF_HUB_OFFLINE"] == environment["SPT_NOENV"] == "1"
    assert environment["NCCL_PROTO"] == "LL"
    assert environment["HF_HOME"] == "/models/hf"
    assert environment["TMPDIR"] == "/tmp"
    assert environment["PATH"] == "/env/bin:/bin"


def test_the_probe_comes_first_on_the_search_path() -> None:
    assert child_environment({}, PARTS)["PYTHONPATH"] == "/probe:/tree/python"


NAMES = st.one_of(
    st.sampled_from(
        ["GITHUB_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "NCCL_PROTO", "LD_PRELOAD", "PYTHONPATH", "RUNNER_TEMP"]
    ),
    st.from_regex(r"[A-Z_]{1,12}", fullmatch=True),
)


@given(st.dictionaries(NAMES, st.just("leaked-value")))
def test_nothing_but_the_allow_list_is_handed_on(own: dict[str, str]) -> None:
    environment = child_environment(own, PARTS)
    for name, value in environment.items():
        if "leaked-value" in value:
            assert name in {"PATH", "LANG", "TZ", "LD_LIBRARY_PATH"} or name.startswith(("LC_", "CUDA_", "NVIDIA_"))


def test_the_token_of_the_hub_is_nowhere() -> None:
    assert not any("TOKEN" in name for name in child_environment({"HF_TOKEN": "x", "PATH": "/bin"}, PARTS))
