"""Hostile messages in both framings: one answer each, in a form that an engine decodes, and nobody else suffers."""

from __future__ import annotations

import logging
import pickle
import threading
from typing import Any

import pytest

from sidecar.context import Context
from sidecar.errors import Reason
from sidecar.outcome import Kind, Outcome, Result
from sidecar.pipeline import run
from sidecar.wire.framing import Framing
from sidecar.wire.tokenspeed import Request
from tests.build import context_of, decoded, frames, image_request, policy, request, sent
from tests.hostile import HOSTILE, Hostile, Segments
from tests.hostile.case import spoilt

CASES = [
    pytest.param(hostile, framing, id=f"{hostile.name} ({framing})")
    for hostile in HOSTILE
    for framing in Framing
    if framing is Framing.NATIVE or not hostile.native_only
]


@pytest.fixture(autouse=True)
def no_pickle_and_no_surprise(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """Nothing is unpickled, and no exception but a refusal is raised while a message is read."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    yield
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def context_for(hostile: Hostile, framing: Framing) -> Context:
    return context_of(hostile.spec, policy(framing, **hostile.rules), probe=Segments(hostile.segments))


def feed(hostile: Hostile, framing: Framing) -> tuple[Outcome, Context]:
    context = context_for(hostile, framing)
    for message in hostile.before(framing):
        assert run(message, context).result is Result.FORWARDED
    return run(hostile.frames(framing), context), context


def test_there_are_more_than_sixty() -> None:
    assert len({hostile.name for hostile in HOSTILE}) == len(HOSTILE) > 60
    assert sum(hostile.stops for hostile in HOSTILE) > 60


@pytest.mark.parametrize(("hostile", "framing"), CASES)
def test_one_answer_and_the_next_request_passes(hostile: Hostile, framing: Framing) -> None:
    outcome, context = feed(hostile, framing)
    if hostile.reason is None:
        assert (outcome.result, outcome.reason) == (Result.DROPPED, Reason.MALFORMED_REQUEST)
        assert outcome.kind in (Kind.UNREADABLE, Kind.CONTROL)
        assert outcome.messages == ()
    else:
        assert (outcome.kind, outcome.result) == (Kind.GENERATE, Result.REJECTED)
        assert outcome.reason is hostile.reason, outcome.message
        fields = decoded(sent(outcome), framing)
        assert len(fields) == Request.VALIDATION_ERROR + 1
        assert fields[Request.RID] == outcome.rid == "r"
        assert (fields[Request.INPUT_IDS], fields[Request.MULTIMODAL_INPUTS]) == ([], None)
        assert len(fields[Request.SAMPLING_PARAMS]) > 0
        assert fields[Request.VALIDATION_ERROR]
        assert len(sent(outcome)) == (2 if framing is Framing.TYPED else 1)
    good = request("good", ids=[1, 2, 3]) if not hostile.spec.multimodal or hostile.rules else image_request("good")
    assert run(frames(good, framing=framing), context).result is Result.FORWARDED


@pytest.mark.parametrize("framing", Framing)
def test_a_batch_of_all_of_them_is_accounted_for(framing: Framing) -> None:
    received: dict[Kind, int] = {}
    outcomes: dict[tuple[Kind, Result], int] = {}
    for hostile in HOSTILE:
        outcome, _ = feed(hostile, framing)
        kind = outcome.envelope.kind if outcome.envelope is not None else outcome.kind
        received[kind] = received.get(kind, 0) + 1
        outcomes[outcome.kind, outcome.result] = outcomes.get((outcome.kind, outcome.result), 0) + 1
    requests = sum(n for (kind, _), n in outcomes.items() if kind in (Kind.GENERATE, Kind.UNREADABLE))
    assert received[Kind.GENERATE] + received[Kind.UNREADABLE] == requests
    assert sum(outcomes.values()) == len(HOSTILE)


@pytest.mark.parametrize("framing", Framing)
def test_no_message_says_what_the_prompt_says(framing: Framing) -> None:
    secret = "a secret that a client typed"
    for fields in (
        request(input_text=secret, ids=[]),
        request(input_text=secret, ids=[1, "x"]),
        request(input_text=[secret]),
        request(custom_logit_processor=secret, ids=[]),
        request(ids=[secret]),
        request(session_params=[secret, 5]),
        request(input_extra_infos=[secret]),
        request(sampling=(secret,)),
        request(stream=secret),
    ):
        outcome = run(frames(fields, framing=framing), context_of(HOSTILE[0].spec, policy(framing)))
        assert outcome.result is Result.REJECTED
        assert secret not in outcome.message


def test_deep_nesting_on_a_thread_with_a_small_stack() -> None:
    deep = [hostile for hostile in HOSTILE if "nested arrays" in hostile.name]
    assert len(deep) == 2
    outcomes: list[Outcome] = []

    def work() -> None:
        outcomes.extend(feed(hostile, framing)[0] for hostile in deep for framing in Framing)

    previous = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=work)
        thread.start()
    finally:
        threading.stack_size(previous)
    thread.join(30)
    assert [outcome.reason for outcome in outcomes] == [Reason.TOO_LARGE] * 4


@pytest.mark.parametrize("lead", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"])
@pytest.mark.parametrize(
    "place", ["input_text", "input_ids", "sampling_params", "input_extra_infos", "multimodal_inputs"]
)
def test_headers_that_claim_more_than_there_is(lead: bytes, place: str) -> None:
    payload = spoilt(request(), **{place: lead + b"\xff\xff\xff\xff"})
    for framing in Framing:
        outcome = run(frames(payload, framing=framing), context_of(HOSTILE[0].spec, policy(framing)))
        assert (outcome.result, outcome.rid) == (Result.REJECTED, "r")
