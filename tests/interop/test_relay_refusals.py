"""Requests that are refused: the client gets its end at once, and the engine lives on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interop.gateway import BUILDS, Answer, png
from tests.interop.setup import Pair

pytestmark = pytest.mark.interop
Pairs = Callable[..., Pair]


def is_terminal(answer: Answer) -> bool:
    """Whether an answer says that the request was aborted: a finish reason, or an error in newer builds."""
    return answer.finish_reasons == ["abort"] or answer.status == 500 or "error" in (answer.events or [{}])[-1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("build", BUILDS)
def test_a_refused_request_ends_at_once(build: str, stream: bool, pairs: Pairs) -> None:
    # Gateways check most of what clients can get wrong, but know nothing of this sidecar's own limits.
    pair = pairs(build, "kimi_k25", relay=True, sets=("limits.items=1", "engine.max_model_len=64"))
    for parts, reason in (
        ([png(56, 84), "and", png(84, 56), "?"], "limits.items"),
        ([png(56, 84), "x" * 100], "max_model_len"),
        (["x" * 100], "max_model_len"),
    ):
        before = len(pair.events())
        assert is_terminal(pair.gateway.chat(*parts, stream=stream, timeout=10))
        event = pair.wait_event("request", before + 1)[before]
        assert reason in event["error"]
        assert event["tokens"] == 0
    assert pair.gateway.chat("Say hi.").text == "hello"


@pytest.mark.parametrize("build", BUILDS)
def test_text_in_a_pool_for_media(build: str, pair: Pairs) -> None:
    relay = pair(build, "kimi_k25", relay=True, sets=("admission.text_requests=reject",))
    assert is_terminal(relay.gateway.chat("Say hi.", timeout=10))
    assert relay.gateway.chat(png(56, 84), "?").text == "hello"
    metrics = relay.metrics()
    assert metrics['sidecar_rejected_total{reason="text_request"}'] == 1
    assert metrics['sidecar_requests_total{dialect="tokenspeed",outcome="rejected"}'] == 1
