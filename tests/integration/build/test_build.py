"""Environments made by the real uv, from a small index of our own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perfgate.build import BuiltSide, make
from perfgate.build.environment import Builder
from perfgate.build.failures import BuildFailed
from perfgate.build.steps import BuildStep, Runner
from perfgate.errors import Exit
from perfgate.host.sandbox import Confinement
from perfgate.records import Blame, Side
from perfgate.source.repository import Repository
from perfgate.store.entries import companion
from perfgate.store.folders import GB, Store
from perfgate.store.strangers import take_tree
from tests.integration.build.lab import PYTHON, Lab, make_sdist, make_wheel, pyproject, run_python
from tests.standin.repository import commit_change

VERSIONS = "import tiny, other, sglang; print(tiny.VERSION, other.VERSION, sglang.__file__)"


def _build(builder: Builder, side: Side, ref: str, like: BuiltSide | None = None) -> BuiltSide:
    commit = builder.repository.resolve(ref)
    return builder.build(side, commit, log=builder.store.root / f"{side}.log", like=like)


def _failure(builder: Builder, ref: str, side: Side = Side.HEAD) -> BuildFailed:
    with pytest.raises(BuildFailed) as error:
        _build(builder, side, ref)
    assert "\n" not in str(error.value)
    assert error.value.exit_code is Exit.CANNOT
    return error.value


def _left_of_environments(store: Store) -> list[str]:
    return sorted(path.name for path in store.folder("environments").iterdir() if not path.name.endswith(".lock"))


# ------------------------------------------------------------------------------------------------ what is made


def test_two_commits_with_the_same_pins_share_an_environment(lab: Lab, confinement: Confinement) -> None:
    base = lab.commit("tiny==1.0", "other")
    head = commit_change(lab.source, {"python/sglang/new.py": "x = 1\n"})
    with lab.store() as store:
        builder = lab.builder(store, confinement=confinement)
        first = _build(builder, Side.BASE, base)
        second = _build(builder, Side.HEAD, head, first)
        assert second.key == first.key
        assert second.tree != first.tree
        assert not first.cached
        assert run_python(first.python, first.path_entries, VERSIONS).startswith("1.0 1.0 " + str(first.tree))
        assert run_python(second.python, second.path_entries, "import sglang.new as n; print(n.x)") == "1"
        assert first.versions["python"].startswith(PYTHON)
        with pytest.raises(AssertionError, match="No module"):
            run_python(first.python, first.path_entries, "import sglang.new")
    with lab.store() as store:
        again = _build(lab.builder(store, confinement=confinement), Side.BASE, base)
        assert again.cached
        assert (again.key, again.python, again.tree, again.versions) == (
            *(first.key, first.python, first.tree),
            first.versions,
        )


def test_all_that_was_made_is_read_only_and_compiled(lab: Lab, store: Store) -> None:
    built = _build(lab.builder(store), Side.BASE, lab.commit("tiny"))
    for root in (built.python.parent.parent, built.tree):
        for folder, folders, files in os.walk(root):
            for name in (*folders, *files):
                path = Path(folder) / name
                assert path.is_symlink() or not path.stat().st_mode & 0o222
    code = "import sglang.version as v, tiny; print(v.__cached__, tiny.__cached__)"
    for cached in run_python(built.python, built.path_entries, code).split():
        assert Path(cached).exists()


def test_what_no_pin_of_the_pr_changes_stays_as_base_has_it(lab: Lab, store: Store) -> None:
    builder = lab.builder(store)
    base = _build(builder, Side.BASE, lab.commit("tiny==1.0", "other"))
    make_wheel(lab.index, "other", "9.0")  # released between the two builds
    head = _build(builder, Side.HEAD, lab.commit("tiny==2.0", "other"), base)
    assert head.key != base.key
    assert run_python(base.python, base.path_entries, VERSIONS).startswith("1.0 1.0")
    assert run_python(head.python, head.path_entries, VERSIONS).startswith("2.0 1.0")
    alone = _build(builder, Side.HEAD, "HEAD")
    assert run_python(alone.python, alone.path_entries, VERSIONS).startswith("2.0 9.0")
    assert alone.versions["resolution"] != head.versions["resolution"]


def test_an_evicted_environment_returns_with_the_same_versions(lab: Lab) -> None:
    sha = lab.commit("tiny", "other")
    with lab.store() as store:
        before = _build(lab.builder(store), Side.BASE, sha)
    make_wheel(lab.index, "tiny", "3.0")
    with lab.store(max_gb=1e-9) as store:
        store.evict()
        assert not before.python.exists()
        after = _build(lab.builder(store), Side.BASE, sha)
    assert (after.key, after.versions) == (before.key, before.versions)
    assert run_python(after.python, after.path_entries, VERSIONS).startswith("2.0 1.0")


def test_extra_requirements_and_the_nccl_pin_come_last(lab: Lab, store: Store) -> None:
    make_wheel(lab.index, "nvidia_nccl_cu13", "2.27.5")
    make_wheel(lab.index, "nvidia_nccl_cu13", "2.30.7")
    make_wheel(lab.index, "torch", "1.0", requires=("nvidia-nccl-cu13==2.27.5",))
    sha = lab.commit("torch")
    rules = {"nccl": "nvidia-nccl-cu13==2.30.7", "extra": ["tiny==1.0"]}
    with_pin = _build(lab.builder(store, rules), Side.BASE, sha)
    without = _build(lab.builder(store), Side.BASE, sha)
    assert with_pin.versions["nvidia-nccl-cu13"] == "2.30.7"
    assert without.versions["nvidia-nccl-cu13"] == "2.27.5"
    assert with_pin.versions["torch"] == "1.0"
    code = "import tiny; print(tiny.VERSION)"
    assert run_python(with_pin.python, with_pin.path_entries, code) == "1.0"


def test_a_dependency_that_brings_sglang_along_does_not(lab: Lab, store: Store) -> None:
    make_wheel(lab.index, "sglang", "0.5.0")
    make_wheel(lab.index, "servicer", "1.0", requires=("sglang",))
    built = _build(lab.builder(store), Side.BASE, lab.commit("servicer"))
    assert "sglang" not in built.versions


def test_wheels_of_the_box_come_before_the_index(lab: Lab, store: Store, tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "tiny", "1.5")
    lab.box["wheels"] = [str(tmp_path / "wheels")]
    (lab.index / "tiny-2.0-py3-none-any.whl").unlink()
    built = _build(lab.builder(store), Side.BASE, lab.commit("tiny", "other"))
    assert run_python(built.python, built.path_entries, VERSIONS).startswith("1.5")


def test_no_dependencies_at_all(lab: Lab, store: Store) -> None:
    assert _build(lab.builder(store), Side.BASE, lab.commit()).python.exists()


# ----------------------------------------------------------------------------------------------- strangers' code


def test_a_package_without_a_wheel_is_built_confined(lab: Lab, store: Store, confined: Confinement) -> None:
    traces = [lab.root / "trace", lab.root / "state" / "trace", lab.root / "state" / "caches" / "uv" / "trace"]
    hook = "; ".join(f"leave_trace({str(trace)!r})" for trace in traces)
    make_sdist(lab.index, "needs_building", "1.0", hook=hook)
    sha = lab.commit("needs_building", "tiny==1.0")
    built = _build(lab.builder(store, confinement=confined), Side.HEAD, sha)
    code = "import needs_building, tiny; print(needs_building.VERSION, tiny.VERSION)"
    assert run_python(built.python, built.path_entries, code) == "1.0 1.0"
    assert not any(trace.exists() for trace in traces)
    assert built.python.parent.stat().st_uid == os.geteuid()


def test_what_is_built_from_source_is_built_once_and_not_kept_thrice(
    lab: Lab, store: Store, confinement: Confinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stranger's package cache serves both of his steps, and what is installed from it shares its bytes."""
    links: dict[str, int] = {}

    def look(source: Path, into: Path, **how: Any) -> None:
        links.update({path.name: path.stat().st_nlink for path in source.rglob("*.py")})
        assert len([*(source.parent / "cache").rglob("counted-*")]) == 1
        take_tree(source, into, **how)

    monkeypatch.setattr(make, "take_tree", look)
    count = "import tempfile; tempfile.mkstemp(prefix='counted-', dir=os.environ['UV_CACHE_DIR'])"
    make_sdist(lab.index, "needs_building", "1.0", hook=count)
    built = _build(lab.builder(store, confinement=confinement), Side.HEAD, lab.commit("needs_building", "tiny==1.0"))
    assert links == {"__init__.py": 2}  # tiny has a wheel: it came from the package cache of all environments
    site = built.python.parent.parent / "lib" / f"python{PYTHON}" / "site-packages"
    assert {path.stat().st_nlink for path in site.rglob("*.py")} == {1}


def test_what_has_a_wheel_is_not_downloaded_again_because_of_what_has_none(lab: Lab, store: Store) -> None:
    """As with cuda-tile, of which there is a stub alone, beside five gigabytes of wheels."""
    for name in ("stub_one", "stub_two"):
        make_sdist(lab.index, name, "1.0")
    built = _build(lab.builder(store), Side.BASE, lab.commit("stub_one", "stub_two", "tiny==1.0"))
    code = "import stub_one, stub_two, tiny; print(stub_one.VERSION, stub_two.VERSION, tiny.VERSION)"
    assert run_python(built.python, built.path_entries, code) == "1.0 1.0 1.0"
    said = built.log.read_text() if built.log else ""
    assert "# install\n" in said
    assert "# install what has no wheel\n" in said


def test_a_requirement_with_an_address_is_looked_at_by_no_trusted_step(
    lab: Lab, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look at a git requirement means to check it out, with submodules and whatever its files ask for."""
    address = "https://127.0.0.1:9/evil-1.0-py3-none-any.whl"
    trusted: list[str] = []
    confined: list[str] = []
    run = Runner.run

    def record(self: Runner, step: BuildStep) -> str:
        files = [Path(part) for part in step.argv if part.endswith((".in", ".txt"))]
        texts = [path.read_text() for path in files if path.is_file()]
        (confined if step.theirs else trusted).extend(texts)
        return run(self, step)

    monkeypatch.setattr(Runner, "run", record)
    with pytest.raises(BuildFailed):
        _build(lab.builder(store), Side.HEAD, lab.commit(f"evil @ {address}", "tiny==1.0"))
    assert any(address in text for text in confined)
    assert not any(address in text for text in trusted)


def test_an_extra_in_the_same_version_as_another_package(lab: Lab, store: Store) -> None:
    make_wheel(lab.index, "tiny_cache", "1.0+cu129")
    make_wheel(lab.index, "tiny_cache", "1.1+cu129")
    rules = {"extra": ["tiny-cache=={tiny}"]}
    for version in ("1.0", "1.1"):
        make_wheel(lab.index, "tiny", version)
        built = _build(lab.builder(store, rules), Side.BASE, lab.commit(f"tiny=={version}"))
        said = run_python(built.python, built.path_entries, "import tiny_cache; print(tiny_cache.VERSION)")
        assert said == f"{version}+cu129"
    failed = _failure(lab.builder(store, {"extra": ["tiny-cache=={other}"]}), lab.commit("tiny"))
    assert failed.failure.blame is Blame.BOX
    assert "the version of other" in failed.failure.reason


def test_links_of_a_build_from_source_stay_out_of_the_environment(
    lab: Lab, store: Store, confined: Confinement
) -> None:
    """Were `venv/lib` a link, the next step would be given where it leads, to write into."""
    runner = lab.root / "runner"
    runner.mkdir()
    (runner / "secret").write_text("secret")
    hook = (
        "import glob; [(os.rename(lib, lib + '-'), os.symlink("
        f"{str(runner)!r}, lib)) for lib in glob.glob({str(lab.root / 'state')!r} + '/environments/*/venv/lib')"
        " if os.access(os.path.dirname(lib), os.W_OK)]"
    )
    make_sdist(lab.index, "needs_building", "1.0", hook=hook)
    built = _build(lab.builder(store, confinement=confined), Side.HEAD, lab.commit("needs_building", "tiny==1.0"))
    venv = built.python.parent.parent
    assert [path.name for path in runner.rglob("*")] == ["secret"]
    assert not (venv / "lib").is_symlink()
    assert run_python(built.python, built.path_entries, "import needs_building, tiny; print('fine')") == "fine"


def test_folders_nested_without_end_are_removed(lab: Lab, store: Store, confinement: Confinement) -> None:
    hook = (
        "os.chdir(os.environ['HOME']); [(os.mkdir('d'), os.chdir('d')) for _ in range(1500)]; os.chdir(wheel_directory)"
    )
    make_sdist(lab.index, "needs_building", "1.0", hook=hook)
    built = _build(lab.builder(store, confinement=confinement), Side.HEAD, lab.commit("needs_building"))
    assert not companion(store.entry("environments", built.key), "scratch").exists()


def test_a_script_of_a_package_built_here_runs_in_the_environment(lab: Lab, store: Store) -> None:
    scripts = {"tool-1.0.data/scripts/tool": "#!python\nimport sys, needs_building; print(sys.prefix)\n"}
    make_wheel(lab.index, "tool", "1.0", scripts)
    make_sdist(lab.index, "needs_building", "1.0")
    built = _build(lab.builder(store), Side.HEAD, lab.commit("needs_building", "tool"))
    done = subprocess.run([built.python.parent / "tool"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(built.python.parent.parent)


def test_installing_runs_no_code_outside_the_confinement(lab: Lab, store: Store, confined: Confinement) -> None:
    """A `.pth` file runs whenever the environment's Python starts: here it would leave a trace on the box."""
    trace = lab.root / "trace"
    line = f"import os; os.path.isdir({str(lab.root)!r}) and open({str(trace)!r}, 'w')\n"
    make_wheel(lab.index, "evil", "1.0", {"evil.pth": f"import sys; exec({line!r})\n".replace("\\n", "")})
    built = _build(lab.builder(store, confinement=confined), Side.HEAD, lab.commit("evil"))
    assert not trace.exists()
    run_python(built.python, built.path_entries, "pass")
    assert trace.exists()  # unconfined, it does run


def test_sglang_from_anywhere_else_fails_the_side(lab: Lab, store: Store, confinement: Confinement) -> None:
    hijack = "import sys; sys.path[:0] = [x + '/fake' for x in sys.path if x.endswith('site-packages')]\n"
    make_wheel(lab.index, "hijack", "1.0", {"fake/sglang/__init__.py": "", "hijack.pth": hijack})
    failed = _failure(lab.builder(store, confinement=confinement), lab.commit("hijack"))
    assert failed.failure.blame is Blame.SIDE
    assert "fake/sglang/__init__.py, not the commit's code" in failed.failure.reason


def test_a_package_without_init_fails_the_side(lab: Lab, store: Store) -> None:
    sha = lab.commit(files={"python/sglang/__init__.py": None})
    failed = _failure(lab.builder(store), sha)
    assert failed.failure.blame is Blame.SIDE
    assert "a folder without __init__.py" in failed.failure.reason


def test_an_environment_that_answers_nonsense_fails_the_side(lab: Lab, store: Store) -> None:
    make_wheel(lab.index, "mute", "1.0", {"mute.pth": "import os; os._exit(0)\n"})
    failed = _failure(lab.builder(store), lab.commit("mute"))
    assert failed.failure.blame is Blame.SIDE
    assert "does not say where sglang comes from" in failed.failure.reason


# ------------------------------------------------------------------------------------------------------- failures


def test_pins_that_contradict_each_other_are_the_sides(lab: Lab, store: Store) -> None:
    make_wheel(lab.index, "picky", "1.0", requires=("tiny<2",))
    failed = _failure(lab.builder(store), lab.commit("picky", "tiny==2.0"))
    assert failed.failure.blame is Blame.SIDE
    assert "picky" in failed.failure.reason
    assert failed.failure.lines
    assert failed.key
    assert failed.log is not None
    assert "No solution found" in failed.log.read_text()
    assert _left_of_environments(store) == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("not toml [", "not TOML"),
        ("[project]\nname='sglang'\ndependencies=['-r /etc/passwd']\n", "not a requirement"),
        ("[project]\nname='sglang'\ndependencies=['x @ file:///etc/passwd']\n", "only be had"),
        ("[project]\nname='sglang'\ndependencies=[\"x; os_name == 'x\\\\n-e /x'\"]\n", "not a requirement"),
        ("[project]\nname='sglang'\nrequires-python='<3'\ndependencies=[]\n", "asks for Python <3"),
        ("[project]\nname='sglang'\nrequires-python='rubbish'\ndependencies=[]\n", "makes no sense"),
    ],
)
def test_a_pyproject_that_cannot_be_used_is_the_sides(lab: Lab, store: Store, body: str, says: str) -> None:
    sha = commit_change(lab.source, {"python/pyproject.toml": body})
    failed = _failure(lab.builder(store), sha)
    assert failed.failure.blame is Blame.SIDE
    assert says in str(failed)
    assert _left_of_environments(store) == []


def test_a_requirement_of_perfgate_yml_that_is_none_is_not_the_sides(lab: Lab, store: Store) -> None:
    for rules in ({"extra": ["-r /etc/passwd"]}, {"nccl": "nccl ==== 2"}):
        failed = _failure(lab.builder(store, rules), "HEAD")
        assert failed.failure.blame is Blame.BOX
        assert "perfgate.yml" in str(failed)


def test_a_wheel_that_uv_calls_invalid_is_the_sides(lab: Lab, store: Store) -> None:
    wheel = make_wheel(lab.index, "odd", "1.0")
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content.replace(b"Wheel-Version: 1.0", b"Wheel-Version: 9.0"))
    failed = _failure(lab.builder(store), lab.commit("odd"))
    assert failed.failure.blame is Blame.SIDE
    assert "install: The wheel is invalid" in failed.failure.reason


def test_a_python_that_is_not_there_is_the_boxs(lab: Lab, store: Store) -> None:
    failed = _failure(lab.builder(store, {"python": "3.6"}), lab.commit("tiny"))
    assert failed.failure.blame is Blame.BOX
    assert "Python asked for is not installed" in str(failed)
    assert "build.python" in str(failed)


def test_an_index_out_of_reach_is_the_boxs(lab: Lab, store: Store) -> None:
    surroundings = {
        "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple",
        "UV_HTTP_RETRIES": "0",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    failed = _failure(lab.builder(store, surroundings=surroundings), lab.commit("tiny"))
    assert failed.failure.blame is Blame.BOX
    assert "a download failed" in str(failed)


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_full_disk_is_told_before_the_build(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    sha = lab.commit("tiny")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(100 * GB, 98 * GB, 2 * GB))
    with lab.store(min_free_gb=1) as store:
        failed = _failure(lab.builder(store, room_gb=5.0), sha)
        assert failed.failure.blame is Blame.BOX
        assert "2.0 GB free, 6.0 GB needed" in str(failed)
        assert _left_of_environments(store) == []
        assert _build(lab.builder(store, room_gb=1.0), Side.BASE, sha).python.exists()


def test_a_build_that_takes_too_long_is_ended(lab: Lab, store: Store, confinement: Confinement) -> None:
    make_sdist(lab.index, "slow", "1.0", hook="import time; time.sleep(600)")
    builder = lab.builder(store, {"minutes": 0.08}, confinement=confinement)
    failed = _failure(builder, lab.commit("slow"))
    assert failed.failure.blame is Blame.SIDE
    assert "took longer than build.minutes" in str(failed)
    assert _left_of_environments(store) == []


# ------------------------------------------------------------------------------------------------------ tampering


def _tampered(built: BuiltSide) -> Path:
    return next(built.python.parent.parent.glob("lib/python3*/site-packages/tiny.py"))


@pytest.mark.parametrize("keep_times", [False, True])
def test_an_environment_that_somebody_changed_is_made_again(lab: Lab, keep_times: bool) -> None:
    sha = lab.commit("tiny==1.0", "other")
    with lab.store() as store:
        built = _build(lab.builder(store), Side.BASE, sha)
    victim = _tampered(built)
    times, text = victim.stat(), victim.read_text()
    victim.chmod(0o644)
    victim.write_text(text.replace("1.0", "6.6"))
    if keep_times:
        os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
    victim.chmod(0o444)
    with lab.store() as store:
        again = _build(lab.builder(store), Side.BASE, sha)
        assert not again.cached
        assert run_python(again.python, again.path_entries, VERSIONS).startswith("1.0 1.0")


def test_a_tree_that_somebody_changed_is_made_again(lab: Lab) -> None:
    sha = lab.commit("tiny==1.0")
    with lab.store() as store:
        built = _build(lab.builder(store), Side.BASE, sha)
    compiled = next((built.tree / "python" / "sglang" / "__pycache__").iterdir())
    compiled.chmod(0o644)
    compiled.write_bytes(b"evil bytecode")
    with lab.store() as store:
        again = _build(lab.builder(store), Side.BASE, sha)
        assert not again.cached
        assert run_python(again.python, again.path_entries, "import sglang; print('fine')") == "fine"


def test_an_environment_whose_python_has_gone_is_made_again(lab: Lab) -> None:
    sha = lab.commit("tiny==1.0")
    with lab.store() as store:
        built = _build(lab.builder(store), Side.BASE, sha)
    # as after an upgrade of the box: the link leads nowhere, and its manifest says that it is as it was made
    from perfgate.store.manifest import Manifest

    folder = built.python.parent
    folder.chmod(0o755)
    built.python.unlink()
    built.python.symlink_to("/nonexistent/python3")
    folder.chmod(0o555)
    entry = built.python.parents[2]
    companion(entry, "files").write_bytes(Manifest.of(entry).text)
    with lab.store() as store:
        assert run_python(_build(lab.builder(store), Side.BASE, sha).python, (), "print(1)") == "1"


def test_what_a_build_returned_is_not_evicted_until_the_store_is_closed(lab: Lab) -> None:
    sha = lab.commit("tiny")
    with lab.store() as store:
        built = _build(lab.builder(store), Side.BASE, sha)
        with lab.store(max_gb=1e-9) as other:
            assert other.evict().kept_in_use >= 2
        assert built.python.exists()
        assert built.tree.exists()
    with lab.store(max_gb=1e-9) as other:
        other.evict()
    assert not built.python.exists()
    assert not built.tree.exists()


def test_the_state_holds_nothing_half_made_after_a_build(lab: Lab, store: Store) -> None:
    _build(lab.builder(store), Side.BASE, lab.commit("tiny"))
    names = [path.name for kind in ("environments", "trees") for path in store.folder(kind).iterdir()]
    assert not [name for name in names if name.endswith((".making", ".scratch"))]
    about: dict[str, Any] = json.loads(next(store.folder("environments").glob(".*.json")).read_text())
    assert about["versions"]["resolution"]
    assert not list(Repository(lab.source)._git.git_dir.glob("worktrees/*"))


def test_pyproject_text_is_what_the_lab_says() -> None:
    assert pyproject("a", "b").splitlines()[-1] == "dependencies = ['a', 'b']"
