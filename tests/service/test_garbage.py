"""When garbage is collected, and that it is."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from sidecar.service import garbage
from sidecar.service.garbage import DUE, YOUNG, IdleCollector
from tests.service.loops import Run
from tests.transport.test_monitor import until


class Node:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.me = self


def grow(kept: list[Any], collections: int = DUE + 2) -> None:
    """Make young objects that survive so many collections of young ones."""
    for _ in range(collections):
        kept.extend([] for _ in range(YOUNG + 1))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "TICK_S", 0.005)


def test_cycles_go_when_nothing_is_held(run: Run) -> None:
    async def body() -> None:
        idle = False
        thresholds = gc.get_threshold()
        collector = IdleCollector(lambda: idle)
        kept: list[Any] = []
        node: Node | None = Node()
        gone = weakref.ref(node)
        grow(kept)
        node = None  # it has survived, so only a look at old objects finds it
        await asyncio.sleep(0.05)
        assert gone() is not None
        idle = True
        await until(lambda: gone() is None)
        assert collector.collections == 1
        collector.close()
        assert gc.get_threshold() == thresholds

    run(body())


def test_it_cannot_wait_for_ever(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "OVERDUE", DUE + 1)

    async def body() -> None:
        collector = IdleCollector(lambda: False)
        kept: list[Any] = []
        node: Node | None = Node()
        gone = weakref.ref(node)
        grow(kept)
        node = None
        await until(lambda: gone() is None)
        collector.close()

    run(body())


def test_now_and_then_everything_is_looked_at(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "FULL_EVERY", 2)

    async def body() -> None:
        collector = IdleCollector(lambda: True)
        kept: list[Any] = []
        node: Node | None = Node()
        gone = weakref.ref(node)
        grow(kept)
        await until(lambda: collector.collections == 1)
        node = None  # it has survived that too
        grow(kept)
        await until(lambda: gone() is None)
        assert collector.collections == 2
        collector.close()

    run(body())
