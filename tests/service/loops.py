"""Running a coroutine on each of the event loops that the sidecar runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine to its end; an exception in a callback of the loop fails the test."""

    def run_on_loop(main: Coroutine[Any, Any, Any]) -> Any:
        failures: list[dict[str, Any]] = []

        async def watched() -> Any:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
            return await main

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            result = runner.run(watched())
        assert not failures, failures
        return result

    return run_on_loop
