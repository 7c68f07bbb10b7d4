"""Messages of every kind in both framings, and tensors on their way through."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import msgpack
import pytest

from sidecar.context import Context, policy_of
from sidecar.errors import Reason
from sidecar.outcome import Kind, Outcome, Result
from sidecar.pipeline import encode_abort, open_message, process, run
from sidecar.settings import Settings
from sidecar.wire.framing import Framing
from sidecar.wire.tokenspeed import Item, Media, Request
from tests.build import (
    IMAGE,
    QWEN,
    TEXT,
    context,
    context_of,
    decoded,
    flat,
    frames,
    grid,
    image_request,
    item,
    media,
    patches,
    policy,
    request,
    sent,
    tensor,
)
from tests.pipeline import outcome


def convert(message: Sequence[bytes], ingress: Framing, egress: Framing, **rules: Any) -> Outcome:
    return run(message, context_of(TEXT, dataclasses.replace(policy(ingress, **rules), egress_framing=egress)))


def test_aborts_in_both_framings() -> None:
    native = [msgpack.packb(["AbortReq", "a", None])]
    typed = [b"\1", msgpack.packb(["a", "b"])]
    passed = convert(native, Framing.NATIVE, Framing.NATIVE)
    assert (passed.kind, passed.result, passed.rids, passed.messages[0]) == (
        Kind.ABORT,
        Result.FORWARDED,
        ("a",),
        native,
    )
    assert convert(typed, Framing.TYPED, Framing.TYPED).messages[0] is typed
    assert [flat(m) for m in convert(native, Framing.NATIVE, Framing.TYPED).messages] == [[b"\1", msgpack.packb(["a"])]]
    assert [flat(m) for m in convert(typed, Framing.TYPED, Framing.NATIVE).messages] == [
        [msgpack.packb(["AbortReq", rid, None])] for rid in ("a", "b")
    ]
    assert encode_abort([], Framing.NATIVE) == []
    assert convert([b"\1", b"\x90"], Framing.TYPED, Framing.NATIVE).messages == []


@pytest.mark.parametrize("payload", [b"\xc0", b"\x91\5", b"\x91\xa1\xff", b"\xdd\xff\xff\xff\xff", b"", b"\x90\x90"])
def test_abort_lists_that_cannot_be_used(payload: bytes) -> None:
    found = convert([b"\1", payload], Framing.TYPED, Framing.TYPED)
    assert (found.kind, found.result, found.messages) == (Kind.ABORT, Result.DROPPED, ())
    assert found.reason is not None


@pytest.mark.parametrize("rid", ["", "unknown", "é" * 500_000])
def test_aborts_of_any_rid_pass(rid: str) -> None:
    assert convert([b"\1", msgpack.packb([rid])], Framing.TYPED, Framing.TYPED).rids == (rid,)
    assert convert([msgpack.packb(["AbortReq", rid])], Framing.NATIVE, Framing.NATIVE).rids == (rid,)


def test_ten_thousand_rids_in_one_abort() -> None:
    rids = [f"rid-{number}" for number in range(10_000)]
    found = convert([b"\1", msgpack.packb(rids)], Framing.TYPED, Framing.NATIVE)
    assert list(found.rids) == rids
    assert len(found.messages) == 10_000


def test_control_messages() -> None:
    flush = [msgpack.packb(["FlushCacheReqInput", None, None])]
    allowed = {"control_tags": frozenset({"AbortReq", "FlushCacheReqInput"})}
    assert convert(flush, Framing.NATIVE, Framing.NATIVE, **allowed).messages[0] is flush
    assert convert(flush, Framing.NATIVE, Framing.NATIVE).result is Result.DROPPED
    away = convert(flush, Framing.NATIVE, Framing.TYPED, **allowed)
    assert (away.kind, away.result, away.reason, away.message) == (
        Kind.CONTROL,
        Result.DROPPED,
        None,
        "this message has no form in typed framing",
    )


def test_typed_messages_of_unknown_types_pass_verbatim() -> None:
    message = [b"\x07", b"\xc1\xc1", b"aux"]
    found = convert(message, Framing.TYPED, Framing.TYPED)
    assert (found.kind, found.result, found.messages[0]) == (Kind.CONTROL, Result.FORWARDED, message)
    assert convert(message, Framing.TYPED, Framing.NATIVE).result is Result.DROPPED


def test_messages_without_a_payload() -> None:
    for message, framing in (([], Framing.NATIVE), ([], Framing.TYPED), ([b"\0"], Framing.TYPED)):
        found = convert(message, framing, framing)
        assert (found.kind, found.result, found.reason) == (Kind.UNREADABLE, Result.DROPPED, Reason.MALFORMED_REQUEST)


def test_a_request_changes_its_framing() -> None:
    native = frames(image_request())
    rules = dataclasses.replace(policy(Framing.NATIVE, finalize_sampling=False), egress_framing=Framing.TYPED)
    typed = sent(run(native, context_of(QWEN, rules)))
    assert typed[0] == b"\0"
    assert typed[1:] == sent(run(native, context(finalize_sampling=False)))
    refused = sent(run(frames(request(ids=[])), context_of(QWEN, rules)))
    assert (refused[0], len(refused)) == (b"\0", 2)


def test_limits_come_from_the_policy() -> None:
    settings = Settings()
    rules = policy_of(settings)
    assert (rules.limits.message_bytes, rules.limits.frames, rules.limits.items, rules.limits.nesting) == (
        settings.limits.message_bytes,
        settings.limits.frames,
        settings.limits.items,
        settings.limits.nesting,
    )
    assert rules.finalize_sampling
    made = Context.from_settings(settings, QWEN)
    assert made.planner is not None
    assert Context.from_settings(settings, TEXT).planner is None
    assert run(frames(image_request()), made).result is Result.FORWARDED


def test_what_is_slow_is_said_before_it_is_done() -> None:
    def slow(message: Any, *aux: bytes, **rules: Any) -> bool:
        return open_message(frames(message, *aux), context(**rules)).slow

    big = tensor(patches(4096))
    assert not slow(request(ids=[1] * 100_000))
    assert not slow(image_request())
    assert slow(request(mm=media(item(feature=big))))
    assert not slow(request(mm=media(item(hash=5, feature=big))))
    assert slow(request(mm=media(item(hash=5, feature=big))), trust_client_hash=False)
    assert slow(request(ids=[1] * 100_000, mm=media(item(hash=5))))


def test_existing_aux_frames_keep_their_numbers() -> None:
    feature = patches(16)
    message = request(mm=media(item(feature=["float32", [16, 24], 2])))
    found = outcome(message, None, b"unreferenced", feature.tobytes(), b"another")
    payload, *aux = sent(found)
    assert aux[:3] == [b"unreferenced", feature.tobytes(), b"another"]
    assert decoded([payload])[Request.MULTIMODAL_INPUTS][Media.MM_ITEMS][0][Item.FEATURE] == ["float32", [16, 24], 2]


def test_inline_tensors_are_hoisted_by_reference() -> None:
    feature = patches(1024)
    entry = item(offsets=((0, 255),), feature=tensor(feature), data={"image_grid_thw": grid((1, 32, 32))})
    message = frames(request(ids=[IMAGE] * 256, mm=media(entry)))
    found = run(message, context())
    (out,) = found.messages
    hoisted = [frame for frame in out[1:] if bytes(frame) == feature.tobytes()]
    assert len(hoisted) == 1
    assert isinstance(hoisted[0], memoryview)
    assert hoisted[0].obj is message[0]
    assert feature.tobytes() in bytes(run(message, context(hoist_bytes=0)).messages[0][0])


def test_threads_do_not_mix_two_messages() -> None:
    """Each message's tensors are its own, however many threads read at once."""
    spec = context()
    expected = {}
    for number in range(8):
        message = frames(
            request(f"r{number}", mm=media(item(feature=["float32", [16, 24], 1]))), patches(16, number).tobytes()
        )
        expected[number] = (message, sent(process(open_message(message, spec), spec)))
    wrong: list[int] = []

    def work(number: int) -> None:
        message, first = expected[number]
        for _ in range(40):
            if sent(process(open_message(message, spec), spec)) != first:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert len({first[-1] for _, first in expected.values()}) <= len(expected)
