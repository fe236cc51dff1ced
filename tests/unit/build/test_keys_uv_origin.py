from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.build.failures import Refused
from perfgate.build.keys import Inputs, build_key, key_beside, wheel_names
from perfgate.build.origin import OriginAnswer, WrongOrigin, check_origin, read_answer
from perfgate.build.uv import Uv, check_chosen, environment, find_links, laid_over, passed, requirement_lines
from perfgate.records import Blame

INPUTS = Inputs(requirements=("a==1", "b"), requires_python=">=3.10", python="3.12", platform="linux-x86_64 glibc 2.36")


@pytest.mark.parametrize(
    "change",
    [
        {"requirements": ("a==2", "b")},
        {"requires_python": ""},
        {"python": "3.11"},
        {"platform": "linux-aarch64"},
        {"extra": ("c",)},
        {"nccl": "nvidia-nccl-cu13==2.30.7"},
        {"wheels": ("torch.whl 1",)},
        {"index": ("UV_INDEX=x",)},
        {"kernel": ("sgl-kernel 1",)},
        {"rust": ("rust 1",)},
        {"arch": "12.0a"},
        {"tools": ("nvcc 13",)},
        {"like": "x"},
    ],
)
def test_whatever_decides_the_content_changes_the_key(change: dict[str, Any]) -> None:
    assert build_key(dataclasses.replace(INPUTS, **change)) != build_key(INPUTS)


def test_equal_inputs_share_an_environment_and_others_stand_beside_base() -> None:
    base = build_key(INPUTS)
    assert key_beside(dataclasses.replace(INPUTS), base) == base
    other = dataclasses.replace(INPUTS, requirements=("a==2", "b"))
    assert key_beside(other, None) == build_key(other)
    assert key_beside(other, base) not in (base, build_key(other))


def test_wheels_of_the_box(tmp_path: Path) -> None:
    (tmp_path / "b.whl").write_text("12")
    (tmp_path / "a.whl").write_text("1")
    (tmp_path / "notes.txt").write_text("")
    assert wheel_names([tmp_path]) == ("a.whl 1", "b.whl 2")


def test_tokens_and_passwords_do_not_reach_a_build() -> None:
    surroundings = {
        "HF_TOKEN": "hf_x",
        "GITHUB_TOKEN": "ghp_x",
        "ACTIONS_RUNTIME_TOKEN": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "LD_PRELOAD": "/x.so",
        "PYTHONPATH": "/x",
        "UV_INDEX_URL": "https://user:secret@index.example/simple",
        "UV_DEFAULT_INDEX": "https://token@index.example/simple",
        "UV_FIND_LINKS": "/wheels",
        "SSL_CERT_FILE": "/ca.pem",
        "HTTPS_PROXY": "http://proxy:3128",
        "NO_PROXY": "",
    }
    given_ = passed(surroundings)
    assert given_ == {"UV_FIND_LINKS": "/wheels", "SSL_CERT_FILE": "/ca.pem", "HTTPS_PROXY": "http://proxy:3128"}
    made = environment(Path("/scratch"), Path("/cache"), ["/cuda/bin"], given_)
    assert made["PATH"].startswith("/cuda/bin:")
    assert made["HOME"] == "/scratch/home"
    assert made["UV_LINK_MODE"] == "copy"
    assert "UV_FIND_LINKS" not in made  # on the command line, together with the box's own


def test_without_sources_uv_is_told_to_build_nothing() -> None:
    plain = Uv(venv=Path("/v"), links=find_links([Path("/w")], {"UV_FIND_LINKS": "https://x /y"}))
    for argv in (
        plain.resolve(Path("in"), Path("out")),
        plain.install(Path("out")),
        plain.install_tools(Path("in"), Path("c")),
    ):
        assert "--only-binary" in argv
        assert "--no-config" in argv
        links = [argv[at + 1] for at, part in enumerate(argv) if part == "--find-links"]
        assert links == ["/w", "https://x", "/y"]
    assert "--only-binary" not in dataclasses.replace(plain, sources=True).install(Path("out"))
    assert "--no-deps" in plain.install(Path("out"))


def test_what_is_laid_over_replaces_and_comes_last() -> None:
    resolution = (
        "# by uv\nNvidia-NCCL_cu13==2.27.5\nsgl-kernel==0.3.21\nsglang==0.5\n    # via x\ntorch==2.9.1 ; x == 'y'\n"
    )
    dropped = ["sglang", "sgl_kernel"]
    assert laid_over(resolution, ["nvidia-nccl-cu13==2.30.7"], dropped=dropped).splitlines() == [
        "torch==2.9.1 ; x == 'y'",
        "nvidia-nccl-cu13==2.30.7",
    ]
    assert laid_over("", []) == ""
    by_address = "x @ https://host/any%20name.whl\ny==1\n"  # not a file of ours: its name says nothing
    assert laid_over(by_address, [], dropped=["y"]) == "x @ https://host/any%20name.whl\n"


@pytest.mark.parametrize("text", ["a\n-e /x", 'a; os_name == "\r-r /x"', "a\u2028-e /x", "a @ https://x/\\"])
def test_a_requirement_is_one_line_and_no_option(text: str) -> None:
    assert requirement_lines(["a==1", "b"]) == "a==1\nb\n"
    with pytest.raises(Refused, match="not a requirement") as error:
        requirement_lines(["a==1", text])
    assert error.value.failure.blame is Blame.SIDE


@pytest.mark.parametrize(
    "line", ["-e /x", "-r /etc/passwd", "--index-url https://x", "/x.whl", "x @ file:///x", "x @ ssh://x", "((("]
)
def test_a_choice_made_by_strangers_code_holds_requirements_alone(line: str) -> None:
    asked = ("tiny", "ours @ file:///wheels/ours-1-py3-none-any.whl")
    fine = "# by uv\n\ntorch==2.9.1 ; x == 'y'\nx @ git+https://host/x@abc\nours @ file:///wheels/ours-1-py3-none-any.whl\n"
    check_chosen(fine.replace("x == 'y'", "os_name == 'y'"), asked)
    with pytest.raises(Refused) as error:
        check_chosen(f"torch==2.9.1\n{line}\n", asked)
    assert error.value.failure.blame is Blame.SIDE


def _answer(**changes: Any) -> str:
    body = {
        "origin": "/t/python/sglang/__init__.py",
        "package": True,
        "python": "3.12.1",
        "prefix": "/usr",
        "versions": {},
    }
    return "noise\nperfgate-origin:" + json.dumps({**body, **changes}) + "\nmore noise"


def test_the_answer_is_read_as_a_strangers() -> None:
    answer = read_answer(_answer(versions={"torch": "2.9.1", "evil": "1", "triton": None, "xgrammar": "\x1b[31m" * 99}))
    assert answer.versions["torch"] == "2.9.1"
    assert set(answer.versions) == {"torch", "xgrammar"}
    assert len(answer.versions["xgrammar"]) <= 80
    assert "\x1b" not in answer.versions["xgrammar"]


@pytest.mark.parametrize(
    "output",
    [
        *("", "perfgate-origin:", "perfgate-origin:[]", 'perfgate-origin:{"versions": 1}', "x"),
        *("perfgate-origin:" + "[" * 100_000, "perfgate-origin:" + '{"a":' * 100_000),
    ],
)
def test_no_answer_is_told(output: str) -> None:
    with pytest.raises(WrongOrigin, match="does not say"):
        read_answer(output)


@given(st.text(max_size=200))
def test_any_answer_is_read_or_refused(text: str) -> None:
    try:
        read_answer("perfgate-origin:" + text)
    except WrongOrigin:
        return
    read_answer(_answer(origin=text, python=text, versions={"torch": text}))


@pytest.mark.parametrize("origin", ["\ud800", "/x/\udfff", "/a\0b", 1, ["/x"]])
def test_an_origin_that_is_no_path_is_none(origin: Any, tmp_path: Path) -> None:
    answer = read_answer(_answer(origin=origin, package=False))
    with pytest.raises(WrongOrigin, match="finds nothing"):
        check_origin(answer, tmp_path)


def test_an_origin_that_leads_round_and_round_is_not_the_commits(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(WrongOrigin, match="not the commit's code"):
        check_origin(_given(tmp_path / "loop"), tmp_path)


def _given(origin: Path | None, *, package: bool = True) -> OriginAnswer:
    return OriginAnswer(origin=origin, package=package, python="3.12", prefix=Path("/usr"), versions={})


def test_sglang_must_come_from_the_tree_that_was_meant(tmp_path: Path) -> None:
    package = tmp_path / "tree" / "python" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    assert check_origin(_given(package / "__init__.py"), tmp_path / "tree") == package / "__init__.py"
    for origin, is_package, says in (
        (None, False, "finds nothing"),
        (None, True, "a folder without __init__.py"),
        (tmp_path / "site-packages" / "sglang" / "__init__.py", True, "site-packages"),
        (package / ".." / ".." / "sglang" / "__init__.py", True, "not the commit's code"),
    ):
        with pytest.raises(WrongOrigin, match=says):
            check_origin(_given(origin, package=is_package), tmp_path / "tree")


def test_a_package_that_is_a_link_out_of_the_tree_is_not_the_commits(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "__init__.py").write_text("")
    (tmp_path / "tree" / "python").mkdir(parents=True)
    (tmp_path / "tree" / "python" / "sglang").symlink_to(elsewhere)
    with pytest.raises(WrongOrigin):
        check_origin(_given(tmp_path / "tree" / "python" / "sglang" / "__init__.py"), tmp_path / "tree")
