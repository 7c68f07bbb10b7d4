"""When each message is due. Pure: times are nanoseconds from the start of the run."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Final, TypeAlias

from sidecar.errors import UsageError

Pacer: TypeAlias = Callable[[int, int], int]
"""(number of the message from 0, its monotonic clock in the recording in ns) -> when it is due in ns."""

_NS: Final = 1_000_000_000
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)?")
_UNITS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": _NS, "m": 60 * _NS, "h": 3600 * _NS}


def constant(rate: float) -> Pacer:
    """`rate` messages a second at equal distances."""
    return lambda number, _: int(number * _NS / rate)


def poisson(rate: float, seed: int) -> Pacer:
    """`rate` messages a second on average, at the times of a Poisson process: independent clients."""
    draw = random.Random(seed).expovariate
    now = 0.0

    def due(number: int, _: int) -> int:
        nonlocal now
        if number:
            now += draw(rate)
        return int(now * _NS)

    return due


def original(speed: float, max_gap_ns: int | None) -> Pacer:
    """The distances of the recording divided by `speed`; none longer than `max_gap_ns` after that.

    A clock that runs backwards (another loop, joined recordings) counts as no distance.
    """
    now, before = 0, 0

    def due(number: int, mono_ns: int) -> int:
        nonlocal now, before
        gap = int((mono_ns - before) / speed) if number else 0
        now += max(0, gap if max_gap_ns is None else min(gap, max_gap_ns))
        before = mono_ns
        return now

    return due


def parse_speed(text: str) -> float:
    """`2x`, `0.5x` or a bare number. Raises `UsageError`."""
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise UsageError(f"--speed {text}: give a factor such as 2x or 0.5x")
    return speed


def parse_duration(text: str, name: str) -> int:
    """`1500us`, `20ms`, `3s`, `2m`, `1h` or bare seconds, in ns. Raises `UsageError`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{name} {text}: give a time such as 500us, 20ms, 3s or 2m")
    return int(float(match[1]) * _UNITS[match[2] or "s"])


def format_duration(ns: float) -> str:
    """A time in the unit that suits it, three digits: `812ns`, `14.2us`, `3.07ms`, `1.25s`."""
    for unit, size in (("s", _NS), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            value = ns / size
            return f"{value:.0f}{unit}" if value >= 100 else f"{value:.3g}{unit}"
    return f"{ns:.0f}ns"
