"""Text through each gateway build: what clients get and what the engine sees are the same as without the sidecar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.gateway import BUILDS, Answer
from tests.interop.processes import wait_for
from tests.interop.setup import Pair

pytestmark = pytest.mark.interop
Pairs = Callable[..., Pair]

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sampled": {"temperature": 0.7, "top_p": 0.9, "seed": 7},
    "stream": {"stream": True, "stream_options": {"include_usage": True}},
    "stop": {"stop": ["END", "\n"], "seed": 7},
    "n": {"n": 2, "seed": 7},
    "json_schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    "logprobs": {"logprobs": True},
    "unlimited": {"max_tokens": None},
}
_VOLATILE = ("id", "created", "system_fingerprint")


def comparable(value: Any) -> Any:
    """An answer without what differs between two requests: ids and times."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items() if key not in _VOLATILE}
    return [comparable(item) for item in value] if isinstance(value, list) else value


def seen(pair: Pair, since: int, count: int) -> list[tuple[Any, ...]]:
    """What the engine's decoder made of the last requests, without rids and the seeds made from them."""
    events = pair.wait_event("request", since + count)[since:]
    return sorted(
        (event["tokens"], event["ids"], event["error"] or "", event["sampling"].split("seed=")[0]) for event in events
    )


def merged(answer: Answer) -> list[Any]:
    """A stream's events; those that carry content are joined, as how they are cut depends on time."""
    contents = [
        choice["delta"].get("content") for event in answer.events for choice in event["choices"] if choice.get("delta")
    ]
    others = [
        event
        for event in comparable(answer.events)
        if not any(choice.get("delta", {}).get("content") for choice in event["choices"])
    ]
    return ["".join(filter(None, contents)), *others]


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("build", BUILDS)
def test_answers_equal_those_without_the_sidecar(build: str, name: str, pairs: Pairs) -> None:
    options = REQUESTS[name]
    answers, requests = [], []
    for relay in (False, True):
        pair = pairs(build, "kimi_k25", relay=relay)
        before = len(pair.events())
        answer = pair.gateway.chat("Say hi.", **options)
        requests.append(seen(pair, before, options.get("n", 1)))
        answers.append((answer.status, comparable(answer.body), merged(answer)))
    assert answers[0] == answers[1]
    assert answers[0][0] == 200
    assert requests[0] == requests[1]


@pytest.mark.parametrize("build", BUILDS)
def test_a_client_that_leaves_aborts_its_request_in_the_engine(build: str, pairs: Pairs) -> None:
    pair = pairs(build, "kimi_k25", relay=True)
    aborts = len(pair.events("abort"))
    with pair.gateway.stream("mode=hang", max_tokens=4000) as stream:
        for _, _event in zip(range(4), stream, strict=False):
            pass
    event = pair.wait_event("abort", aborts + 1)[-1]
    assert event["known"]
    assert event["rid"] == pair.events()[-1]["rid"]


@pytest.mark.parametrize("build", BUILDS)
def test_outputs_may_go_past_the_sidecar(build: str, pair: Pairs) -> None:
    relay = pair(build, "kimi_k25", relay=True, sets=("relay.observe_outputs=false",))
    assert relay.gateway.chat("Say hi.").text == "hello"
    assert relay.gateway.chat("Say hi.", stream=True).text == "hello"
    metrics = relay.metrics()
    assert metrics["sidecar_relayed_outputs_total"] == 0
    assert metrics['sidecar_requests_total{dialect="tokenspeed",outcome="forwarded"}'] == 2


def test_the_books_balance(pairs: Pairs) -> None:
    pair = pairs(BUILDS[1], "kimi_k25", relay=True)
    for _ in range(20):
        assert pair.gateway.chat("Say hi.").status == 200
    wait_for("no request in flight", lambda: pair.metrics()["sidecar_inflight_requests"] == 0, 5)
    metrics = pair.metrics()
    received = metrics['sidecar_messages_received_total{kind="generate"}']
    assert received >= 20
    assert received == sum(value for name, value in metrics.items() if name.startswith("sidecar_requests_total"))
    wait_for("no rid is live", lambda: pair.metrics()["sidecar_remembered_rids"] == len(pair.events("abort")), 5)
