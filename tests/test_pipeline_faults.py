"""Faults that systems like this have had, as small inputs of their whole kind, through the pipeline."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest

from sidecar.errors import Reason
from sidecar.model import from_config
from sidecar.outcome import Result
from sidecar.wire.framing import Framing
from sidecar.wire.tokenspeed import Item, Media, Request
from tests.build import (
    IMAGE,
    OMNI,
    QWEN,
    VIDEO,
    context,
    decoded,
    grid,
    item,
    media,
    patches,
    prompt,
    raw,
    request,
    sent,
    tensor,
    values,
)
from tests.pipeline import media_of, outcome, refusal

QWEN25 = from_config(
    {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_config": {"spatial_merge_size": 2, "tokens_per_second": 2},
    }
)


def positions_of(message: Any, spec: Any = QWEN) -> list[list[int]]:
    found = outcome(message, context(spec))
    assert found.result is Result.FORWARDED, found.message
    payload, *aux = sent(found)
    fields = decoded([payload])[Request.MULTIMODAL_INPUTS]
    positions: list[list[int]] = values(fields[Media.MROPE_POSITIONS], aux).tolist()
    delta = values(fields[Media.MROPE_POSITION_DELTA]).item()
    assert type(fields[Media.MROPE_POSITION_DELTA_SCALAR]) is int
    assert fields[Media.MROPE_POSITION_DELTA_SCALAR] == delta
    return positions


NANS = [
    ("bfloat16", struct.pack("<4H", 0x7FC0, 0xFFC0, 0x7F81, 0xFFFF) * 96),
    ("float8_e4m3fn", b"\x7f\xff\x7f\xff" * 96),
    ("float8_e5m2", b"\x7d\x7e\x7f\xfd" * 96),
    ("float8_e5m2fnuz", b"\x80" * 384),
    ("<f4", struct.pack("<2I", 0x7FC00000, 0xFF800001) * 192),
]


@pytest.mark.parametrize("framing", Framing)
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(("dtype", "data"), NANS)
def test_features_whose_bits_spell_nan(dtype: str, data: bytes, beside: bool, framing: Framing) -> None:
    entry = item(feature=[dtype, [16, 24], 1 if beside else raw(data)])
    found = outcome(request(mm=media(entry)), context(framing=framing), *([data] if beside else []))
    (left,) = media_of(found, framing)[Media.MM_ITEMS]
    name, shape, place = left[Item.FEATURE]
    aux = sent(found)[2 if framing is Framing.TYPED else 1 :]
    assert (name, shape, aux[place - 1] if beside else place.data) == (dtype, [16, 24], data)


GRIDS = [
    grid((1, 4, 4)),
    grid((1, 4, 4), dtype="int32"),
    [[1, 4, 4]],
    ["<i8", [1, 3], raw(np.array([1, 4, 4]).tobytes())],
    ["<i4", [1, 3], raw(np.array([1, 4, 4], np.int32).tobytes())],
    ["long", [1, 3], raw(np.array([1, 4, 4]).tobytes())],
]


def test_grids_in_every_form_give_one_result() -> None:
    results = []
    for form in GRIDS:
        found = outcome(request(mm=media(item(data={"image_grid_thw": form}))))
        fields = decoded(sent(found))
        results.append(
            (fields[Request.INPUT_IDS], positions_of(request(mm=media(item(data={"image_grid_thw": form})))))
        )
    assert all(result == results[0] for result in results)


def test_seconds_in_every_form_give_one_result() -> None:
    forms = [
        2,
        2.0,
        [2],
        tensor([2]),
        tensor(np.float32(2)),
        tensor(np.array([2.0])),
        ["bfloat16", [1], raw(b"\x00\x40")],
    ]
    ids = prompt(1, (151656, 8), 2)
    entries = [
        item(
            2,
            offsets=((1, 8),),
            feature=tensor(patches(32)),
            data={"video_grid_thw": grid((2, 4, 4)), "video_second_per_grid": form},
        )
        for form in forms
    ]
    results = [positions_of(request(ids=ids, mm=media(entry)), OMNI) for entry in entries]
    assert all(result == results[0] for result in results)
    assert results[0][0][1:9] == [1] * 4 + [51] * 4, "25 positions a second, two seconds a frame"


def test_each_item_has_its_own_grid() -> None:
    two = media(
        item(offsets=((1, 4),)),
        item(offsets=((6, 13),), feature=tensor(patches(32, 1)), data={"image_grid_thw": grid((1, 4, 8))}),
    )
    t, h, w = positions_of(request(ids=prompt(1, (IMAGE, 4), 2, (IMAGE, 8), 3), mm=two))
    assert (h[1:5], w[1:5]) == ([1, 1, 2, 2], [1, 2, 1, 2])
    assert (h[6:14], w[6:14]) == ([4, 4, 4, 4, 5, 5, 5, 5], [4, 5, 6, 7, 4, 5, 6, 7])
    assert (t[5], t[14]) == (3, 8)


def test_still_images_are_not_scaled_and_videos_advance() -> None:
    video = item(
        2,
        offsets=((0, 15),),
        feature=tensor(patches(64)),
        data={"video_grid_thw": grid((4, 4, 4)), "second_per_grid_ts": 0.5},
    )
    t, _, _ = positions_of(request(ids=prompt((VIDEO, 16)), mm=media(video)), QWEN25)
    assert t == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    still = item(offsets=((0, 3),), data={"image_grid_thw": grid((1, 4, 4)), "second_per_grid_ts": 0.5})
    assert positions_of(request(ids=prompt((IMAGE, 4)), mm=media(still)), QWEN25)[0] == [0] * 4


def test_shuffled_items_give_the_same_positions() -> None:
    rng = np.random.default_rng(3)
    ids: list[int] = [7]
    entries = []
    for number in range(6):
        start = len(ids)
        side = 2 * int(rng.integers(1, 4))
        count = side // 2 * 2
        ids += prompt((IMAGE, count), 5)
        entries.append(
            item(
                offsets=((start, start + count - 1),),
                feature=tensor(patches(4 * side, number)),
                data={"image_grid_thw": grid((1, 4, side))},
            )
        )
    expected = positions_of(request(ids=ids, mm=media(*entries)))
    for _ in range(5):
        order = rng.permutation(len(entries))
        assert positions_of(request(ids=ids, mm=media(*(entries[k] for k in order)))) == expected


@pytest.mark.parametrize("tokens", [3, 5, 24, 1_000])
def test_a_span_that_is_not_its_grids(tokens: int) -> None:
    entry = item(offsets=((0, tokens - 1),))
    reason, message = refusal(request(ids=prompt((IMAGE, tokens)), mm=media(entry)))
    assert reason is Reason.GRID_MISMATCH
    assert f"has {tokens} tokens" in message
    assert "makes 4" in message


def test_a_literal_placeholder_in_the_users_text() -> None:
    ids = prompt(11, 12, (IMAGE, 4), 13, IMAGE, 14, IMAGE)
    reason, message = refusal(request(ids=ids, mm=media(item())))
    assert reason is Reason.PLACEHOLDER_MISMATCH
    assert "6 times, the spans cover 4 of them" in message


@pytest.mark.parametrize("cut", range(1, 7))
def test_a_truncated_prompt_with_whole_features(cut: int) -> None:
    ids = prompt(11, 12, (IMAGE, 4), 13, 14)[:-cut]
    found = outcome(request(ids=ids, mm=media(item())))
    assert (found.result is Result.FORWARDED) is (cut <= 2)
    if cut > 2:
        assert found.reason is Reason.OFFSETS_INVALID
        assert f"the prompt of {8 - cut} ids" in found.message


ROOM = {"bootstrap_room": 7, "bootstrap_host": "10.0.0.1", "bootstrap_port": 8998}


@pytest.mark.parametrize("identity", [{"hash": 5}, {"pad": 1_000_005}, {"hash": 5, "pad": 1_000_005}])
@pytest.mark.parametrize("role", ["colocated", "prefill", "decode"])
def test_an_encode_worker_brings_the_embedding(identity: dict[str, int], role: str) -> None:
    found = outcome(request(mm=media(item(handshake=ROOM, **identity))), context(role=role))
    (left,) = media_of(found)[Media.MM_ITEMS]
    assert (left[Item.PAD_VALUE], left[Item.ENCODE_HANDSHAKE], left[Item.FEATURE]) == (1_000_005, ROOM, None)
    assert found.delta == -2


@pytest.mark.parametrize("missing", ROOM)
def test_an_incomplete_handshake(missing: str) -> None:
    room = {key: value for key, value in ROOM.items() if key != missing}
    reason, message = refusal(request(mm=media(item(hash=5, handshake=room))))
    assert reason is Reason.MALFORMED_MULTIMODAL
    assert missing in message


def test_a_handshake_without_an_identity() -> None:
    assert refusal(request(mm=media(item(handshake=ROOM))))[0] is Reason.HASH_MISSING


def test_every_fault_after_the_rid_is_answered_once() -> None:
    """Whatever stands behind the rid, at whatever byte the damage begins."""

    payload = msgpack.packb(request(mm=media(item()), bootstrap_host="h"))
    after_rid = payload.index(b"\xa1r") + 2
    for at in range(after_rid, len(payload), 7):
        for junk in (b"", b"\xc1", payload[at + 1 :]):
            found = outcome(payload[:at] + junk)
            assert found.rid == "r"
            assert len(found.messages) == 1


def test_a_clock_far_ahead_costs_no_memory() -> None:
    """The text behind such a video has positions that no ramp can be kept for."""
    entry = item(
        2,
        offsets=((1, 8),),
        feature=tensor(patches(32)),
        data={"video_grid_thw": grid((2, 4, 4)), "video_second_per_grid": 5e7},
    )
    message = request(ids=prompt(1, (151656, 8), 2), mm=media(entry))
    tracemalloc.start()
    found = outcome(message, context(OMNI))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.result, found.delta) == (Result.FORWARDED, 1_249_999_993)
    assert peak < 16 << 20
