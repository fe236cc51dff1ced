"""Builds one commit of a lab and prints what came of it, as JSON: a second perfgate for tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from perfgate.records import Side
from tests.integration.build.lab import Lab


def main() -> None:
    root, ref, log = sys.argv[1:]
    lab = Lab(Path(root))
    with lab.store() as store:
        builder = lab.builder(store)
        built = builder.build(Side.BASE, builder.repository.resolve(ref), log=Path(log))
        print(json.dumps({"key": built.key, "cached": built.cached, "python": str(built.python)}), flush=True)


if __name__ == "__main__":
    main()
