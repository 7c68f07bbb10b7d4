"""Images through each gateway build: as without the sidecar, and Qwen's with positions where the gateway has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.gateway import BUILDS, png
from tests.interop.setup import Pair
from tests.interop.test_relay_text import comparable

pytestmark = pytest.mark.interop
Pairs = Callable[..., Pair]

PROMPTS: dict[str, list[str | bytes]] = {
    "one": [png(56, 84), "What is this?"],
    "the same twice": [png(56, 84), "vs", png(56, 84), "?"],
    "two sizes": ["A", png(56, 84, seed=1), "B", png(112, 28, seed=2), "?"],
    "large": [png(640, 480), "?"],
}
MEDIA = ("tokens", "ids", "error", "items", "positions", "delta")
OCTOBER = BUILDS[1]


def last_request(pair: Pair, before: int) -> dict[str, Any]:
    """The request that the engine has seen since."""
    return pair.wait_event("request", before + 1)[before]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("model", ["kimi_k25", "kimi_k3", "llama4"])
@pytest.mark.parametrize("build", BUILDS)
def test_images_equal_those_without_the_sidecar(build: str, model: str, prompt: str, pairs: Pairs) -> None:
    results = []
    for relay in (False, True):
        pair = pairs(build, model, relay=relay)
        before = len(pair.events())
        answer = pair.gateway.chat(*PROMPTS[prompt])
        request = last_request(pair, before) if answer.status == 200 else {}
        results.append((answer.status, comparable(answer.body), {key: request.get(key) for key in MEDIA}))
    assert results[0] == results[1]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_qwen_images_get_the_positions_that_the_engine_computes(prompt: str, pairs: Pairs) -> None:
    pair = pairs(OCTOBER, "qwen3_5", relay=True)
    before = len(pair.events())
    answer = pair.gateway.chat(*PROMPTS[prompt])
    assert (answer.status, answer.text) == (200, "hello")
    request = last_request(pair, before)
    assert request["error"] is None
    assert request["positions"] is not None
    assert request["positions"] == request["engine_positions"]
    assert request["delta"] == request["engine_delta"]


def test_without_the_sidecar_the_gateway_refuses_qwen_images(pairs: Pairs) -> None:
    answer = pairs(OCTOBER, "qwen3_5", relay=False).gateway.chat(*PROMPTS["one"])
    assert answer.status == 400


def test_qwen_text_is_left_alone(pairs: Pairs) -> None:
    pair = pairs(OCTOBER, "qwen3_5", relay=True)
    before = len(pair.events())
    assert pair.gateway.chat("Say hi.").text == "hello"
    assert "positions" not in last_request(pair, before)
