"""HTTP to a server on this very machine."""

from __future__ import annotations

import requests


def local_session() -> requests.Session:
    """A session that no proxy of perfgate's own environment comes between."""
    session = requests.Session()
    session.trust_env = False
    return session
