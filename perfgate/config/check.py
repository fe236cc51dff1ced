"""What a configuration must not say although its types are right, and what only looks like a slip.

Every check yields problems with the path of the value they are about, so that a reader can be shown file and line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from perfgate.config.model import Config, KeyPath, Recipe, Workload
from perfgate.config.yaml import Problem
from perfgate.text import listed

SAME_FLAG = {
    "model": "model-path",
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "pipeline-parallel-size": "pp-size",
    "data-parallel-size": "dp-size",
    "expert-parallel-size": "ep-size",
    "ep": "ep-size",
    "speculative-draft-model": "speculative-draft-model-path",
}
"""Other names of SGLang's server for the same flag → the one that is kept."""

OWN_FLAGS: Mapping[str, str] = {
    "model-path": "give `model` of the recipe",
    "revision": "give `revision` of the recipe",
    "speculative-draft-model-path": "give `draft` of the recipe",
    "speculative-draft-model-revision": "give `draft_revision` of the recipe",
    **dict.fromkeys(
        ("host", "port", "nccl-port", "dist-init-addr", "nnodes", "node-rank", "config"),
        "perfgate sets it for each launch",
    ),
    **dict.fromkeys(("api-key", "admin-api-key"), "perfgate's servers are private to the box and need none"),
}

OWN_VARIABLES: Mapping[str, str] = {
    **dict.fromkeys(
        ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HF_TOKEN_PATH"),
        "servers get no token: fetch models with `perfgate models fetch`",
    ),
    "HF_HOME": "give `hf_home` in the box file",
    **dict.fromkeys(("LD_PRELOAD", "LD_AUDIT"), "a library put into both sides hides what they really run with"),
    **dict.fromkeys(
        ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "XDG_CACHE_HOME", "VIRTUAL_ENV"),
        "perfgate sets it for each side",
    ),
    **dict.fromkeys(
        (
            "SGLANG_CACHE_DIR",
            "SGLANG_DG_CACHE_DIR",
            "TRITON_CACHE_DIR",
            "TORCHINDUCTOR_CACHE_DIR",
            "FLASHINFER_WORKSPACE_BASE",
            "CUDA_CACHE_PATH",
        ),
        "perfgate gives each side caches of its own",
    ),
    **dict.fromkeys(("SPT_NOENV", "HF_HUB_OFFLINE"), "perfgate sets it for both sides"),
    **dict.fromkeys(("NCCL_DEBUG_FILE", "NCCL_CONF_FILE"), "it decides what is proven of the ranks: perfgate sets it"),
}
OWN_PREFIXES: Mapping[str, str] = {
    "PYTHON": "perfgate sets Python's variables for each side",
    "PERFGATE_": "the name is perfgate's own",
    "GITHUB_": "nothing of the runner may reach a server",
    "ACTIONS_": "nothing of the runner may reach a server",
    "RUNNER_": "nothing of the runner may reach a server",
}
BOX_ONLY: Mapping[str, str] = {
    "LD_LIBRARY_PATH": "folders differ between boxes: give it in the `env` of the box file",
}
READ_FLAGS = frozenset({"speculative-algorithm", "tp-size", "pp-size", "dp-size", "device", "attention-backend"})
"""Flags that perfgate itself goes by: abbreviated, as SGLang takes them, it would not know them."""

OVERRIDDEN_NCCL = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")
SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)S?$", re.I)
SECRET_VALUE = re.compile(r"^(hf_|gh[opsur]_|github_pat_|sk-|glpat-|xox[abp]-|AKIA)[A-Za-z0-9_-]{12,}$")


@cache
def known_nccl() -> frozenset[str]:
    """Variables that some version of NCCL reads, documented or not."""
    return frozenset(files("perfgate.config").joinpath("nccl_variables.txt").read_text().split())


def flag_name(name: str) -> str:
    """The one spelling that is kept: dashes, and the first of SGLang's names for the flag."""
    dashed = name.replace("_", "-")
    return SAME_FLAG.get(dashed, dashed)


def check_layer(config: Config) -> Iterator[Problem]:
    """What is wrong with one file, whatever it is laid over."""
    for name, recipe in config.recipes.items():
        yield from check_flags(recipe.flags, ("recipes", name, "flags"))
        yield from check_variables(recipe.env, ("recipes", name, "env"), box=False)
        yield from _check_levels(recipe.workload, ("recipes", name, "workload", "concurrency"))
    yield from check_nccl(config.nccl, ("nccl",))
    for index, pattern in enumerate(config.ignore_paths):
        if not pattern.strip() or pattern.startswith(("/", "!")) or ".." in pattern.split("/"):
            yield Problem(("ignore_paths", index), "must be a pattern relative to the repository, e.g. docs/**")


def check_flags(flags: Mapping[str, Any], path: KeyPath) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for name in flags:
        kept = flag_name(name)
        if kept in first:
            yield Problem((*path, name), f"the same flag as {first[kept]}: give it once")
        first.setdefault(kept, name)
        if kept in OWN_FLAGS or kept.startswith("ssl-"):
            yield Problem(
                (*path, name), f"is not yours to set: {OWN_FLAGS.get(kept, 'servers are private to the box')}"
            )
        yield from check_abbreviation(name, {*OWN_FLAGS, *READ_FLAGS}, path)
        yield from _check_flag_value(flags[name], (*path, name))


def check_abbreviation(name: str, known: Collection[str], path: KeyPath) -> Iterator[Problem]:
    """SGLang takes the beginning of a flag's name for the flag; what is meant shall be written in full."""
    short = flag_name(name)
    meant = sorted(flag for flag in known if flag.startswith(short))
    if short in known or short in SAME_FLAG.values() or not meant:
        return
    if len(meant) == 1:
        yield Problem((*path, name), f"is short for {meant[0]}: write it in full")
    else:
        yield Problem((*path, name), f"is ambiguous: write {listed(meant, 4)} in full")


def _check_flag_value(value: Any, path: KeyPath) -> Iterator[Problem]:
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and (not text.strip() or re.search(r"[\x00-\x1f\x7f]", text)):
            yield Problem(path, "must be text without control characters, and not empty")
            return


def check_variables(variables: Mapping[str, str], path: KeyPath, *, box: bool) -> Iterator[Problem]:
    for name, value in variables.items():
        reason = _why_not(name, value, box)
        if reason:
            yield Problem((*path, name), f"is not allowed: {reason}")


def _why_not(name: str, value: str, box: bool) -> str | None:
    if name.startswith("NCCL_") and name not in OWN_VARIABLES:
        return "NCCL's variables stand under `nccl`, for every rank"
    if name in OWN_VARIABLES:
        return OWN_VARIABLES[name]
    if not box and name in BOX_ONLY:
        return BOX_ONLY[name]
    if _names_a_secret(name, value) or SECRET_VALUE.match(value):
        return "it looks like a secret, and servers run code of pull requests"
    return next((reason for prefix, reason in OWN_PREFIXES.items() if name.startswith(prefix)), None)


def _names_a_secret(name: str, value: str) -> bool:
    """A number of tokens is none (SGLANG_TWO_STREAM_MAX_TOKENS)."""
    counts = re.search(r"TOKENS?$", name, re.I) and re.fullmatch(r"-?[0-9.]{1,12}|true|false", value, re.I)
    return bool(SECRET_NAME.search(name)) and not counts


def check_nccl(variables: Mapping[str, str], path: KeyPath) -> Iterator[Problem]:
    for name in variables:
        if name in OWN_VARIABLES:
            yield Problem((*path, name), f"is not allowed: {OWN_VARIABLES[name]}")


def _check_levels(workload: Workload, path: KeyPath) -> Iterator[Problem]:
    if len(set(workload.concurrency)) != len(workload.concurrency):
        yield Problem(path, "names a level twice")


def check_extends(recipes: Mapping[str, Recipe]) -> Iterator[Problem]:
    """Unknown ancestors and circles among the recipes of all layers together."""
    told: set[str] = set()
    for name, recipe in recipes.items():
        path: KeyPath = ("recipes", name, "extends")
        if recipe.extends is not None and recipe.extends not in recipes:
            yield Problem(path, f"no recipe is called {recipe.extends}", nearest=nearest(recipe.extends, recipes))
        circle = _circle(name, recipes)
        if circle and not told.intersection(circle):
            told.update(circle)
            yield Problem(path, f"goes in a circle: {' → '.join(circle)}")


def _circle(name: str, recipes: Mapping[str, Recipe]) -> tuple[str, ...]:
    """The way from a recipe back to itself; empty where there is none."""
    way = [name]
    while (parent := recipes[way[-1]].extends) is not None and parent in recipes:
        if parent == name:
            return (*way, name)
        if parent in way:
            return ()  # the circle lies further on, and is told there
        way.append(parent)
    return ()


def nccl_notes(variables: Mapping[str, str]) -> Iterator[str]:
    """NCCL says nothing about a variable it does not know, so a slip of the pen silently loses the tuning."""
    for name in variables:
        if name in OVERRIDDEN_NCCL:
            yield f"nccl: {name} has no effect: perfgate sets it, to read from NCCL itself what it took"
        if name not in known_nccl() and (like := nearest(name, known_nccl(), 0.85)):
            yield f"nccl: perfgate knows no {name}, and NCCL ignores what it does not know: is {like} meant?"


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str:
    """The most similar of some words, or nothing."""
    return next(iter(difflib.get_close_matches(word, list(words), n=1, cutoff=cutoff)), "")
