"""SGLang's benchmark modules import this name when they load; nothing here ever loads a data set."""

from __future__ import annotations

from typing import NoReturn


def load_dataset(*args: object, **kwargs: object) -> NoReturn:
    raise NotImplementedError("the `datasets` package is not part of the cpu profile")
