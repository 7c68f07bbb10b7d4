"""Distributions that a command line can name.

200                    always 200
1-3                    evenly from 1 to 3
lognormal:200,0.8      median 200, sigma 0.8 of the logarithm: long tails, as prompts have them
normal:64,10           mean 64, standard deviation 10
choice:1,2*3,8         one of these; 2 three times as often
choice:224x224,640x480 the same with sizes, width x height
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Final, TypeAlias

from sidecar.errors import UsageError

Draw: TypeAlias = Callable[[random.Random], int]
DrawSize: TypeAlias = Callable[[random.Random], tuple[int, int]]
"""(width, height) in pixels."""

_MAX: Final = 10_000_000
_NUMBER: Final = r"\d+(?:\.\d+)?"
_SIZE: Final = re.compile(r"(\d+)x(\d+)")


def parse_count(text: str, name: str, low: int = 1) -> Draw:
    """A distribution of integers of at least `low`. Raises `UsageError` that names the option."""
    if re.fullmatch(r"\d+", text):
        value = int(text)
        return _bounded(lambda rng: value, low, text, name)
    if match := re.fullmatch(r"(\d+)-(\d+)", text):
        first, last = int(match[1]), int(match[2])
        if first <= last:
            return _bounded(lambda rng: rng.randint(first, last), low, text, name)
    if match := re.fullmatch(rf"lognormal:({_NUMBER}),({_NUMBER})", text):
        median, sigma = float(match[1]), float(match[2])
        return _bounded(lambda rng: round(median * rng.lognormvariate(0, sigma)), low, text, name)
    if match := re.fullmatch(rf"normal:({_NUMBER}),({_NUMBER})", text):
        mean, deviation = float(match[1]), float(match[2])
        return _bounded(lambda rng: round(rng.gauss(mean, deviation)), low, text, name)
    if text.startswith("choice:"):
        values, weights = _choices(text, name)
        if all(value.isdigit() for value in values):
            numbers = [int(value) for value in values]
            return _bounded(lambda rng: rng.choices(numbers, weights)[0], low, text, name)
    raise UsageError(f"{name} {text}: give e.g. 200, 1-3, lognormal:200,0.8, normal:64,10 or choice:1,2*3,8")


def parse_size(text: str, name: str) -> DrawSize:
    """A distribution of image sizes: `640x480`, or `choice:` of several. Raises `UsageError`."""
    values, weights = _choices(text, name) if text.startswith("choice:") else ([text], [1.0])
    sizes = []
    for value in values:
        match = _SIZE.fullmatch(value)
        if match is None or not 0 < int(match[1]) <= 100_000 or not 0 < int(match[2]) <= 100_000:
            raise UsageError(f"{name} {text}: give e.g. 640x480 or choice:224x224,1024x768*3")
        sizes.append((int(match[1]), int(match[2])))
    return lambda rng: rng.choices(sizes, weights)[0]


def parse_mix(text: str, known: tuple[str, ...], name: str) -> dict[str, float]:
    """`text=5,image=4`: names and weights. Raises `UsageError` for a name that is not known."""
    mix = {}
    for part in text.split(","):
        key, separator, weight = part.partition("=")
        if key not in known or (separator and not re.fullmatch(_NUMBER, weight)):
            raise UsageError(f"{name} {text}: {part!r} is not one of {', '.join(known)} with an optional =weight")
        mix[key] = float(weight) if separator else 1.0
    if sum(mix.values()) <= 0:
        raise UsageError(f"{name} {text}: all weights are 0")
    return mix


def _choices(text: str, name: str) -> tuple[list[str], list[float]]:
    values, weights = [], []
    for part in text.removeprefix("choice:").split(","):
        value, separator, weight = part.partition("*")
        if separator and not re.fullmatch(_NUMBER, weight):
            raise UsageError(f"{name} {text}: {weight!r} is no weight")
        values.append(value)
        weights.append(float(weight) if separator else 1.0)
    if sum(weights) <= 0:
        raise UsageError(f"{name} {text}: all weights are 0")
    return values, weights


def _bounded(draw: Draw, low: int, text: str, name: str) -> Draw:
    if draw(random.Random(0)) < low and text.isdigit():
        raise UsageError(f"{name} {text}: at least {low}")
    return lambda rng: min(max(draw(rng), low), _MAX)
