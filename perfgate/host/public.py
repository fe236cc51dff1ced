"""What must not leave the box, taken out of a text: host and user names, addresses, UUIDs become short hashes."""

from __future__ import annotations

import getpass
import platform
import re
from contextlib import suppress
from functools import cache

from perfgate.facts import short_hash

IPV4 = r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])"
IPV6 = r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}(?![\w:])|fe80::[0-9a-fA-F:]+"
UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
HOME = r"(?<=/home/)[^/\s:,;'\"]+"
LOOPBACK = frozenset({"127.0.0.1", "0.0.0.0"})
MIN_NAME = 2  # a single letter would hit ordinary words
COMMON_USERS = frozenset({"root", "runner", "nobody", "ubuntu", "perfgate", "sglang"})  # words, too; name nobody


def public(text: str, also: frozenset[str] = frozenset()) -> str:
    """The text with everything that names this machine or a person hashed; `also` are more names to hash."""
    return _pattern(also).sub(lambda match: _hashed(match[0]), text)


def _hashed(text: str) -> str:
    return text if text in LOOPBACK else f"#{short_hash(text)}"


@cache
def _pattern(also: frozenset[str]) -> re.Pattern[str]:
    names = sorted({*_own_names(), *also}, key=len, reverse=True)
    words = [rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in names if len(name) >= MIN_NAME]
    return re.compile("|".join((UUID, IPV4, IPV6, HOME, *words)))


def _own_names() -> set[str]:
    node = platform.node()
    names = {node, node.partition(".")[0]}
    with suppress(KeyError, OSError, ImportError):
        names.add(getpass.getuser())
    return names - COMMON_USERS - {"localhost"}
