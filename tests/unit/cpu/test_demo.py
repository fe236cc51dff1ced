from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from perfgate.cpu.changes import EDITS, Change
from perfgate.cpu.demo import make_release_repository, make_repository, release_files
from perfgate.cpu.environment import CpuEnvironment, ReleaseTree
from perfgate.errors import PerfgateError
from perfgate.source.pins import read_pins
from perfgate.store.entries import Hold

METADATA = """\
Metadata-Version: 2.4
Name: sglang
Version: {version}
Requires-Python: >=3.11
Requires-Dist: torch=={torch}
Requires-Dist: decord2; sys_platform == "linux" and platform_machine == "aarch64"
Requires-Dist: pytest; extra == "test"
Provides-Extra: test

Text that is no header: and looks like one
"""


def wheel(where: Path, version: str = "0.5.23", torch: str = "2.14.1") -> Path:
    """An unpacked wheel, with the places that the changes are made in."""
    info = where / f"sglang-{version}.dist-info"
    (info / "licenses").mkdir(parents=True)
    (info / "METADATA").write_text(METADATA.format(version=version, torch=torch))
    (info / "licenses" / "LICENSE").write_text("Apache\n")
    files = {"sglang/__init__.py": f"__version__ = {version!r}\n", "sglang/a b.txt": "\n\n", "sglang/empty.py": ""}
    for edit in EDITS.values():
        files[edit.path] = files.get(edit.path, "")
        if edit.anchor not in files[edit.path]:
            files[edit.path] += f"def place():\n{edit.anchor}"
    files |= {"sglang/srt/fast.cpython-311-x86_64-linux-gnu.so": "\x7fELF", "sglang/__pycache__/x.pyc": "bytecode"}
    for name, text in files.items():
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_text(text)
    return where


def environment(tree: Path) -> CpuEnvironment:
    return CpuEnvironment(
        key="k",
        path=tree.parent,
        python=Path("python"),
        site=Path("site"),
        model_dir=Path("model"),
        wheel_tree=tree,
        versions={"sglang": "0.5.23"},
        cached=True,
        hold=Hold(tree, True, -1),
    )


def git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("change", list(Change))
def test_base_is_the_wheel_and_head_one_file_away(change: Change, tmp_path: Path) -> None:
    made = make_repository(environment(wheel(tmp_path / "wheel")), change, tmp_path / "repo")
    assert git(made.path, "rev-parse", made.base_ref, made.head_ref).split() == [made.base_sha, made.head_sha]
    assert git(made.path, "merge-base", "main", made.head_sha) == made.base_sha
    assert git(made.path, "diff", "--name-only", made.base_sha, made.head_sha) == f"python/{EDITS[change].path}"
    assert git(made.path, "log", "-1", "--format=%s", made.head_sha) == EDITS[change].subject
    assert git(made.path, "status", "--porcelain") == ""
    assert EDITS[change].replacement in (made.path / "python" / EDITS[change].path).read_text()


def test_the_layout_is_upstreams_without_compiled_files(tmp_path: Path) -> None:
    files = release_files(wheel(tmp_path))
    others = {f"python/{edit.path}" for edit in EDITS.values()}
    names = {"LICENSE", "python/pyproject.toml"}
    names |= {"python/sglang/__init__.py", "python/sglang/a b.txt", "python/sglang/empty.py"}
    assert set(files) == names | others


def test_the_pins_are_the_wheels(tmp_path: Path) -> None:
    pyproject = release_files(wheel(tmp_path))["python/pyproject.toml"]
    assert tomllib.loads(pyproject.decode())["project"]["version"] == "0.5.23"
    pins = read_pins(pyproject)
    assert "torch==2.14.1" in pins.requirements
    assert any(text.startswith("decord2") for text in pins.requirements)
    assert pins.requires_python == ">=3.11"


def test_commits_depend_on_nothing_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = make_repository(environment(wheel(tmp_path / "wheel")), Change.VERIFY, tmp_path / "one")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-checkout").write_text("#!/bin/sh\ntouch ran\n")
    (hooks / "post-checkout").chmod(0o755)
    config = tmp_path / "gitconfig"
    config.write_text(f"[user]\nname = me\n[commit]\ngpgsign = true\n[core]\nhooksPath = {hooks}\nautocrlf = true\n")
    for name, value in {
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_AUTHOR_NAME": "me",
        "GIT_COMMITTER_DATE": "2001-01-01",
        "GIT_DIR": str(tmp_path / "elsewhere"),
        "TZ": "Asia/Tokyo",
    }.items():
        monkeypatch.setenv(name, value)
    two = make_repository(environment(wheel(tmp_path / "wheel2")), Change.VERIFY, tmp_path / "two")
    assert (two.base_sha, two.head_sha) == (one.base_sha, one.head_sha)
    assert not list(tmp_path.rglob("ran"))


def test_the_same_repository_is_found_again(tmp_path: Path) -> None:
    cpu = environment(wheel(tmp_path / "wheel"))
    made = make_repository(cpu, Change.NONE, tmp_path / "repo")
    before = (tmp_path / "repo" / "python").stat().st_ino
    assert make_repository(cpu, Change.NONE, tmp_path / "repo") == made
    assert (tmp_path / "repo" / "python").stat().st_ino == before


@pytest.mark.parametrize("what", ["another change", "a moved branch", "a stranger's folder", "a file"])
def test_what_is_not_the_same_repository_is_left_alone(what: str, tmp_path: Path) -> None:
    cpu, where = environment(wheel(tmp_path / "wheel")), tmp_path / "repo"
    change = Change.VERIFY if what == "another change" else Change.NONE
    if what == "a file":
        where.write_text("mine")
    elif what == "a stranger's folder":
        where.mkdir()
        (where / "mine").write_text("mine")
    else:
        make_repository(cpu, Change.NONE, where)
    if what == "a moved branch":
        git(where, "branch", "--force", "main", "demo-none")
    with pytest.raises(PerfgateError, match=r"repo: holds something else → name a new folder"):
        make_repository(cpu, change, where)
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".making")] == []
    assert where.exists()


def test_two_releases_become_base_and_head(tmp_path: Path) -> None:
    old, new = wheel(tmp_path / "old", "0.5.22", torch="2.13.0"), wheel(tmp_path / "new")
    (old / "sglang" / "gone.py").write_text("old\n")
    trees = [ReleaseTree(version, tree, Hold(tree, True, -1)) for version, tree in (("0.5.22", old), ("0.5.23", new))]
    made = make_release_repository(*trees, tmp_path / "repo")
    changed = git(made.path, "diff", "--name-status", made.base_sha, made.head_sha).splitlines()
    assert changed == ["M\tpython/pyproject.toml", "M\tpython/sglang/__init__.py", "D\tpython/sglang/gone.py"]
    single = make_repository(environment(new), Change.NONE, tmp_path / "single")
    tree = git(single.path, "rev-parse", f"{single.base_sha}^{{tree}}")
    assert git(made.path, "rev-parse", f"{made.head_sha}^{{tree}}") == tree


def test_what_is_no_unpacked_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PerfgateError, match="not an unpacked wheel of sglang"):
        release_files(tmp_path)
    (wheel(tmp_path / "wheel") / EDITS[Change.VERIFY].path).unlink()
    with pytest.raises(PerfgateError, match=r"SGLang 0\.5\.23 has no sglang/srt/speculative"):
        make_repository(environment(tmp_path / "wheel"), Change.VERIFY, tmp_path / "repo")
