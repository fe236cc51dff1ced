from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from perfgate.cpu import environment as cpu_environment
from perfgate.cpu.environment import LOCKS, RELEASES, SHIM, environment_key, prepare, release_tree
from perfgate.cpu.install import Installer, InstallError, locked_packages, torch_sources
from perfgate.errors import Exit, PerfgateError
from tests.unit.cpu.test_demo import environment, wheel


@pytest.fixture
def uv_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for uv that notes how it was called, and refuses what REFUSED matches."""
    log = tmp_path / "calls"
    script = tmp_path / "uv"
    script.write_text(
        f"""#!/bin/sh
echo "${{UV_FIND_LINKS:-}}|$*" >> {log}
echo "$*" | grep -qE -- "$REFUSED" || exit 0
echo 'Using Python 3.11' >&2; echo '  error: nothing here' >&2; exit 2
"""
    )
    script.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(script))
    monkeypatch.setenv("REFUSED", "never")
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    return log


def test_torch_is_taken_from_pips_folder_of_wheels_first(uv_calls: Path) -> None:
    sources = torch_sources({"PIP_FIND_LINKS": "/wheels /more"})
    assert Installer(Path("py")).torch("2.13.0", sources, print).name == "a folder of wheels"
    (call,) = uv_calls.read_text().splitlines()
    assert call.startswith("/wheels,/more|")
    assert "--no-index" in call
    assert call.endswith("torch==2.13.0")


@pytest.mark.parametrize(
    ("refused", "taken", "calls"),
    [
        ("--no-index", "PyTorch's index of CPU builds", 2),
        ("--no-index|--torch-backend", "the package index", 3),
    ],
)
def test_the_next_source_is_tried_where_one_has_nothing(
    uv_calls: Path, monkeypatch: pytest.MonkeyPatch, refused: str, taken: str, calls: int
) -> None:
    monkeypatch.setenv("REFUSED", refused)
    source = Installer(Path("py")).torch("2.13.0", torch_sources({"UV_FIND_LINKS": "/wheels"}), print)
    assert source.name.startswith(taken)
    assert len(uv_calls.read_text().splitlines()) == calls


def test_without_any_source_the_error_names_each_and_what_to_do(
    uv_calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSED", ".")
    with pytest.raises(InstallError) as raised:
        Installer(Path("py")).torch("2.13.0", torch_sources({}), print)
    text = str(raised.value)
    assert "PyTorch's index of CPU builds: error: nothing here" in text
    assert "several GB: error: nothing here" in text
    assert "→ put its wheel into a folder and name that folder in PIP_FIND_LINKS" in text
    assert "\n" not in text
    assert raised.value.exit_code is Exit.CANNOT


def test_locked_packages_are_installed_by_hash_and_nothing_is_built(uv_calls: Path, tmp_path: Path) -> None:
    Installer(Path("py")).locked(tmp_path / "x.lock", target=tmp_path / "there")
    (call,) = uv_calls.read_text().splitlines()
    for option in ("--require-hashes", "--no-deps", "--no-build", "--link-mode copy", f"--target {tmp_path}/there"):
        assert option in call


@pytest.mark.parametrize("name", ["environment", *(f"sglang-{release}" for release in RELEASES)])
def test_lock_files_pin_everything_by_hash_and_name_no_index(name: str) -> None:
    text = (LOCKS / f"{name}.lock").read_text()
    packages = locked_packages(LOCKS / f"{name}.lock")
    assert packages
    assert "torch" not in packages
    assert not re.search(r"https?:|--index|--find-links", text)
    for block in re.split(r"\n(?=[A-Za-z0-9])", text.strip()):
        assert "--hash=sha256:" in block, block


def test_the_locks_hold_what_is_asked_for() -> None:
    names = re.findall(r"^[A-Za-z][\w-]*", (LOCKS / "environment.in").read_text(), re.MULTILINE)
    packages = locked_packages(LOCKS / "environment.lock")
    assert {name.lower().replace("_", "-") for name in names} <= set(packages)
    assert all(locked_packages(LOCKS / f"sglang-{release}.lock") == {"sglang": release} for release in RELEASES)


def test_the_key_follows_locks_stand_ins_and_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = environment_key()
    assert key == environment_key()
    keys = {key}
    for name, content in {"LOCKS": "a.lock", "SHIM": "b.py", "TRAINED": "c.json"}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / content).write_text("other")
        with monkeypatch.context() as patch:
            patch.setattr(
                cpu_environment,
                "_OURS",
                tuple(folder if path == getattr(cpu_environment, name) else path for path in cpu_environment._OURS),
            )
            keys.add(environment_key())
    monkeypatch.setattr(cpu_environment, "TORCH", "9.9")
    keys.add(environment_key())
    assert len(keys) == 5


def test_bytecode_of_the_stand_ins_is_not_part_of_the_key() -> None:
    key = environment_key()
    cache = SHIM / "__pycache__"
    made = not cache.exists()
    cache.mkdir(exist_ok=True)
    (cache / "perfgate-test.pyc").write_text("x")
    try:
        assert environment_key() == key
    finally:
        (cache / "perfgate-test.pyc").unlink()
        if made:
            cache.rmdir()


def test_a_system_without_wheels_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InstallError, match="cpu profile: SGLang has no wheels for darwin → use Linux"):
        prepare(tmp_path, print)


def test_an_interpreter_that_will_do_is_used_else_uv_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu_environment._python_request()[1] == (
        sys.executable if sys.version_info[:2] in cpu_environment.SUPPORTED else "3.11"
    )
    monkeypatch.setattr(cpu_environment, "SUPPORTED", ())
    assert cpu_environment._python_request() == ("3.11", "3.11")


def test_a_release_that_is_not_pinned_is_refused(tmp_path: Path) -> None:
    cpu = environment(wheel(tmp_path / "wheel"))
    with pytest.raises(PerfgateError, match=r"no pinned release 0\.4\.9 → one of 0\.5\.22, 0\.5\.23"):
        release_tree(tmp_path, "0.4.9", cpu, print)
    assert release_tree(tmp_path, "0.5.23", cpu, print).path == cpu.wheel_tree
