"""Public regressions of SGLang with a known culprit, each hidden among 32 real commits: where do the suspects put it?

    python benchmarks/suspects_replay.py

What moved, the model and the culprit's files are from the public thread (`basis` says how); decoys are real commits of
SGLang's main with the paths they changed. A rank counts as of the top three also where others score the same.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perfgate import records as r
from perfgate.judge.suspects import LEAST, Loss, rank, setting_of

DATA = Path(__file__).with_suffix(".json")
TOP = 3
PULL = 7
DRAWS = 1000


def main() -> None:
    data = json.loads(DATA.read_text())
    decoys = [r.Touched(sha=sha, paths=tuple(paths)) for sha, paths in data["commits"].items()]
    found = 0
    chances: list[float] = []
    rng = random.Random(7)
    print(
        f"| culprit | told in | loss | what moved | rank of 33 | top {TOP} of {PULL} | |\n|---|---|---|---|---|---|---|"
    )
    for one in data["regressions"]:
        recipe = r.RecipePlan(
            name="any",
            flags={"tp": 8},
            environment={},
            workload="",
            concurrencies=(1,),
            samples=1,
            speculative=False,
            first_orders=(),
            model=one["model"],
        )
        culprit = r.Touched(sha=one["culprit"], paths=tuple(one["paths"]))
        ranked = rank([*decoys, culprit], Loss(one["moved"], frozenset(one["still"])), setting_of((recipe,)))
        mine = next(each for each in ranked if each.touched is culprit)
        place = 1 + sum(each.score > mine.score for each in ranked)
        named = mine.score >= LEAST
        found += named and place <= TOP
        shown = str(place) if named else "no suspect"
        others = [each.score for each in ranked if each is not mine]
        draws = [sum(score > mine.score for score in rng.sample(others, PULL - 1)) < TOP for _ in range(DRAWS)]
        chances.append(named * sum(draws) / DRAWS)
        cells = (one["culprit"], one["told"], one["loss"], ", ".join(one["moved"]), shown, f"{100 * chances[-1]:.0f} %")
        print(f"| {' | '.join(cells)} | {mine.why} |")
    total = len(data["regressions"])
    print(f"\nOf 33 commits: {found} of {total} in the top {TOP} ({100 * found / total:.0f} %).")
    print(f"Of {PULL}, as in a small pull, drawn {DRAWS} times: {100 * sum(chances) / total:.0f} %.")


if __name__ == "__main__":
    main()
