"""What is done to a request: materialization, the gate, ownership of positions, the order of the rules."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import numpy as np
import pytest

from sidecar.errors import Reason
from sidecar.outcome import Kind, Result
from sidecar.pipeline import run
from sidecar.wire.framing import Framing
from sidecar.wire.tokenspeed import Item, Media, Request
from tests.build import (
    BARE,
    IMAGE,
    KIMI,
    LLAMA4,
    NORMALIZED,
    OMNI,
    QWEN,
    SAMPLING,
    TEXT,
    VIDEO,
    context,
    context_of,
    decoded,
    frames,
    grid,
    image_request,
    item,
    media,
    patches,
    policy,
    prompt,
    request,
    sent,
    tensor,
    values,
)
from tests.hostile import Segments
from tests.pipeline import SHM, UNPADDED, media_of, outcome, refusal, upstream


def test_an_image_is_materialized() -> None:
    found = outcome(image_request())
    assert (found.kind, found.result, found.dialect, found.rid) == (Kind.GENERATE, Result.FORWARDED, "tokenspeed", "r")
    payload, *aux = sent(found)
    fields = decoded([payload])
    (entry,) = fields[Request.MULTIMODAL_INPUTS][Media.MM_ITEMS]
    pad = entry[Item.PAD_VALUE]
    assert fields[Request.INPUT_IDS] == prompt(11, 12, (pad, 4), 13, 14)
    assert fields[Request.INPUT_IDS_UNPADDED] == UNPADDED
    assert pad == 1_000_000 + entry[Item.HASH] % 715_494_549
    positions = values(fields[Request.MULTIMODAL_INPUTS][Media.MROPE_POSITIONS], aux)
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 4, 5],
        [0, 1, 2, 2, 3, 3, 4, 5],
        [0, 1, 2, 3, 2, 3, 4, 5],
    ]
    assert values(fields[Request.MULTIMODAL_INPUTS][Media.MROPE_POSITION_DELTA]).tolist() == [[-2]]
    assert fields[Request.MULTIMODAL_INPUTS][Media.MROPE_POSITION_DELTA_SCALAR] == -2
    (note,) = found.media
    assert (note.tokens, note.pad_value, note.hash, note.hashed) == (4, pad, entry[Item.HASH], True)
    assert (found.substituted, found.delta, found.unlink) == (4, -2, ())


def test_stages_are_timed_in_their_order() -> None:
    laps: list[str] = []
    run(frames(image_request()), context(), laps.append)
    assert laps == ["admit", "hash", "positions", "edit"]
    laps.clear()
    run(frames(request(ids=[1, 2])), context(TEXT), laps.append)
    assert laps == ["admit", "edit"]


@pytest.mark.parametrize("framing", Framing)
def test_text_that_needs_nothing_leaves_as_the_frames_that_came(framing: Framing) -> None:
    rules = context(TEXT, framing)
    for rid in ("a", "b", "c"):
        message = frames(request(rid, ids=[1, 2, 3]), b"unreferenced", framing=framing)
        found = run(message, rules)
        assert found.messages[0] is message


def test_open_sampling_is_finalized_for_native_alone() -> None:
    rules = context(TEXT)
    for rid in ("a", "b"):  # the second time by its form
        fields = decoded(sent(outcome(request(rid, ids=[1], sampling=SAMPLING), rules)))
        assert len(fields[Request.SAMPLING_PARAMS]) == 29
    typed = frames(request(ids=[1], sampling=SAMPLING), framing=Framing.TYPED)
    assert run(typed, context(TEXT, Framing.TYPED)).messages[0] is typed


def test_frames_as_views_give_the_same() -> None:
    message = frames(image_request())
    expected = sent(run(message, context()))
    assert sent(run([memoryview(frame) for frame in message], context())) == expected


@pytest.mark.parametrize("spec", [QWEN, OMNI, KIMI, TEXT])
def test_no_items_is_text(spec: Any) -> None:
    message = frames(request(ids=[1, 2], mm=media()), framing=Framing.TYPED)
    assert run(message, context(spec, Framing.TYPED)).messages[0] is message


def test_the_form_of_one_text_request_says_nothing_of_another() -> None:
    rules = context(TEXT)
    assert outcome(request("a", ids=[1, 2]), rules).result is Result.FORWARDED
    assert refusal(request("b", ids=[1, 2**31]), rules)[0] is Reason.TOKEN_IDS_INVALID
    assert refusal(request("c", ids=[]), rules)[0] is Reason.PROMPT_EMPTY
    assert refusal(request("d", ids=[1], stream=5), rules)[0] is Reason.MALFORMED_REQUEST
    limited = context_of(TEXT, policy(max_model_len=8))
    assert outcome(request("e", ids=[1]), limited).result is Result.FORWARDED
    assert refusal(request("f", ids=[1] * 7), limited)[0] is Reason.PROMPT_TOO_LONG
    assert refusal(request("g", ids=[1] * 7, error="before"), limited) == (
        Reason.PROMPT_TOO_LONG,
        outcome(request("h", ids=[1] * 7), limited).message,
    )


def test_stripped_media_is_neither_opened_nor_unlinked() -> None:
    rules = context_of(QWEN, policy(Framing.TYPED, language_model_only=True, role="decode"), probe=Segments({}))
    found = outcome(request(mm=media(item(hash=1, shm=SHM)), tail=["later"]), rules, b"aux")
    fields = decoded(sent(found), Framing.TYPED)
    assert (found.result, found.unlink, found.segments) == (Result.FORWARDED, (), {})
    assert (fields[Request.MULTIMODAL_INPUTS], fields[Request.INPUT_IDS]) == (None, UNPADDED)
    assert fields[25:] == ["later"]
    assert len(sent(found)) == 2


def test_upstream_media_gets_the_positions_that_it_lacks() -> None:
    rules = context(framing=Framing.TYPED)
    found = outcome(upstream(), rules)
    fields, came = decoded(sent(found), Framing.TYPED), msgpack.unpackb(msgpack.packb(upstream()))
    assert (found.delta, found.substituted) == (-2, 0)
    left = fields[Request.MULTIMODAL_INPUTS]
    left[Media.MROPE_POSITIONS : Media.MROPE_POSITION_DELTA_SCALAR + 1] = [None] * 3
    assert fields == came
    passed = frames(upstream(), framing=Framing.TYPED)
    assert run(passed, context(framing=Framing.TYPED, upstream="passthrough")).messages[0] is passed


@pytest.mark.parametrize("positions", [None, tensor(np.arange(24).reshape(3, 8))])
@pytest.mark.parametrize("delta", [None, tensor([[-2]])])
@pytest.mark.parametrize("scalar", [None, -2])
@pytest.mark.parametrize("ownership", ["any-field", "positions"])
@pytest.mark.parametrize("role", ["colocated", "prefill", "decode"])
def test_all_eight_combinations(positions: Any, delta: Any, scalar: Any, ownership: str, role: str) -> None:
    given = {"positions": positions, "delta": delta, "scalar": scalar}
    rules = context(framing=Framing.TYPED, mrope_ownership=ownership, role=role)
    found = outcome(request(mm=media(item(), **given)), rules)
    left = media_of(found, Framing.TYPED)
    alone = positions is None and (delta is not None or scalar is not None)
    computed = positions is None and not (alone and ownership == "any-field")
    assert (found.delta is not None) is computed
    assert found.delta_without_positions is (alone and ownership == "any-field" and role != "decode")
    if computed:
        assert left[Media.MROPE_POSITIONS][1] == [3, 8]
        assert (left[Media.MROPE_POSITION_DELTA][1], left[Media.MROPE_POSITION_DELTA_SCALAR]) == ([1, 1], -2)
    else:
        expected = msgpack.unpackb(msgpack.packb([positions, delta, scalar]))
        assert left[Media.MROPE_POSITIONS : Media.MROPE_POSITION_DELTA_SCALAR + 1] == expected


def test_a_model_without_mrope_gets_nothing() -> None:
    feature = tensor(np.ones((16, 3, 2, 2), np.float32))
    entry = item(offsets=((1, 4),), feature=feature, data={"grid_thws": grid((1, 4, 4))})
    found = outcome(request(ids=prompt(1, (163605, 4)), mm=media(entry)), context(KIMI))
    assert (found.result, found.delta) == (Result.FORWARDED, None)
    assert media_of(found)[Media.MROPE_POSITIONS : Media.MROPE_POSITION_DELTA_SCALAR + 1] == [None] * 3


def test_an_unknown_family_is_never_linear_by_silence() -> None:
    unknown = dataclasses.replace(BARE, mrope_unknown=True)
    entry = media(item(data={}))
    assert refusal(request(ids=prompt(1, 2, (77, 4)), mm=entry), context(unknown))[0] is Reason.MROPE_UNSUPPORTED
    given = media(item(data={}), positions=tensor(np.zeros((3, 6), np.int64)))
    assert outcome(request(ids=prompt(1, 2, (77, 4)), mm=given), context(unknown)).result is Result.FORWARDED


def test_a_preset_error_passes_verbatim_if_all_else_is_well() -> None:
    for message in (request(ids=[1], error="no"), request(mm=media(item()), error="no")):
        passed = frames(message, framing=Framing.TYPED)
        assert run(passed, context(framing=Framing.TYPED)).messages[0] is passed


def test_a_preset_error_is_kept_where_the_rest_is_refused() -> None:
    found = outcome(request(ids=[1, 2**31], error="the first reason"))
    assert (found.result, found.reason) == (Result.REJECTED, Reason.TOKEN_IDS_INVALID)
    assert decoded(sent(found))[Request.VALIDATION_ERROR] == "the first reason"
    empty = outcome(request(ids=[], error=""))
    assert decoded(sent(empty))[Request.VALIDATION_ERROR] == empty.message


def test_the_first_rule_in_the_order_of_the_steps_wins() -> None:
    """Each request breaks one rule more than the next; the earliest one is named."""
    bad_sampling = (*NORMALIZED[:3], float("nan"), *NORMALIZED[4:])
    broken_feature = ["float32", [1], b""]
    steps = [
        (
            request(ids=[], stream=5, sampling=bad_sampling, mm=media(item(feature=broken_feature))),
            Reason.MALFORMED_REQUEST,
        ),
        (request(ids=[], sampling=bad_sampling, mm=media(item(feature=broken_feature))), Reason.MALFORMED_TENSOR),
        (request(ids=[2**31], sampling=bad_sampling, mm=media(item(offsets=None))), Reason.SAMPLING_INVALID),
        (request(ids=[2**31], mm=media(item(offsets=None))), Reason.TOKEN_IDS_INVALID),
        (request(ids=[], mm=media(item(offsets=None))), Reason.PROMPT_EMPTY),
        (request(ids=[1], mm=media(item(3, offsets=None, feature=None))), Reason.OFFSETS_INVALID),
        (request(ids=[1] * 8, mm=media(item(1, data={}, feature=None))), Reason.PLACEHOLDER_MISMATCH),
        (request(mm=media(item(data={"image_grid_thw": tensor([1])}, feature=None))), Reason.GRID_INVALID),
        (request(mm=media(item(data={}, feature=None))), Reason.GRID_MISMATCH),
        (request(mm=media(item(feature=None, pad=5))), Reason.FEATURE_MISSING),
        (request(mm=media(item(feature=tensor(np.zeros(4)), pad=5))), Reason.FEATURE_INVALID),
        (request(mm=media(item(pad=5), positions=tensor([1]))), Reason.PAD_VALUE_INVALID),
        (request(mm=media(item(hash=1, shm=SHM), positions=tensor([1]))), Reason.SHM_INVALID),
        (request(mm=media(item(), positions=tensor([1]))), Reason.MROPE_INVALID),
    ]
    assert [refusal(message)[0] for message, _ in steps] == [reason for _, reason in steps]


def test_every_family() -> None:
    omni = media(
        item(1, offsets=((1, 4),), feature=tensor(patches(16))),
        item(3, offsets=((6, 8),), feature=tensor(patches(3, 1)), data={"audio_feature_lengths": tensor([20])}),
        item(
            2,
            offsets=((10, 13),),
            feature=tensor(patches(16, 2)),
            data={"video_grid_thw": grid((1, 4, 4)), "video_second_per_grid": tensor([0.5])},
        ),
    )
    ids = prompt(1, (151655, 4), 2, (151675, 3), 3, (151656, 4))
    found = outcome(request(ids=ids, mm=omni), context(OMNI))
    assert (found.result, len(found.media)) == (Result.FORWARDED, 3)
    pads = [entry.pad_value for entry in found.media]
    assert decoded(sent(found))[Request.INPUT_IDS] == prompt(1, (pads[0], 4), 2, (pads[1], 3), 3, (pads[2], 4))
    tiles = item(offsets=((1, 4), (6, 9)), feature=tensor(np.ones((2, 3, 4, 4), np.float32)), data={})
    assert (
        outcome(request(ids=prompt(1, (200092, 4), 2, (200092, 4)), mm=media(tiles)), context(LLAMA4)).media[0].tokens
        == 8
    )
    frames_of_video = item(
        2, offsets=((0, 3), (5, 8)), feature=tensor(patches(32)), data={"video_grid_thw": grid((2, 4, 4))}
    )
    assert outcome(request(ids=prompt((VIDEO, 4), 9, (VIDEO, 4)), mm=media(frames_of_video))).delta is not None


def test_two_adjacent_images_of_one_picture() -> None:
    two = media(item(offsets=((0, 3),)), item(offsets=((4, 7),)))
    found = outcome(request(ids=prompt((IMAGE, 8)), mm=two))
    first, second = found.media
    assert (first.pad_value, first.hash) == (second.pad_value, second.hash)
    assert decoded(sent(found))[Request.INPUT_IDS] == [first.pad_value] * 8


def test_prompts_agree_up_to_the_first_image_that_differs() -> None:
    def padded(*seeds: int) -> list[int]:
        entries = [
            item(offsets=((2 + 6 * k, 5 + 6 * k),), feature=tensor(patches(16, seed))) for k, seed in enumerate(seeds)
        ]
        ids = prompt(11, 12, (IMAGE, 4), 13, 14, (IMAGE, 4), 15)
        fields = decoded(sent(outcome(request(ids=ids, mm=media(*entries)))))
        found: list[int] = fields[Request.INPUT_IDS]
        return found

    assert padded(1, 2) == padded(1, 2)
    ab, ac, ba = padded(1, 2), padded(1, 3), padded(2, 1)
    assert ab[:8] == ac[:8]
    assert ab[8] != ac[8]
    assert ab[:2] == ba[:2]
    assert ab[2] != ba[2]
    assert (ab[2], ab[8]) == (ba[8], ba[2])
