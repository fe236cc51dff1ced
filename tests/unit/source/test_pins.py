from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import PerfgateError
from perfgate.source.pins import PinChange, Pins, pin_changes, read_pins

NEW = b"""
[project]
name = "sglang"
dynamic = ["version"]
requires-python = ">=3.10"
dependencies = ["torch==2.9.1", "sgl-kernel==0.3.21", "flashinfer_python[cu13]==0.6.1 ; sys_platform == 'linux'"]
[project.optional-dependencies]
test = ["pytest"]
"""
OLD = b"""
[project]
name = "sglang"
dependencies = ["aiohttp", "requests"]
[project.optional-dependencies]
runtime_common = ["numpy", "transformers==4.55.2"]
srt = ["sglang[runtime_common]", "torch==2.8.0"]
all = ["sglang[srt]", "sglang[all]"]
"""


def test_dependencies_are_normalised_and_sorted() -> None:
    pins = read_pins(NEW)
    assert pins.requirements == (
        'flashinfer_python[cu13]==0.6.1; sys_platform == "linux"',
        "sgl-kernel==0.3.21",
        "torch==2.9.1",
    )
    assert pins.requires_python == ">=3.10"


def test_old_releases_keep_the_servers_dependencies_in_an_extra() -> None:
    assert read_pins(OLD).requirements == ("aiohttp", "numpy", "requests", "torch==2.8.0", "transformers==4.55.2")


def test_an_extra_that_names_itself_ends() -> None:
    extras = b'[project.optional-dependencies]\nsrt=["sglang[srt,b]","x"]\nb=["sglang[srt,b]","y"]\n'
    body = b'[project]\nname="sglang"\n' + extras
    assert read_pins(body).requirements == ("x", "y")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\xff", "not TOML"),
        (b"[project", "not TOML"),
        (b"a = " + b"[" * 100_000, "not TOML"),
        (b"", "no [project]"),
        (b"project = 1", "no [project]"),
        (b'[project]\ndynamic=["dependencies"]', "dynamic"),
        (b"[project]\ndependencies=1", "no list"),
        (b"[project]\ndependencies=[1]", "no list"),
        (b'[project]\noptional-dependencies=["a"]', "no table"),
        (b'[project]\ndependencies=["-r /etc/passwd"]', "not a requirement"),
        (b'[project]\ndependencies=["a\\n--index-url http://x"]', "not a requirement"),
        (b"[project]\ndependencies=[\"a; os_name == 'x\\\\n--index-url http://x'\"]", "not a requirement"),
        (b'[project]\ndependencies=["a @ file:///etc/passwd"]', "only be had"),
        (b'[project]\ndependencies=["a @ git+ssh://host/x"]', "only be had"),
        (b'[project]\ndependencies=["a @ ../x"]', "only be had"),
        (b"#" * (2**20 + 1), "too many"),
        (b"[project]\ndependencies=[" + b",".join(b'"p%d"' % n for n in range(1001)) + b"]", "more than"),
    ],
)
def test_hostile_files_are_refused_in_one_line(body: bytes, says: str) -> None:
    with pytest.raises(PerfgateError) as error:
        read_pins(body)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@given(st.binary(max_size=200))
def test_any_bytes_give_pins_or_a_clear_error(body: bytes) -> None:
    said = ""
    try:
        read_pins(body)
    except PerfgateError as error:
        said = str(error)
    assert "\n" not in said


@given(st.lists(st.text(max_size=30), max_size=5))
def test_any_texts_give_safe_lines_or_a_clear_error(texts: list[str]) -> None:
    listed = ", ".join('"' + "".join(f"\\U{ord(char):08X}" for char in text) + '"' for text in texts)
    try:
        pins = read_pins(f"[project]\ndependencies = [{listed}]".encode())
    except PerfgateError:
        return
    for line in pins.requirements:
        assert line[0].isalnum()
        assert "\n" not in line


def test_changes_name_both_sides() -> None:
    base = Pins(("a==1", "b==1", "c"))
    head = Pins(("A==2", "b==1", "d>=1", 'd<3; sys_platform == "linux"'))
    assert pin_changes(base, head) == (
        PinChange("a", "a==1", "A==2"),
        PinChange("c", "c", None),
        PinChange("d", None, 'd>=1 and d<3; sys_platform == "linux"'),
    )
    assert str(pin_changes(base, head)[1]) == "c → no c"
    assert pin_changes(base, base) == ()
