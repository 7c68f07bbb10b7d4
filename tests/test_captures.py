"""Recorded messages of the real gateway: what it materialized passes untouched, what it left out is filled in."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest

from sidecar.outcome import Kind, Result
from sidecar.pipeline import run
from sidecar.wire.framing import Framing
from sidecar.wire.tokenspeed import Media, Request
from tests.build import decoded, flat, policy, sent, values
from tests.cases import Capture, captures

OPEN = ("ts-mropefalse-aux-qwen3_5-image-1", "ts-mropefalse-aux-qwen3_5-image-two-sizes")
"""Requests that the gateway sends without M-RoPE positions."""

FILLED = [capture for capture in captures() if not capture.abort and capture.case not in OPEN]
ABORTS = [capture for capture in captures() if capture.abort]


def capture(case: str) -> Capture:
    (found,) = [entry for entry in captures() if entry.case == case]
    return found


def test_there_is_a_recording_of_every_model() -> None:
    assert {entry.spec.model_type for entry in captures()} == {"kimi_k25", "kimi_k3", "llama4", "qwen3_5"}
    assert len(FILLED) == 15
    assert len(ABORTS) == 1


@pytest.mark.parametrize("entry", FILLED, ids=lambda entry: f"{entry.case}/{entry.message}")
def test_what_needs_nothing_leaves_byte_identical(entry: Capture) -> None:
    outcome = run(entry.frames, entry.context())
    assert (outcome.kind, outcome.result) == (Kind.GENERATE, Result.FORWARDED), outcome.message
    assert outcome.messages[0] is entry.frames


@pytest.mark.parametrize("entry", ABORTS, ids=lambda entry: entry.case)
def test_aborts_pass(entry: Capture) -> None:
    outcome = run(entry.frames, entry.context())
    assert (outcome.kind, outcome.result, outcome.messages[0]) == (Kind.ABORT, Result.FORWARDED, entry.frames)
    assert list(outcome.rids) == msgpack.unpackb(entry.frames[1])


def test_an_abort_list_becomes_an_abort_a_rid_in_native_framing() -> None:
    (entry,) = ABORTS
    rules = dataclasses.replace(policy(Framing.TYPED), egress_framing=Framing.NATIVE)
    outcome = run(entry.frames, entry.context(rules))
    rids = msgpack.unpackb(entry.frames[1])
    assert [msgpack.unpackb(message[0]) for message in outcome.messages] == [["AbortReq", rid, None] for rid in rids]


@pytest.mark.parametrize("case", OPEN)
def test_positions_are_those_of_the_gateways_own_server(case: str) -> None:
    entry, twin = capture(case), capture(case.replace("ts-mropefalse-aux", "tsgrpc-facts"))
    out = sent(run(entry.frames, entry.context()))
    ours, theirs = decoded(out, Framing.TYPED), decoded(twin.frames, Framing.TYPED)
    assert ours[Request.INPUT_IDS] == theirs[Request.INPUT_IDS]
    assert ours[Request.INPUT_IDS_UNPADDED] == theirs[Request.INPUT_IDS_UNPADDED]
    mine, other = ours[Request.MULTIMODAL_INPUTS], theirs[Request.MULTIMODAL_INPUTS]
    assert mine[Media.MROPE_POSITION_DELTA_SCALAR] == other[Media.MROPE_POSITION_DELTA_SCALAR]
    for field in (Media.MROPE_POSITIONS, Media.MROPE_POSITION_DELTA):
        a, b = values(mine[field], out[2:]), values(other[field], twin.frames[2:])
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@pytest.mark.parametrize("case", OPEN)
def test_nothing_else_changes(case: str) -> None:
    entry = capture(case)
    out = sent(run(entry.frames, entry.context()))
    came, left = decoded(entry.frames, Framing.TYPED), decoded(out, Framing.TYPED)
    filled = slice(Media.MROPE_POSITIONS, Media.MROPE_POSITION_DELTA_SCALAR + 1)
    assert came[Request.MULTIMODAL_INPUTS][filled] == [None] * 3
    left[Request.MULTIMODAL_INPUTS][filled] = [None] * 3
    assert left == came
    assert out[2 : len(entry.frames)] == entry.frames[2:]
    assert len(out) == len(entry.frames) + 1


@pytest.mark.parametrize("case", OPEN)
def test_passthrough_touches_nothing(case: str) -> None:
    entry = capture(case)
    outcome = run(entry.frames, entry.context(dataclasses.replace(policy(Framing.TYPED), upstream="passthrough")))
    assert outcome.messages[0] is entry.frames


@pytest.mark.parametrize("framing", Framing)
@pytest.mark.parametrize("entry", captures(), ids=lambda entry: f"{entry.case}/{entry.message}")
def test_what_leaves_can_come_in_again(entry: Capture, framing: Framing) -> None:
    if entry.abort:
        frames: list[bytes] = entry.frames
        rules = policy(Framing.TYPED)
    else:
        frames = entry.frames if framing is Framing.TYPED else entry.frames[1:]
        rules = policy(framing)
    first = sent(run(frames, entry.context(rules)))
    second = run(first, entry.context(rules))
    assert (second.result, flat(second.messages[0])) == (Result.FORWARDED, first), second.message


@pytest.mark.parametrize("entry", [*FILLED, *map(capture, OPEN)], ids=lambda entry: f"{entry.case}/{entry.message}")
def test_framings_convert_into_each_other(entry: Capture) -> None:
    def out(frames: list[bytes], ingress: Framing, egress: Framing) -> list[bytes]:
        rules = dataclasses.replace(policy(ingress), egress_framing=egress, finalize_sampling=False)
        return sent(run(frames, entry.context(rules)))

    typed = out(entry.frames, Framing.TYPED, Framing.TYPED)
    assert out(entry.frames, Framing.TYPED, Framing.NATIVE) == typed[1:]
    assert out(entry.frames[1:], Framing.NATIVE, Framing.TYPED) == typed
    assert out(entry.frames[1:], Framing.NATIVE, Framing.NATIVE) == typed[1:]


def with_tails(message: list[bytes], tail: list[Any]) -> list[bytes]:
    """A typed request with unknown fields behind the known ones of request, media, items and sampling params."""
    fields = decoded(message, Framing.TYPED)
    fields += [None] * (len(Request) - len(fields)) + tail
    fields[Request.SAMPLING_PARAMS] += tail
    media = fields[Request.MULTIMODAL_INPUTS]
    media += [None] * (len(Media) - len(media)) + tail
    for item in media[Media.MM_ITEMS]:
        item += [None] * (10 - len(item)) + tail
    return [message[0], msgpack.packb(fields), *message[2:]]


@pytest.mark.parametrize("framing", Framing)
@pytest.mark.parametrize("case", [*OPEN, "kimi_k25-image-1", "llama4-image-1"])
def test_unknown_trailing_fields_survive_verbatim(case: str, framing: Framing) -> None:
    entry = capture(case)
    tail = [{"later": [1, 2.5, None]}, "x" * 300, [[7]]]
    message = with_tails(entry.frames, tail)
    frames = message if framing is Framing.TYPED else message[1:]
    out = sent(run(frames, entry.context(policy(framing))))
    fields = decoded(out, framing)
    media = fields[Request.MULTIMODAL_INPUTS]
    assert fields[len(Request) :] == media[len(Media) :] == tail
    assert all(item[10:] == tail for item in media[Media.MM_ITEMS])
    assert fields[Request.SAMPLING_PARAMS][29:] == tail
    # four more of the tail's own bytes than there were: nothing was decoded and encoded anew
    packed = b"".join(map(msgpack.packb, tail))
    assert out[framing is Framing.TYPED].count(packed) == 3 + len(media[Media.MM_ITEMS])
