"""A stand-in for SGLang: the same commands, processes, log lines and answers, scripted speed."""

from sglang.version import __version__

__all__ = ["__version__"]
