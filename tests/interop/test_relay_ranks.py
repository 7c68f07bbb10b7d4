"""Two data-parallel ranks: requests reach the rank that the gateway chose, outputs keep their engine index."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interop.gateway import BUILDS
from tests.interop.setup import Pair

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("build", BUILDS)
def test_two_ranks(build: str, pair: Callable[..., Pair]) -> None:
    relay = pair(build, "kimi_k25", relay=True, ranks=2)
    for _ in range(8):
        assert relay.gateway.chat("Say hi.").text == "hello"
        assert relay.gateway.chat("Say hi.", stream=True).text == "hello"
    ranks = [event["rank"] for event in relay.events()]
    assert set(ranks) == {0, 1}, ranks
    assert relay.metrics()["sidecar_engine_connected"] == 1


@pytest.mark.parametrize("build", BUILDS[:2])
def test_one_rank_says_hello_twice(build: str, pair: Callable[..., Pair]) -> None:
    relay = pair(build, "kimi_k25", relay=True)
    first = relay.engine
    relay.start_engine()
    try:
        second = relay.engine
        relay.wait_log("another engine says HELLO")
        for _ in range(5):
            assert relay.gateway.chat("Say hi.").text == "hello"
        assert len(relay.events("connected")) == 1
        first.kill()  # the one that waits takes its place
        relay.wait_event("connected", 2)
        relay.wait_answer()
        assert second.running
    finally:
        first.close()
