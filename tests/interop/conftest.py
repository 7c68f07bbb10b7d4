"""The interop tests run the real gateway and the real engine's code: `make interop` makes both and names them.

Without them there is nothing to collect here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop.setup import HOME_VARIABLE, Pair

SHARED_PAIRS = 2

collect_ignore_glob = [] if os.environ.get(HOME_VARIABLE) else ["test_*.py"]


@pytest.fixture(scope="module")
def pairs() -> Iterator[Callable[..., Pair]]:
    """Makes pairs of gateway and engine that tests share; the last two, as each takes half a gigabyte."""
    made: dict[Any, Pair] = {}

    def make(build: str, model: str, **options: Any) -> Pair:
        key = (build, model, *sorted(options.items()))
        if key not in made:
            if len(made) == SHARED_PAIRS:
                made.pop(next(iter(made))).close()
            made[key] = Pair(build, model, **options)
            made[key].wait_ready()
        return made[key]

    yield make
    for pair in made.values():
        pair.close()


@pytest.fixture
def pair() -> Iterator[Callable[..., Pair]]:
    """Makes pairs that a test may break."""
    made: list[Pair] = []

    def make(*arguments: Any, **options: Any) -> Pair:
        made.append(Pair(*arguments, **options))
        made[-1].wait_ready()
        return made[-1]

    yield make
    for one in made:
        one.close()
