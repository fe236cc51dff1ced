"""What the sides of a run are served on."""

from __future__ import annotations

from enum import StrEnum


class Profile(StrEnum):
    """A GPU box, or real SGLang on a machine without a GPU: a tiny model in an environment that no commit changes."""

    GPU = "gpu"
    CPU = "cpu"

    @property
    def has_gpus(self) -> bool:
        return self is Profile.GPU

    @property
    def box_name(self) -> str:
        """Of a box without a file."""
        return "box" if self.has_gpus else "laptop"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a result has to say of it."""
        if self.has_gpus:
            return ()
        return (
            "Measured on the cpu profile: its environment is fixed, the pins of the tree are read but not installed,"
            " and a laptop is noisier than a GPU box.",
        )
