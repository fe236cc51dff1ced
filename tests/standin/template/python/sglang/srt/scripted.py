"""Reads the scripted behaviour and spends simulated time."""

import hashlib
import math
import os
import random
import time
from pathlib import Path

from sglang.srt.behaviour import BEHAVIOUR, PROMPT_KINDS


def get(name, default=None):
    return BEHAVIOUR.get(name, default)


def fingerprint(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def prompt_kind(text):
    """Of a prompt behind the words that mark it."""
    text = text.partition("\n\n")[2]
    return PROMPT_KINDS.get(fingerprint(text), "other")


def launch_number():
    """How many launches this HOME has seen, so that noise differs from launch to launch and yet repeats in a rerun."""
    counter = Path(os.environ.get("HOME", "/nonexistent")) / ".cache" / "standin-launches"
    try:
        number = int(counter.read_text()) if counter.exists() else 0
        counter.parent.mkdir(parents=True, exist_ok=True)
        counter.write_text(str(number + 1))
    except (OSError, ValueError):
        return 0
    return number


def launch_factor(number):
    """By how much everything takes longer in this launch: noise, and what a missing variable costs."""
    factor = math.exp(random.Random(f"{get('seed', 0)}/{number}").gauss(0, get("noise_sd", 0.0)))
    for name, cost in get("slow_without", {}).items():
        if not os.environ.get(name):
            factor *= cost
    return factor


class Pace:
    """Spends simulated time against absolute deadlines, so that late wake-ups do not add up."""

    def __init__(self):
        self.due = time.monotonic()

    def restart(self):
        self.due = time.monotonic()

    def spend(self, ms):
        self.due += ms / 1000
        late = time.monotonic() - self.due
        if late < 0:
            time.sleep(-late)
        elif late > 1:
            self.restart()


PACE = Pace()
