"""The tests that run the engine's own code; without its environment there is nothing to collect here."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.interop.engine.client import HOME_VARIABLE, Engine

collect_ignore_glob = [] if os.environ.get(HOME_VARIABLE) else ["test_*.py"]


@pytest.fixture(scope="package")
def engine() -> Iterator[Engine]:
    """A process of the engine's code."""
    with Engine() as process:
        yield process
