"""What one request means for the next: rids, hashes, pads and segments, one after the other and side by side."""

from __future__ import annotations

import dataclasses
from typing import Any

from sidecar.context import Context, NoSegments
from sidecar.errors import Reason
from sidecar.outcome import Outcome, Result
from sidecar.pipeline import commit, open_message, process
from sidecar.wire.tokenspeed import Item, Media, Request
from tests.build import (
    IMAGE,
    QWEN,
    TEXT,
    context,
    context_of,
    decoded,
    frames,
    grid,
    item,
    media,
    patches,
    policy,
    prompt,
    request,
    sent,
    tensor,
)
from tests.hostile import Segments
from tests.pipeline import SHM, media_of, outcome, refusal, upstream


def test_trust() -> None:
    first = outcome(request("a", mm=media(item(hash=5))))
    assert media_of(first)[Media.MM_ITEMS][0][Item.HASH] == 5
    distrusted = outcome(request("b", mm=media(item(hash=5, pad=1_000_005))), context(trust_client_hash=False))
    own = outcome(request("c", mm=media(item())))
    assert media_of(distrusted)[Media.MM_ITEMS][0][1:3] == media_of(own)[Media.MM_ITEMS][0][1:3]
    rules = context(trust_client_hash=False)
    assert refusal(upstream(), rules)[0] is Reason.HASH_CONFLICT
    shared = context_of(QWEN, policy(trust_client_hash=False), probe=Segments({"psm_1": 1536}))
    assert refusal(request(mm=media(item(hash=5, shm=SHM))), shared)[0] is Reason.HASH_MISSING


def test_a_pad_that_came_is_kept() -> None:
    entry = media_of(outcome(request(mm=media(item(pad=1_234_567)))))[Media.MM_ITEMS][0]
    assert entry[Item.HASH : Item.PAD_VALUE + 1] == [None, 1_234_567]


def test_a_hash_stands_for_one_content_over_requests() -> None:
    now = [0.0]
    rules = dataclasses.replace(context(), now=lambda: now[0])
    other = item(hash=5, offsets=((2, 7),), data={"image_grid_thw": grid((1, 4, 6))}, feature=tensor(patches(24)))
    longer = request("b", ids=prompt(11, 12, (IMAGE, 6)), mm=media(other))
    assert outcome(request("a", mm=media(item(hash=5))), rules).result is Result.FORWARDED
    assert refusal(longer, rules)[0] is Reason.HASH_CONFLICT
    now[0] = 30.0
    longer[Request.RID] = "c"
    assert outcome(longer, rules).result is Result.FORWARDED


def test_refused_requests_are_not_remembered_as_contents() -> None:
    rules = context()
    bad = request("a", mm=media(item(hash=5, pad=1_000_005), positions=tensor([1])))
    assert refusal(bad, rules)[0] is Reason.MROPE_INVALID
    assert len(rules.contents) == 0


def test_one_image_in_two_spellings_of_its_dtype() -> None:
    rules = context()
    for rid, dtype in (("a", "float32"), ("b", "<f4"), ("c", "float")):
        assert (
            outcome(request(rid, mm=media(item(hash=5, feature=tensor(patches(16), dtype)))), rules).result
            is Result.FORWARDED
        )


def test_a_rid_again() -> None:
    now = [0.0]
    rules = dataclasses.replace(context(TEXT), now=lambda: now[0])
    assert outcome(request("a", ids=[1]), rules).result is Result.FORWARDED
    again = outcome(request("a", ids=[1]), rules)
    assert (again.result, again.reason, again.messages, again.unlink) == (Result.DROPPED, Reason.DUPLICATE_RID, (), ())
    now[0] = 29.9
    assert outcome(request("a", ids=[]), rules).result is Result.DROPPED
    now[0] = 30.0
    assert outcome(request("a", ids=[]), rules).result is Result.REJECTED
    assert outcome(request("a", ids=[1]), rules).result is Result.DROPPED, (
        "the refused one is live in the engine as well"
    )


def test_a_duplicate_never_loses_its_segment() -> None:
    rules = context_of(QWEN, policy(), probe=Segments({"psm_1": 1536}))
    message = request("a", mm=media(item(hash=1, shm=SHM)))
    assert outcome(message, rules).segments == {"psm_1": (hash("psm_1"),)}
    again = outcome(message, rules)
    assert (again.reason, again.unlink) == (Reason.DUPLICATE_RID, ())


def twins(rules: Context, first: Any, second: Any) -> list[Outcome]:
    """Two requests that are processed side by side, then handed over one after the other."""
    found = [process(open_message(frames(message), rules), rules) for message in (first, second)]
    return [commit(entry, rules) for entry in found]


def test_two_with_one_rid_side_by_side() -> None:
    one, other = twins(context(TEXT), request("a", ids=[1]), request("a", ids=[2]))
    assert (one.result, other.result, other.reason) == (Result.FORWARDED, Result.DROPPED, Reason.DUPLICATE_RID)


def test_two_contents_under_one_hash_side_by_side() -> None:
    other = item(hash=5, offsets=((2, 7),), data={"image_grid_thw": grid((1, 4, 6))}, feature=tensor(patches(24)))
    one, two = twins(
        context(), request("a", mm=media(item(hash=5))), request("b", ids=prompt(11, 12, (IMAGE, 6)), mm=media(other))
    )
    assert (one.result, two.result, two.reason) == (Result.FORWARDED, Result.REJECTED, Reason.HASH_CONFLICT)
    assert decoded(sent(two))[Request.VALIDATION_ERROR] == two.message


def test_one_segment_in_two_requests_side_by_side() -> None:
    rules = context_of(QWEN, policy(), probe=Segments({"psm_1": 1536}))
    one, two = twins(
        rules, request("a", mm=media(item(hash=1, shm=SHM))), request("b", mm=media(item(hash=2, shm=SHM)))
    )
    assert (one.result, two.result, two.reason) == (Result.FORWARDED, Result.REJECTED, Reason.SHM_INVALID)
    assert two.unlink == []


def test_a_segment_that_goes_while_its_request_is_processed() -> None:
    probe = Segments({"psm_1": 1536})
    rules = context_of(QWEN, policy(), probe=probe)
    found = process(open_message(frames(request(mm=media(item(hash=1, shm=SHM)))), rules), rules)
    assert found.result is Result.FORWARDED
    probe.sizes.clear()
    assert commit(found, rules).reason is Reason.SHM_INVALID


def test_segments_of_refused_requests_are_orphans() -> None:
    rules = context_of(QWEN, policy(), probe=Segments({"psm_1": 1, "psm_2": 1}))
    two = media(item(hash=1, shm=SHM), item(hash=2, shm={**SHM, "shm_name": "psm_2"}))
    found = outcome(request(ids=[2**31], mm=two), rules)
    assert (found.result, found.unlink) == (Result.REJECTED, ["psm_1", "psm_2"])
    outside = outcome(request("b", ids=[], mm=media(item(hash=1, shm={**SHM, "shm_name": "/etc/passwd"}))), rules)
    assert outside.unlink == []


def test_a_handle_that_was_forwarded_is_not_an_orphan() -> None:
    rules = context_of(QWEN, policy(), probe=Segments({"psm_1": 1536}))
    assert outcome(request("a", mm=media(item(hash=1, shm=SHM))), rules).result is Result.FORWARDED
    again = outcome(request("b", mm=media(item(hash=1, shm=SHM))), rules)
    assert (again.reason, again.unlink) == (Reason.SHM_INVALID, [])


def test_a_place_without_shared_memory() -> None:
    assert NoSegments().stat("psm_1") is None
    NoSegments().unlink("psm_1")
    assert refusal(request(mm=media(item(hash=1, shm=SHM))))[0] is Reason.SHM_INVALID
