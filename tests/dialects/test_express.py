"""The short way: whatever it lets through is what the long way makes of it, and it lets nothing else through."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.admission.memory import RidMemory
from sidecar.admission.policy import Limits
from sidecar.context import Context
from sidecar.dialects.express import MAX_TAILS, Express, remember_tail
from sidecar.outcome import Result
from sidecar.pipeline import run
from sidecar.wire.framing import Framing
from sidecar.wire.msgpack import Buffer
from sidecar.wire.native import Tail
from sidecar.wire.tokenspeed import Sampling
from tests.build import NORMALIZED, context, flat, frames, image_request, media, policy, request

FRAMINGS = (Framing.NATIVE, Framing.TYPED)
SEEDLESS = tuple(None if field == Sampling.SEED else value for field, value in zip(Sampling, NORMALIZED, strict=True))


def params(**changes: Any) -> list[Any]:
    """Sampling params with some fields changed."""
    values = list(SEEDLESS)
    for name, value in changes.items():
        values[Sampling[name.upper()]] = value
    return values


def fresh(rules: Context) -> Context:
    """The same context with nothing remembered."""
    return dataclasses.replace(rules, rids=RidMemory(0), tails={})


def short(rules: Context, message: Sequence[Buffer]) -> list[bytes] | None:
    """What the short way makes of a message."""
    found = Express(rules).read(message, sum(map(len, message)))
    if found is None:
        return None
    _, leaves, nbytes = found
    assert nbytes == sum(map(len, leaves))
    return flat(leaves)


def taught(message: Sequence[bytes], rules: Context) -> Context:
    """The context after a message has gone the long way."""
    rules = fresh(rules)
    run(message, rules)
    return rules


samplings = st.builds(
    params,
    max_new_tokens=st.sampled_from([32, 4000, -1]),
    temperature=st.sampled_from([0.0, 0.7, 1.0, float("nan")]),
    top_k=st.sampled_from([-1, 1, 50]),
    seed=st.sampled_from([None, None, 0, 7, 2**40, 2**63]),
    n=st.sampled_from([1, 1, 2]),
    stop=st.sampled_from([None, "x", ["x", "yz"]]),
    is_normalized=st.booleans(),
    stop_strs=st.sampled_from([None, []]),
)
fields = st.fixed_dictionaries(
    {},
    optional={
        "return_logprob": st.booleans(),
        "stream": st.booleans(),
        "http_worker_ipc": st.sampled_from([None, "ipc:///x"]),
        "input_text": st.sampled_from([None, "text"]),
        "error": st.sampled_from([None, "too bad"]),
        "unpadded": st.sampled_from([None, [1, 2]]),
        "mm": st.sampled_from([None, media()]),
        "count": st.integers(5, 25),
        "session_params": st.sampled_from([None, ["id", "rid", 0, False], 5]),
        "tail": st.sampled_from([(), ("new",)]),
    },
)
prompts = st.lists(st.sampled_from([0, 5, 200, 70_000, 248_319, 248_320, -1, 2**31, True]), max_size=5)


@given(
    samplings,
    fields,
    prompts,
    prompts,
    st.text(max_size=40),
    st.sampled_from(FRAMINGS),
    st.sampled_from(FRAMINGS),
    st.booleans(),
)
def test_the_short_way_leads_where_the_long_one_does(
    sampling: list[Any],
    others: dict[str, Any],
    first_ids: list[int],
    ids: list[int],
    rid: str,
    arrives: Framing,
    leaves: Framing,
    finalize: bool,
) -> None:
    rules = context(framing=arrives)
    rules.policy = policy(arrives, egress_framing=leaves, finalize_sampling=finalize, max_model_len=6)
    first, second = (
        frames(request(name, prompt, sampling, **others), framing=arrives)
        for name, prompt in (("first", first_ids), (rid, ids))
    )
    rules = taught(first, rules)
    assert len(rules.tails) <= 1
    found = short(rules, second)
    expected = run(second, fresh(rules))
    if found is not None:
        assert (expected.result, expected.reason) == (Result.FORWARDED, None)
        assert flat(expected.messages[0]) == found
    elif expected.result is Result.FORWARDED and rules.tails:
        assert len(rid.encode()) > 255


@pytest.mark.parametrize("arrives", FRAMINGS)
@pytest.mark.parametrize("leaves", FRAMINGS)
def test_a_request_like_one_before(arrives: Framing, leaves: Framing) -> None:
    rules = context(framing=arrives)
    rules.policy = policy(arrives, egress_framing=leaves, finalize_sampling=leaves is Framing.NATIVE)
    first, second = (frames(request(rid, [1, 2], params()), framing=arrives) for rid in ("a", "b"))
    assert short(rules, second) is None
    rules = taught(first, rules)
    assert short(rules, second) == flat(run(second, fresh(rules)).messages[0])


def test_what_needs_nothing_leaves_as_the_frames_that_came() -> None:
    message = frames(request("a", [1, 2], NORMALIZED), framing=Framing.TYPED)
    rules = taught(message, context(framing=Framing.TYPED))
    found = Express(rules).read(message, sum(map(len, message)))
    assert found is not None
    assert found[1] is message


@pytest.mark.parametrize(
    "message",
    [
        frames(request("b", [1], params()), b"aux"),
        frames(request("b", [1], params()), framing=Framing.TYPED),
        frames(image_request("b", sampling=params())),
        frames(msgpack.packb(request("b", [1], params())) + b"\0"),
        frames(msgpack.packb(request("b", [1], params()))[:-1]),
        [memoryview(msgpack.packb(request("b", [1], params())))],
        [],
    ],
    ids=["aux", "another framing", "an image", "a byte behind it", "truncated", "by reference", "nothing"],
)
def test_what_goes_the_long_way(message: list[Buffer]) -> None:
    rules = taught(frames(request("a", [1], params())), context())
    assert short(rules, frames(request("b", [1], params()))) is not None
    assert short(rules, message) is None


def test_the_number_of_fields_belongs_to_the_tail() -> None:
    packed = msgpack.packb(request("a", [1], params()))
    rules = taught([packed], context())
    assert packed[:3] == b"\xdc\0\x19"
    assert short(rules, [b"\xdc\0\x18" + packed[3:]]) is None
    assert short(rules, [b"\xdc\0\x1a" + packed[3:]]) is None


@pytest.mark.parametrize("limits", [{"message_bytes": 100}, {"frames": 0}])
def test_limits_hold(limits: dict[str, int]) -> None:
    rules = taught(frames(request("a", [1], params())), context())
    rules.policy = dataclasses.replace(rules.policy, limits=dataclasses.replace(Limits(), **limits))
    assert short(rules, frames(request("b", [1], params()))) is None


def test_a_long_message_is_looked_at_once() -> None:
    rules = taught(frames(request("a", [1], params())), context())
    for count, passes in ((8_000, True), (40_000, False)):
        assert (short(rules, frames(request("b", [1] * count, params()))) is not None) is passes


def test_a_context_has_one_short_way_of_its_own() -> None:
    rules = context()
    assert Express.of(rules) is Express.of(rules)
    other = dataclasses.replace(rules, tails={})
    assert Express.of(other) is not Express.of(rules)


def test_the_long_way_knows_the_short_one() -> None:
    rules = taught(frames(request("a", [1], params())), context())
    message = frames(request("b", [1], params()))
    passage = short(rules, message)
    outcome = run(message, rules)
    assert (outcome.result, outcome.rid, flat(outcome.messages[0])) == (Result.FORWARDED, "b", passage)
    assert run(message, dataclasses.replace(rules, rids=RidMemory(0))).result is Result.FORWARDED
    rules.rids = RidMemory(30)
    assert [run(message, rules).result for _ in range(2)] == [Result.FORWARDED, Result.DROPPED]


def test_a_length_that_is_learned_later_holds() -> None:
    rules = taught(frames(request("a", [1], params())), context())
    way, message = Express(rules).read, frames(request("b", [1] * 9, params()))
    assert way(message, 100) is not None
    rules.policy = dataclasses.replace(rules.policy, max_model_len=10)
    assert way(message, 100) is None


def test_what_a_pool_for_media_refuses_is_not_remembered() -> None:
    rules = taught(frames(request("a", [1], params())), context(text_requests="reject"))
    assert rules.tails == {}


def test_tails_are_bounded() -> None:
    rules = context()
    for number in range(MAX_TAILS + 1):
        remember_tail(rules, b"%d" % number, Tail(25, None))
    assert len(rules.tails) == 1


def test_a_long_tail_is_not_remembered() -> None:
    rules = taught(frames(request("a", [1], params(json_schema="x" * 600))), context())
    assert rules.tails == {}
