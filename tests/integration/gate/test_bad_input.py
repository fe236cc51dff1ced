"""Whatever is wrong with what a user asked for: one clear line, exit code 2, and nothing left behind."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.standin.repository import git

from .harness import CONFIG, PLAIN, Case, Done, World, as_yaml, merged, on

pytestmark = pytest.mark.timeout(1200)  # waiting for its turn counts, too

Here = partial(Case, here=True)
"""Nearly all cases: what is refused is refused before anything is started."""


def check_refused(done: Done, *words: str, code: int = 2) -> None:
    assert done.code == code, done.err
    line = done.one_line()
    for word in words:
        assert word in line, line
    assert len(line) < 400
    assert done.out == ""


def refused(*arguments: str, **options: Any) -> Callable[[World], Done]:
    """A gate that must not even make a run directory."""

    def act(world: World) -> Done:
        before = runs_of(world)
        done = world.gate(*arguments, **options)
        assert runs_of(world) == before
        return done

    return act


def runs_of(world: World) -> list[Path]:
    return sorted([*world.runs(), *(world.state / "runs").glob("*")])


# ------------------------------------------------------------------------------------------ commits, repositories


@on(Case(act=refused(head="chnage")))
def test_unknown_commit(done: Done) -> None:
    check_refused(done, "'chnage'", "did you mean change?")


@on(Here(act=refused("--base", "0" * 40)))
def test_unknown_base(done: Done) -> None:
    check_refused(done, "0" * 40, "fetch")


@on(Here(act=refused(head="--output=/tmp/x")))
def test_an_option_of_gits_is_no_commit(done: Done) -> None:
    check_refused(done, "--output")


def on_a_shallow_clone(world: World) -> Done:
    git(world.repository.path, "checkout", "-q", "main")
    world.commit({"python/sglang/more.py": "MORE = 1\n"})
    git(world.root, "clone", "-q", "--depth", "1", "--no-single-branch", f"file://{world.repository.path}", "shallow")
    git(world.root / "shallow", "checkout", "-q", "change")
    return elsewhere(world, "shallow")


def elsewhere(world: World, name: str, head: str = "change") -> Done:
    """A gate on another repository of the world, which is removed afterwards."""
    place = world.root / name
    files = ("--config", world.config_file, "--box", world.box_file)
    done = world.perfgate("gate", "--repo", place, "--head", head, *files, "--out", world.root / "run")
    assert not (world.root / "run").exists()
    if place.exists():
        place.rename(world.home / "tmp" / name)  # check_nothing_left shows what is beside the files it knows
        subprocess.run(["rm", "-r", str(world.home / "tmp" / name)], check=True)
    return done


@on(Here(act=on_a_shallow_clone))
def test_a_shallow_clone_without_the_merge_base(done: Done) -> None:
    check_refused(done, "shallow", "merge base", "--unshallow")


def on_unrelated_histories(world: World) -> Done:
    git(world.repository.path, "checkout", "-q", "--orphan", "island")
    world.commit({"python/sglang/more.py": "MORE = 1\n"})
    return refused(head="island")(world)


@on(Here(act=on_unrelated_histories))
def test_unrelated_histories(done: Done) -> None:
    check_refused(done, "unrelated histories", "--base")


def on_another_project(world: World) -> Done:
    other = world.root / "other"
    other.mkdir()
    git(other, "init", "-q", "-b", "main")
    (other / "README.md").write_text("Something else.\n")
    git(other, "add", "-A")
    git(other, "commit", "-q", "-m", "Begin")
    return elsewhere(world, "other", "main")


@on(Here(act=on_another_project))
def test_not_a_tree_of_sglang(done: Done) -> None:
    check_refused(done, "no SGLang tree", "python/sglang")


@on(Here(act=lambda world: elsewhere(world, "nowhere")))
def test_a_repository_that_is_not_there(done: Done) -> None:
    check_refused(done, "nowhere", "no such folder", "--repo")


def on_a_plain_folder(world: World) -> Done:
    (world.root / "plain").mkdir()
    return elsewhere(world, "plain")


@on(Here(act=on_a_plain_folder))
def test_a_folder_that_is_no_repository(done: Done) -> None:
    check_refused(done, "plain", "not a git repository")


# ------------------------------------------------------------------------------------------ the box, options


@on(Here(act=lambda world: world.gate(*PLAIN), box={"models": {"m": "/nonexistent/model"}}))
def test_a_model_that_is_not_there(done: Done) -> None:
    """The box's fault, found by the doctor: a verdict, since others have to know why nothing was measured."""
    assert (done.code, done.verdict) == (4, "environment")
    assert "/nonexistent/model" in done.result["reason"] or "no config.json" in done.result["reason"]
    assert "mend that folder, or name another one" in done.result["reason"]
    assert done.launches() == []


@on(Here(act=refused("--recipes", "baselin")))
def test_an_unknown_recipe(done: Done) -> None:
    check_refused(done, "'baselin'", "baseline", "eagle3")


def with_missing_file(name: str) -> Callable[[World], Done]:
    def act(world: World) -> Done:
        return refused(name, world.root / "missing.yml")(world)  # type: ignore[arg-type]

    return act


@on(Here(act=with_missing_file("--config")))
def test_a_configuration_that_is_not_there(done: Done) -> None:
    check_refused(done, "missing.yml", "no such file", "perfgate config --example")


@on(Here(act=with_missing_file("--box")))
def test_a_box_file_that_is_not_there(done: Done) -> None:
    check_refused(done, "missing.yml", "no such file", "perfgate init --box")


@on(Here(act=refused(), box={"state_dir": "/proc/perfgate"}))
def test_a_state_directory_that_cannot_be_made(done: Done) -> None:
    check_refused(done, "/proc/perfgate", "state_dir")


@on(Here(act=lambda world: world.perfgate(*world.arguments("--out", "/proc/run", out=None))))
def test_an_output_folder_that_cannot_be_made(done: Done) -> None:
    check_refused(done, "/proc/run")


def output_is_a_file(world: World) -> Done:
    (world.home / "tmp").mkdir(parents=True)
    (world.home / "tmp" / "file").write_text("mine")
    done = world.perfgate(*world.arguments("--out", world.home / "tmp" / "file", out=None))
    assert (world.home / "tmp" / "file").read_text() == "mine"
    (world.home / "tmp" / "file").unlink()
    return done


@on(Here(act=output_is_a_file))
def test_an_output_folder_that_is_a_file(done: Done) -> None:
    check_refused(done, "tmp/file")


@on(Case(act=lambda world: world.gate("--max-pairs", "0")))
def test_no_pairs_at_all(done: Done) -> None:
    assert done.code == 2
    assert "--max-pairs" in done.err
    assert "Traceback" not in done.err


@on(Here(act=lambda world: world.perfgate("gate", "--repo", world.repository.path)))
def test_no_head(done: Done) -> None:
    assert done.code == 2
    assert "--head" in done.err


# ------------------------------------------------------------------------------------------ runs that are there


def in_order(world: World) -> list[Done]:
    """One finished run of a diff of documents, then everything that must not be done with it."""
    head = world.commit({"docs/index.md": "Better words.\n"})
    ask = ("--base", head + "~1")
    done = [world.gate(*ask, head=head)]
    facts = (world.root / "run" / "facts.jsonl").read_bytes()
    done.append(world.gate(*ask, head=head))  # holds a run already
    done.append(world.gate("--resume", head="change"))  # main..head, other commits
    world.write_config(errors={"alpha": 0.02})
    done.append(world.gate(*ask, "--resume", head=head))
    world.write_config()
    assert (world.root / "run" / "facts.jsonl").read_bytes() == facts
    broken = world.root / "run" / "facts.jsonl"
    broken.write_bytes(facts.replace(b'"seed":', b'"seed":"x', 1))
    done.append(world.gate(*ask, "--resume", head=head))
    done.append(world.perfgate("judge", world.root / "run"))
    broken.write_bytes(facts.replace(b'{"v":1', b'{"v":2', 1))
    done.append(world.perfgate("judge", world.root / "run"))
    broken.unlink()
    done.append(world.perfgate("judge", world.root / "run"))
    done.append(world.perfgate("report", world.root / "nothing"))
    remove(world.root / "run")
    return done


def remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def nothing_to_resume(world: World) -> Done:
    """Whoever repeats a command with --resume, as a runner does, need not know how far it came before."""
    head = world.commit({"docs/index.md": "Better words.\n"})
    return world.gate("--base", head + "~1", "--resume", head=head)


@on(Here(act=nothing_to_resume))
def test_nothing_to_resume_is_begun_anew(done: Done) -> None:
    assert (done.code, done.verdict) == (0, "skipped")
    assert "nothing to resume" in done.err


RUNS = Case(act=in_order)


@on(RUNS)
def test_what_must_not_be_done_with_a_run(done: list[Done]) -> None:
    first, again, others, changed, torn, judged, newer, gone, nothing = done
    assert first.code == 0
    check_refused(again, "holds a run already", "--resume")
    check_refused(others, "the run here is of", "--base and --head")
    check_refused(changed, "the configuration has changed since")
    check_refused(torn, "facts.jsonl:1", "altered")
    check_refused(judged, "facts.jsonl:1", "altered")
    check_refused(newer, "facts version 2", "newer perfgate")
    check_refused(gone, "no facts.jsonl here")
    check_refused(nothing, "no result.json here", "perfgate judge")


# ------------------------------------------------------------------------------------------ configuration

WRONG: Sequence[tuple[str, str, Sequence[str]]] = (
    ("unknown key", "limits: {max_pairz: 3}", ("limits.max_pairz", "did you mean max_pairs?")),
    ("unknown recipe to extend", "recipes: {mine: {extends: basline}}", ("recipes.mine.extends", "baseline")),
    ("type", "limits: {max_pairs: many}", ("limits.max_pairs", "whole number")),
    ("range", "limits: {max_pairs: 99}", ("limits.max_pairs", "at most 24")),
    ("circle", "recipes: {a: {extends: b}, b: {extends: a}}", ("circle",)),
    ("flag of ours", "recipes: {baseline: {flags: {port: 30000}}}", ("flags.port", "perfgate sets it")),
    ("secret", "recipes: {baseline: {env: {HF_TOKEN: hf_abcdefghijklmnop}}}", ("HF_TOKEN",)),
    (
        "nothing gated",
        "metrics: {tok_s: {gated: false}, decode_ms: {gated: false}, verify_ms: {gated: false}}",
        ("no metric",),
    ),
    ("nothing could fail", "limits: {max_pairs: 1, min_pairs_to_fail: 2}", ("min_pairs_to_fail",)),
    ("no model", "recipes: {eagle3: {enabled: false}}", ("recipes.baseline", "has no model")),
    ("version", "version: 2", ("version",)),
    ("not YAML", "recipes: [a, }", ("not YAML",)),
    ("key twice", "limits: {max_pairs: 3, max_pairs: 4}", ("max_pairs",)),
)


def checked(text: str) -> Callable[[World], tuple[Done, Done]]:
    """By `config --check` and by a gate."""

    def act(world: World) -> tuple[Done, Done]:
        world.config_file.write_text(text + "\n")
        return world.perfgate("config", "--check", world.config_file), refused()(world)

    return act


CONFIGURATIONS = [Here(act=checked(text)) for _, text, _ in WRONG]


@pytest.mark.parametrize(
    ("done", "words"),
    [(case, words) for case, (_, _, words) in zip(CONFIGURATIONS, WRONG, strict=True)],
    indirect=["done"],
    ids=[name.replace(" ", "-") for name, _, _ in WRONG],
)
def test_a_wrong_configuration(done: tuple[Done, Done], words: Sequence[str]) -> None:
    for one in done:
        check_refused(one, "perfgate.yml:1", *words)


def wrong_box(world: World) -> Done:
    world.box_file.write_text(as_yaml({"name": "test-box", "stat_dir": "/tmp"}))
    return refused()(world)


@on(Here(act=wrong_box))
def test_a_wrong_box_file(done: Done) -> None:
    check_refused(done, "box.yml", "stat_dir", "did you mean state_dir?")


def wrong_on_head(world: World) -> tuple[Done, Done]:
    """perfgate.yml of the base branch holds, whatever head's says; a wrong one there is named with its commit."""
    git(world.repository.path, "checkout", "-q", "main")
    good = merged(CONFIG, {"limits": {"max_pairs": 4}})
    base = world.commit({".github/perfgate.yml": as_yaml(good)})
    head = world.commit({".github/perfgate.yml": "limits: {max_pairz: 3}\n", "docs/index.md": "Words.\n"})
    files = ("--box", world.box_file, "--repo", world.repository.path)
    ask = ("gate", *files, "--base", base, "--head", head)
    fine = world.perfgate(*ask, "--base-branch", base, "--out", world.root / "run")
    wrong = world.perfgate(*ask, "--base-branch", head, "--out", world.root / "other")
    assert not (world.root / "other").exists()
    return replace(fine, run=world.root / "run"), wrong


@on(Here(act=wrong_on_head))
def test_the_configuration_of_the_base_branch_holds(done: tuple[Done, Done]) -> None:
    fine, wrong = done
    assert (fine.code, fine.verdict, fine.result["limits"]["max_pairs"]) == (0, "skipped", 4)
    check_refused(wrong, ".github/perfgate.yml:1", "limits.max_pairz")
