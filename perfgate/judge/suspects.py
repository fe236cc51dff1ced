"""Which commits, or files of one commit, to look at first: by what they touch, against which phase moved.

A suspicion, never a finding: nothing here was measured alone. A path counts by how much of what moved it takes part in,
less by what it would have moved as well and that stood still:

    score(path) = fits · Σ over moved phases (share · weight) / (1 + Σ over phases that stood still (weight) / 2)

`fits` is 1 where the code is known to run with these flags and this model, 0 where it is known not to, between where
nobody knows. A commit counts as its highest path. "Nothing here touches what moved" is an answer, and a useful one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perfgate import records as r
from perfgate.judge.decompose import NAMES
from perfgate.judge.suspect_table import SuspectArea, is_unknown, row_of

LEAST = 0.15
"""A path below this takes part in what moved only in a way that much else does too."""
MOST = 8
UNSURE = 0.6
SPREAD = 0.05
UNKNOWN_AREA = 0.25
"""Of a path that serves and that the table does not know, for every phase."""

OF_METRIC = {
    "ttft_ms": "prefill",
    "decode_ms": "decode",
    "verify_ms": "verify",
    "draft_ms": "draft",
    "draft_extend_ms": "extend",
    "accept_length": "accept",
}
WORDS = {**{phase: NAMES[metric] for metric, phase in OF_METRIC.items() if metric in NAMES}, "prefill": "first token"}
_PARTS = {NAMES[metric]: phase for metric, phase in OF_METRIC.items() if metric in NAMES} | {"rest": "rest"}
_LINEAR = re.compile(
    r"mamba|nemotron|qwen3-next|qwen3\.[5-9]|falcon-h|jamba|bamba|granite-4|kimi-linear|minimax-text|gdn"
)
_MLA = re.compile(r"deepseek|kimi-k|glm-5|mistral-large-3|longcat")
_MOE = re.compile(
    r"moe|-a\d+b|deepseek|kimi|gpt-oss|mixtral|minimax|scout|maverick|glm-[45]|llama-4|step-|dbrx|grok|longcat"
)
_DENSE = re.compile(
    r"llama-[23]|qwen[23](\.5)?-\d+(\.\d+)?b(?!-a)|qwq|mistral-(7b|small|nemo)|gemma|phi-|tiny|yi-|codestral"
)
_QUANTIZED = re.compile(r"fp8|fp4|awq|gptq|int[48]|w[48]a|deepseek-(r1|v3)|kimi-k2|gpt-oss")
_SEEING = re.compile(r"vl|vision|omni|llava|pixtral|gemma-3|internvl|scout|maverick|kimi-k2\.5")
_SPARSE = re.compile(r"minimax|qsa|minicpm|deepseek-v3\.2|deepseek-v4")


@dataclass(frozen=True)
class Loss:
    """What moved, as shares that add up to 1, and what was measured and stood still."""

    shares: Mapping[str, float]
    still: frozenset[str] = frozenset()

    def words(self) -> str:
        named = [WORDS.get(phase, phase) for phase, _ in sorted(self.shares.items(), key=lambda item: -item[1])]
        return ", ".join(dict.fromkeys(named))


@dataclass(frozen=True)
class Setting:
    """What is known of a run, in the words of the table's `needs`: True, False, or missing where nobody knows."""

    known: Mapping[str, bool] = field(default_factory=dict)
    attention: str | None = None
    model: str = ""
    draft: str = ""

    def fits(self, row: SuspectArea, path: str) -> float:
        if not row.needs:
            return 1.0
        if row.needs == "never":
            return 0.0
        if row.needs == "model":
            return self._fits_model(path)
        if row.needs.startswith("attention="):
            return self._fits_attention(row.needs.removeprefix("attention=").split())
        known = self.known.get(row.needs)
        return UNSURE if known is None else float(known)

    def _fits_attention(self, names: list[str]) -> float:
        return UNSURE if self.attention is None else float(any(self.attention.startswith(name) for name in names))

    def _fits_model(self, path: str) -> float:
        """Whether a file of `models/` is the model that was served: by the words of both names."""
        if not self.model:
            return UNSURE / 2
        file = re.sub(r"[^a-z0-9]", "", path.rsplit("/", 1)[-1].removesuffix(".py").lower())
        served = re.sub(r"[^a-z0-9]", "", self.model.rsplit("/", 1)[-1].lower())
        family = re.match(r"[a-z]+", file)
        if file in served or served.startswith(file):
            return 1.0
        return 0.2 if family and len(family[0]) > 3 and family[0] in served else 0.02


def setting_of(recipes: Sequence[r.RecipePlan], profile: str = "gpu") -> Setting:
    """What flags and model names say of all recipes of a run."""
    flags: dict[str, object] = {}
    for recipe in recipes:
        flags.update({name.replace("_", "-").lstrip("-"): value for name, value in recipe.flags.items()})
    model = next((recipe.model for recipe in recipes if recipe.model), "")
    name = model.lower().replace("_", "-")
    known: dict[str, bool] = {
        "cpu": profile == "cpu",
        "speculative": any(recipe.speculative for recipe in recipes),
        "plain": any(not recipe.speculative for recipe in recipes),
        "lora": any("lora" in flag for flag in flags),
        "disaggregation": any("disaggregation" in flag for flag in flags),
        "dllm": any("dllm" in flag for flag in flags),
        "hicache": any("hierarchical" in flag or "hicache" in flag for flag in flags),
        "grammar": False,  # the prompts ask for no structured output
        "drafter": str(flags.get("speculative-algorithm", "")).upper() in ("NGRAM", "STANDALONE", "DFLASH", "DSPARK"),
        "ranks": _ranks(flags) > 1,
    }
    if flags.get("quantization"):
        known["quantized"] = True
    if name:
        known |= _of_model(name)
    if _QUANTIZED.search(name):
        known["quantized"] = True
    attention = flags.get("attention-backend") or ("torch_native" if profile == "cpu" else None)
    return Setting(known, str(attention) if attention else None, model)


def _of_model(name: str) -> dict[str, bool]:
    moe, dense = bool(_MOE.search(name)), bool(_DENSE.search(name))
    known = {"multimodal": bool(_SEEING.search(name))}
    if moe or dense or _LINEAR.search(name):
        known |= {
            "linear": bool(_LINEAR.search(name)),
            "mla": bool(_MLA.search(name)),
            "sparse": bool(_SPARSE.search(name)),
        }
    if moe or dense:
        known["moe"] = moe
    return known


def _ranks(flags: Mapping[str, object]) -> int:
    sizes = [str(flags.get(name, "")) for name in ("tp", "tp-size", "tensor-parallel-size")]
    return max((int(size) for size in sizes if size.isdigit()), default=1)


def loss_of(metrics: Iterable[r.Metric], decomposition: Iterable[r.Decomposition]) -> Loss | None:
    """What moved. None where nothing did: then nobody is suspected."""
    metrics = list(metrics)
    moved: dict[str, float] = {}
    still: set[str] = set()
    for metric in metrics:
        phase = OF_METRIC.get(metric.metric)
        if phase is None or metric.slowdown is None:
            continue
        if _moved(metric):
            moved[phase] = max(moved.get(phase, 0.0), metric.slowdown)
        elif metric.high is not None and metric.high < metric.budget:
            still.add(phase)
    for one in decomposition:
        for part in one.parts:
            if part.phase == "rest" and part.low is not None and part.low > 0 and one.total > 0:
                moved["rest"] = max(moved.get("rest", 0.0), part.slowdown)
    if not moved and any(metric.metric in ("tok_s", "cycle_ms") and _moved(metric) for metric in metrics):
        moved = {
            "decode": 1.0,
            "verify": 0.7,
            "draft": 0.3,
            "extend": 0.3,
            "rest": 0.7,
            "accept": 0.3,
        }  # no phase timed
    total = sum(moved.values())
    if not total:
        return None
    return Loss({phase: size / total for phase, size in moved.items()}, frozenset(still - moved.keys()))


def _moved(metric: r.Metric) -> bool:
    if metric.slowdown is None or metric.slowdown <= 0:
        return False
    return metric.verdict is r.MetricVerdict.REGRESSION or (
        metric.effect is r.Effect.SLOWER and metric.slowdown >= metric.budget / 2
    )


@dataclass(frozen=True)
class Ranked:
    """A path or a commit with how well it explains the loss; `why` in words."""

    touched: r.Touched
    path: str
    score: float
    why: str


def rank(touched: Sequence[r.Touched], loss: Loss, setting: Setting) -> tuple[Ranked, ...]:
    """All commits, the most suspect first; those that touch nothing of what moved are at the end with score 0."""
    ranked = [_best(one, loss, setting) for one in touched]
    return tuple(sorted(ranked, key=lambda one: -one.score))


def rank_paths(touched: r.Touched, loss: Loss, setting: Setting) -> tuple[Ranked, ...]:
    """The files of one commit, the most suspect first."""
    found = [_of_path(touched, path, loss, setting) for path in touched.paths]
    return tuple(sorted(found, key=lambda one: -one.score))


def _best(touched: r.Touched, loss: Loss, setting: Setting) -> Ranked:
    paths = rank_paths(touched, loss, setting)
    if not paths:
        return Ranked(touched, "", 0.0, "touches nothing")
    others = sum(path.score for path in paths[1:4])
    best = paths[0]
    return Ranked(touched, best.path, best.score * (1 + SPREAD * others) if best.score else 0.0, best.why)


def _of_path(touched: r.Touched, path: str, loss: Loss, setting: Setting) -> Ranked:
    row = row_of(path)
    if row is None:
        if not is_unknown(path):
            return Ranked(touched, path, 0.0, "does not serve")
        why = f"touches {path}, which serves and is not in perfgate's table"
        return Ranked(touched, path, UNKNOWN_AREA, why)
    fits = setting.fits(row, path)
    hit = sum(share * row.phases.get(phase, 0.0) for phase, share in loss.shares.items())
    spared = sum(row.phases.get(phase, 0.0) for phase in loss.still)
    score = fits * hit / (1 + spared / 2)
    return Ranked(touched, path, score, _why(row, path, loss, fits))


def _why(row: SuspectArea, path: str, loss: Loss, fits: float) -> str:
    short = path.removeprefix("python/sglang/").removeprefix("srt/")
    hit = [WORDS.get(phase, phase) for phase in loss.shares if row.phases.get(phase)]
    also = [WORDS.get(phase, phase) for phase in sorted(loss.still) if row.phases.get(phase, 0.0) >= 0.4]
    if not hit or not fits:
        return f"touches {row.area} ({short}), which takes no part in what moved"
    but = f"; {' and '.join(also)} would have moved as well, and did not" if also else ""
    maybe = "" if fits == 1 or row.needs == "model" else " if it is in use here"
    return f"touches {row.area} ({short}){maybe}: takes part in {', '.join(dict.fromkeys(hit))}{but}"


def suspects_of(
    run: r.Plan, metrics: Sequence[r.Metric], decomposition: Sequence[r.Decomposition]
) -> tuple[r.Suspect, ...]:
    """For the result of a regression: commits, or the files of a single one."""
    loss = loss_of(metrics, decomposition)
    if loss is None or not run.touched:
        return ()
    setting = setting_of(run.recipes, run.profile)
    if len(run.touched) == 1:
        found = rank_paths(run.touched[0], loss, setting)
        return tuple(
            r.Suspect(sha=one.touched.sha, title=one.path, why=one.why) for one in found[:MOST] if one.score >= LEAST
        )
    commits = rank(run.touched, loss, setting)
    return tuple(
        r.Suspect(sha=one.touched.sha, title=one.touched.title, why=one.why)
        for one in commits[:MOST]
        if one.score >= LEAST
    )


def nothing_touches(
    run: r.Plan, metrics: Sequence[r.Metric], decomposition: Sequence[r.Decomposition]
) -> r.Notice | None:
    """What is said where something moved and no commit touches it."""
    loss = loss_of(metrics, decomposition)
    if loss is None or not run.touched:
        return None
    return r.Notice(
        code="no_suspect",
        text=(
            f"Nothing in these commits touches what moved ({loss.words()}), as far as paths tell. Then look at what"
            " else may differ: packages that were resolved anew, the environment, caches, files outside of the tree."
        ),
        data={"moved": dict(loss.shares)},
    )
