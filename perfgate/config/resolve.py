"""What really holds for a run: the built-in defaults, the layers over them, and the box on top.

Precedence, the later wins: built-in defaults < perfgate.yml < profile < box file. Then each recipe takes from the one
it extends what it does not say itself. Values are laid over each other key by key. Naming a metric in a later layer
gates it, unless that layer says `gated: false`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from perfgate.config.check import check_abbreviation, check_extends, flag_name, nccl_notes
from perfgate.config.layer import ConfigError, load_layer
from perfgate.config.model import BoxFile, Config, FlagValue, MetricRule, Recipe, Resolved, ResolvedRecipe, Source
from perfgate.config.profile import Profile
from perfgate.config.yaml import Problem
from perfgate.records import MetricPlan
from perfgate.records.files import short_hash

Data = dict[str, Any]

CLIENT_METRICS = ("tok_s", "ttft_ms", "cycle_ms")
PLAIN_METRICS = (*CLIENT_METRICS, "decode_ms")
SPECULATIVE_METRICS = (*CLIENT_METRICS, "verify_ms", "draft_ms", "draft_extend_ms", "accept_length")
FALLBACK = {"verify_ms": "cycle_ms", "decode_ms": "cycle_ms"}
"""Probe's metric → the client's, gated in its place where the probe found nothing."""


@cache
def builtin() -> Config:
    """The built-in defaults, `perfgate/defaults.yml`."""
    return load_layer(files("perfgate.config").joinpath("defaults.yml").read_bytes(), "defaults.yml")


def merge(layers: Sequence[Config]) -> Config:
    """The layers laid over each other, the later over the earlier."""
    together: Data = {}
    for layer in layers:
        together = _laid_over(together, _said(layer))
    return Config.model_validate(together)


def _said(config: Config) -> Data:
    """What a layer says itself, with flags in one spelling."""
    said: Data = config.model_dump(exclude_unset=True)
    _say_rules(said, config.metrics)
    for name, recipe in config.recipes.items():
        own = said["recipes"][name]
        _say_rules(own, recipe.metrics)
        if "flags" in own:
            own["flags"] = {flag_name(flag): value for flag, value in recipe.flags.items()}
    return said


def _say_rules(said: Data, rules: Mapping[str, MetricRule]) -> None:
    if rules:
        said["metrics"] = {name: _rule_said(rule) for name, rule in rules.items()}


def _rule_said(rule: MetricRule) -> Data:
    return {**rule.model_dump(exclude_unset=True), "gated": rule.gated}


def _laid_over(lower: Data, upper: Data) -> Data:
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        merged[key] = _laid_over(below, value) if both and below is not None else value
    return merged


def flattened(config: Config) -> dict[str, Recipe]:
    """Every recipe with what it extends laid under it. Circles and unknown ancestors must have been refused before."""
    said = _said(config)["recipes"] if config.recipes else {}

    def whole(name: str) -> Data:
        own = dict(said[name])
        parent = own.pop("extends", None)
        below = whole(parent) if parent else {}
        below.pop("enabled", None)  # a helper is switched off for itself, not for what extends it
        return _laid_over(below, own)

    return {name: Recipe.model_validate(whole(name)) for name in said}


def problems_of(config: Config, *, models_needed: bool = True) -> list[Problem]:
    """What is wrong with the layers together."""
    circles = list(check_extends(config.recipes))
    if circles:
        return circles
    recipes = flattened(config)
    problems = [problem for name, recipe in recipes.items() for problem in _impossible(name, recipe)]
    for name, recipe in recipes.items():
        problems += _foreign_metrics(name, recipe, config.recipes[name])
    if models_needed:
        problems += [problem for name, recipe in recipes.items() for problem in _without_model(name, recipe)]
    limits = config.limits
    if limits.min_pairs_to_fail > limits.max_pairs:
        reason = f"{limits.min_pairs_to_fail} is more than max_pairs, {limits.max_pairs}: nothing could ever fail"
        problems.append(Problem(("limits", "min_pairs_to_fail"), reason))
    enabled = {name: recipe for name, recipe in recipes.items() if recipe.enabled}
    if not enabled:
        problems.append(Problem(("recipes",), "no recipe is enabled: nothing would be measured"))
    elif not any(rule.gated for recipe in enabled.values() for rule in _rules(config, recipe).values()):
        problems.append(Problem(("metrics",), "no metric of any recipe is gated: nothing would be judged"))
    return problems


def _impossible(name: str, recipe: Recipe) -> Iterator[Problem]:
    load = recipe.workload
    if load.warmup_max < load.warmup_min:
        reason = f"{load.warmup_max} is less than warmup_min, {load.warmup_min}"
        yield Problem(("recipes", name, "workload", "warmup_max"), reason)
    if recipe.draft is not None and not is_speculative(recipe.flags):
        yield Problem(("recipes", name, "draft"), "has no use without the flag speculative-algorithm")


def _foreign_metrics(name: str, recipe: Recipe, own: Recipe) -> Iterator[Problem]:
    """Rules that a recipe names itself although it has no such metric; an inherited one simply does not apply."""
    for rule in own.metrics:
        if rule not in metrics_of(recipe.flags):
            kind = "speculative" if is_speculative(recipe.flags) else "plain"
            yield Problem(("recipes", name, "metrics", rule), f"a {kind} recipe has no such metric")


def _without_model(name: str, recipe: Recipe) -> Iterator[Problem]:
    if not recipe.enabled:
        return
    if recipe.model is None:
        yield Problem(("recipes", name), "has no model: give `model`, or `enabled: false`")
    if recipe.draft is None and algorithm_of(recipe.flags) in NEEDS_A_DRAFT:
        yield Problem(("recipes", name), "has no draft model: give `draft`, or `enabled: false`")


def is_speculative(flags: Mapping[str, FlagValue]) -> bool:
    return bool(flags.get("speculative-algorithm"))


NEEDS_A_DRAFT = ("EAGLE3", "STANDALONE")
MAY_BRING_ITS_OWN = ("EAGLE", "NEXTN")
"""Without a draft the layers of multi-token prediction that the target brings draft: DeepSeek's, GLM's."""


def algorithm_of(flags: Mapping[str, FlagValue]) -> str:
    return str(flags.get("speculative-algorithm") or "").upper()


def draft_notes(recipes: Iterable[ResolvedRecipe]) -> Iterator[str]:
    for recipe in recipes:
        if recipe.draft is None and algorithm_of(recipe.flags) in MAY_BRING_ITS_OWN:
            yield (
                f"{recipe.name} has no draft: fine where {recipe.model} brings layers of multi-token prediction, as"
                " DeepSeek and GLM do; else give `draft`"
            )


def refuse_abbreviations(resolved: Resolved, known: frozenset[str]) -> None:
    """`known`: the flags of the tree that will be served; empty where they could not be read. Raises ConfigError."""
    problems = [
        problem
        for recipe in resolved.recipes
        for name in recipe.flags
        for problem in check_abbreviation(name, known, ("recipes", recipe.name, "flags"))
    ]
    if problems:
        raise ConfigError(Source("perfgate.yml"), problems)


def metrics_of(flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
    """The metrics that a recipe of this kind has, in reading order."""
    return SPECULATIVE_METRICS if is_speculative(flags) else PLAIN_METRICS


def _rules(config: Config, recipe: Recipe) -> dict[str, MetricRule]:
    """The rule of every metric of a recipe: its own over the configuration's; what nobody names is shown, not gated."""
    return {name: _rule(name, config, recipe) for name in metrics_of(recipe.flags)}


def _rule(name: str, config: Config, recipe: Recipe) -> MetricRule:
    said: Data = {"gated": False}
    for rules in (config.metrics, recipe.metrics):
        if name in rules:
            said = _laid_over(said, _rule_said(rules[name]))
    return MetricRule.model_validate(said)


def resolve(config: Config, box: BoxFile | None = None, *overlays: Config, profile: Profile = Profile.GPU) -> Resolved:
    """What holds for a run: defaults < config < overlays in order < box. Raises ConfigError.

    A line is told where the problem stands in `config` itself.
    """
    box = box or BoxFile()
    together = merge((builtin(), config, *overlays))
    problems = problems_of(together)
    if problems:
        raise ConfigError(config._source, problems)
    nccl = {**together.nccl, **box.nccl}
    recipes = tuple(
        _resolved(name, recipe, together, box) for name, recipe in flattened(together).items() if recipe.enabled
    )
    resolved = Resolved(
        recipes=recipes,
        nccl=nccl,
        limits=together.limits,
        errors=together.errors,
        build=together.build,
        caches=together.caches,
        environment=together.environment,
        ignore_paths=tuple(together.ignore_paths),
        box=box,
        profile=profile,
        hash="",
        notes=(*nccl_notes(nccl), *draft_notes(recipes)),
    )
    canonical = json.dumps(resolved.as_data(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return dataclasses.replace(resolved, hash=short_hash(canonical))


def _resolved(name: str, recipe: Recipe, config: Config, box: BoxFile) -> ResolvedRecipe:
    assert recipe.model is not None, "problems_of refuses a recipe without a model"
    return ResolvedRecipe(
        name=name,
        model=recipe.model,
        model_path=box.models.get(recipe.model, recipe.model),
        revision=recipe.revision,
        draft=recipe.draft,
        draft_path=box.models.get(recipe.draft, recipe.draft) if recipe.draft else None,
        draft_revision=recipe.draft_revision,
        flags={flag: value for flag, value in recipe.flags.items() if value is not None and value is not False},
        env={**recipe.env, **box.env},
        workload=recipe.workload,
        rules=_rules(config, recipe),
        speculative=is_speculative(recipe.flags),
    )


Known = Callable[[str, str, int], tuple[float, float, str] | None]
"""(recipe, metric, concurrency) → SD of a pair's log difference, its degrees of freedom, where that is known from."""


def metric_plans(resolved: Resolved, known: Known | None = None) -> tuple[MetricPlan, ...]:
    """How every metric will be judged. Only the first concurrency is gated; alpha is split over the gated metrics.

    `known` is asked first for the prior (the ledger's), then the configuration.
    """
    gated = sum(rule.gated for recipe in resolved.recipes for rule in recipe.rules.values())
    share = resolved.errors.alpha / max(gated, 1)
    return tuple(
        _metric_plan(recipe, metric, concurrency, gated=rule.gated and level == 0, alpha=share, known=known)
        for recipe in resolved.recipes
        for level, concurrency in enumerate(recipe.workload.concurrency)
        for metric, rule in recipe.rules.items()
    )


def _metric_plan(
    recipe: ResolvedRecipe, metric: str, concurrency: int, *, gated: bool, alpha: float, known: Known | None
) -> MetricPlan:
    rule = recipe.rules[metric]
    prior = known(recipe.name, metric, concurrency) if known else None
    if prior is None and rule.prior:
        prior = (rule.prior.sd, rule.prior.df, "configuration")
    sd, df, known_from = prior or (None, None, "")
    instead = FALLBACK.get(metric) if gated else None
    return MetricPlan(
        recipe=recipe.name,
        metric=metric,
        concurrency=concurrency,
        gated=gated,
        budget=rule.budget,
        alpha=alpha,
        prior_sd=sd,
        prior_df=df,
        prior_from=known_from,
        fallback=None if instead and recipe.rules[instead].gated else instead,
    )
