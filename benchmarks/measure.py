"""Timing and arithmetic: interleaved medians, ratios, straight lines."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import numpy as np

BLOCK_S = 0.0005
"""Calls that are shorter than this are timed many at a time: the clock itself takes half a microsecond."""


@contextmanager
def quiet_collector() -> Iterator[None]:
    """What lives already is no garbage: no collection in here has to look at it. The service does the same."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def interleave(functions: Sequence[Callable[[], object]], budget_s: float, least: int = 5) -> list[float]:
    """The median seconds of CPU time that a call of each function takes, all of them in turn: A B C A B C.

    CPU time of this thread: the functions wait for nothing, so on an idle machine it is the time they
    take, and on a busy one it still is what they cost. What slows the machine down hits all of them
    alike. Ends when `budget_s` have passed, after `least` turns at the earliest.
    """
    blocks = [_block(function) for function in functions]
    times: list[list[float]] = [[] for _ in functions]
    end = perf_counter() + budget_s
    with quiet_collector():
        while len(times[0]) < least or perf_counter() < end:
            for function, number, mine in zip(functions, blocks, times, strict=True):
                start = thread_time()
                for _ in range(number):
                    function()
                mine.append((thread_time() - start) / number)
    return [median(mine) for mine in times]


def _block(function: Callable[[], object]) -> int:
    """How many calls last for `BLOCK_S`. The first ones warm up what is cached."""
    for _ in range(3):
        start = thread_time()
        function()
        once = thread_time() - start
    return max(1, math.ceil(BLOCK_S / max(once, 1e-7)))


def geometric_mean(ratios: Sequence[float]) -> float:
    """The mean of ratios: a half and a double make one."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


@dataclass(frozen=True)
class Fit:
    """A straight line, y = intercept + slope · x, and how much of the variance it explains."""

    slope: float
    intercept: float
    r2: float


def fit(x: Sequence[float], y: Sequence[float]) -> Fit:
    """The straight line of least squares through the points. R² is 1 where all y are equal."""
    if len(x) < 3:
        raise ValueError(f"{len(x)} points make no line that could be wrong")
    slope, intercept = np.polyfit(np.array(x, float), np.array(y, float), 1)
    values = np.array(y, float)
    rest = values - (intercept + slope * np.array(x, float))
    total = float(((values - values.mean()) ** 2).sum())
    return Fit(float(slope), float(intercept), 1.0 if total == 0 else 1 - float((rest**2).sum()) / total)


def percentiles(values: Any, ranks: Sequence[float]) -> list[float]:
    """The values below which `ranks` per cent of all lie; the next higher one that occurs, never a mean of two."""
    found = np.percentile(np.asarray(values, float), ranks, method="higher")
    return [float(value) for value in found]
