"""A stand-in for SGLang and the git repositories that hold it. See README.md beside this file."""

from tests.standin.repository import Behaviour, StandinRepository, commit_change, make_history, make_repository

__all__ = ["Behaviour", "StandinRepository", "commit_change", "make_history", "make_repository"]
