"""What must not leave the box, taken out of a text: host and user names, addresses, UUIDs become short hashes."""

from __future__ import annotations

import getpass
import ipaddress
import platform
import re
from contextlib import suppress
from functools import cache

from perfgate.records.files import short_hash

IPV4 = r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])"
IPV6 = r"(?<![\w:.])[0-9a-fA-F:]{2,39}(?![\w:])"  # may be one: see `_is_ipv6`
UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
HOME = r"(?<=/home/)[^/\s:,;'\"]+"
DOMAIN = r"(?:\.[A-Za-z0-9-]+)*"  # of a host
LOOPBACK = frozenset({"127.0.0.1", "0.0.0.0", "::1", "::"})
MIN_NAME = 2  # a single letter would hit ordinary words
COMMON = frozenset(  # words, too; they name nobody
    ["root", "runner", "nobody", "ubuntu", "localhost", "perfgate", "sglang", "base", "head", "gpu", "cpu"]
)


def public(text: str, also: frozenset[str] = frozenset(), words: frozenset[str] = frozenset()) -> str:
    """The text with everything that names this machine or a person hashed.

    also: more names to hash. words: names that are none here, because they mean something else.
    """
    return _pattern(also, words).sub(_hashed, text)


def _hashed(match: re.Match[str]) -> str:
    text = match[0]
    maybe_ipv6 = match.lastgroup == "ipv6"
    return text if text in LOOPBACK or (maybe_ipv6 and not _is_ipv6(text)) else f"#{short_hash(text)}"


def _is_ipv6(text: str) -> bool:
    """A time of day has colons, too."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


@cache
def _pattern(also: frozenset[str], words: frozenset[str]) -> re.Pattern[str]:
    none = COMMON | words
    people = [_word(name) for name in _longest_first({*_users(), *also} - none)]
    hosts = [_word(name, DOMAIN) for name in _longest_first(_hosts() - none)]
    return re.compile("|".join((UUID, IPV4, f"(?P<ipv6>{IPV6})", HOME, *hosts, *people)))


def _word(name: str, more: str = "") -> str:
    return rf"(?<![A-Za-z0-9]){re.escape(name)}{more}(?![A-Za-z0-9])"


def _longest_first(names: set[str]) -> list[str]:
    return sorted((name for name in names if len(name) >= MIN_NAME), key=lambda name: (-len(name), name))


def _hosts() -> set[str]:
    node = platform.node()
    return {node, node.partition(".")[0]}


def _users() -> set[str]:
    with suppress(KeyError, OSError, ImportError):
        return {getpass.getuser()}
    return set()
