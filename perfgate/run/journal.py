"""The facts of the run in progress: on disk before anything else happens, and at hand in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Self, TypeVar

from perfgate.judge.evidence import RunFacts
from perfgate.records import Fact
from perfgate.records.files import FactsWriter, read_facts

F = TypeVar("F", bound=Fact)


class Journal:
    """Appends facts to the run's file and remembers them. Opening one that exists goes on where it ended."""

    def __init__(self, run: Path) -> None:
        self._writer = FactsWriter(run)
        self.facts: list[Fact] = read_facts(run)

    def append(self, fact: F) -> F:
        written = self._writer.append(fact)
        self.facts.append(written)
        return written

    def run(self) -> RunFacts:
        """All facts so far, put in order; there is a plan before anything asks."""
        run = RunFacts.of(self.facts)
        assert run is not None, "the plan is the first fact"
        return run

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
