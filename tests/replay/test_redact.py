"""Redaction takes the content and leaves the structure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from sidecar.context import Context
from sidecar.pipeline import run
from sidecar.recording import Framing, Reader, Record
from sidecar.replay.decode import decode_request, peek
from sidecar.replay.redact import Redactor, random_tensor_bytes
from sidecar.replay.rewrite import abort_frames
from sidecar.replay.synth.distributions import parse_count, parse_size
from sidecar.replay.synth.recipe import Recipe, make_records
from sidecar.settings import Settings
from sidecar.wire.tensors import ITEM_BYTES
from sidecar.wire.tokenspeed import Item, Media, Request
from tests.build import QWEN, frames, image_request, item, media, raw, request, tensor

SECRET = "the user's secret"


def redacted(record: Record, **arguments: Any) -> Record:
    result = Redactor(1, **arguments).redact(record)
    assert result is not None
    return result


def fields_of(record: Record) -> Any:
    return msgpack.unpackb(record.frames[0], strict_map_key=False)


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("options", [{}, {"materialized": 1.0}, {"aux_bytes": 0}, {"missing_hashes": 1.0}])
def test_a_redacted_request_fares_like_the_original(framing: Framing, options: dict[str, Any]) -> None:
    small = {"image_size": parse_size("8x8", "x"), "prompt": parse_count("20-60", "x"), "frames": parse_count("2", "x")}
    for record in make_records(Recipe(QWEN, 30, framing=framing, **small, **options)):
        other = redacted(record)
        assert [len(frame) for frame in other.frames] == [len(frame) for frame in record.frames]
        settings = Settings.model_validate({"ingress": {"framing": framing}})
        outcomes = [run(r.frames, Context.from_settings(settings, QWEN)) for r in (record, other)]
        assert outcomes[0].result == outcomes[1].result
        before, after = (decode_request(r.frames, framing) for r in (record, other))
        for one, two in zip(before.items, after.items, strict=True):
            for field in (Item.MODALITY, Item.HASH, Item.PAD_VALUE, Item.OFFSETS):
                assert one[field] == two[field]
            a, b = before.tensor(one[Item.FEATURE]), after.tensor(two[Item.FEATURE])
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.data != b.data
            assert np.isfinite(b.array()).all()
            for name, value in one[Item.MODEL_SPECIFIC_DATA].items():
                assert before.tensor(value).data == after.tensor(two[Item.MODEL_SPECIFIC_DATA][name]).data


def test_ids_outside_the_spans_change_alike_in_both_prompts() -> None:
    for record in make_records(Recipe(QWEN, 20, mix={"image": 1}, materialized=1.0, image_size=parse_size("8x8", "x"))):
        a, b = (decode_request(r.frames, record.framing) for r in (record, redacted(record)))
        spans = [span for one in a.items for span in one[Item.OFFSETS]]
        inside = {place for start, end in spans for place in range(start, end + 1)}
        beside = {place for start, end in spans for place in (start - 1, end + 1)}
        changed = 0
        for place, (old, new) in enumerate(zip(a[Request.INPUT_IDS], b[Request.INPUT_IDS], strict=True)):
            if place in inside | beside:
                assert old == new
                assert a[Request.INPUT_IDS_UNPADDED][place] == b[Request.INPUT_IDS_UNPADDED][place]
            else:
                assert b[Request.INPUT_IDS_UNPADDED][place] == new
                changed += old != new
                assert len(msgpack.packb(old)) == len(msgpack.packb(new))
        assert changed > 0.8 * (len(a[Request.INPUT_IDS]) - len(inside | beside))


def test_strings_numbers_and_unknown_fields() -> None:
    fields = fields_of(Record(frames(request("the-rid"))))
    fields += [None] * (26 - len(fields))
    fields[Request.HTTP_WORKER_IPC] = "ipc:///kept"
    fields[Request.INPUT_TEXT] = SECRET
    fields[Request.CUSTOM_LOGIT_PROCESSOR] = b"code \xff"
    fields[Request.SESSION_PARAMS] = {"id": SECRET, "depth": [SECRET, {"n": 7}]}
    fields[Request.INPUT_EMBEDS] = [[0.25, 1.5], [3, 100]]
    fields[Request.INPUT_MULTI_IDS] = [[5, 50_000]]
    fields[Request.VALIDATION_ERROR] = "kept"
    fields[25] = ["new field", SECRET]
    other = fields_of(redacted(Record([msgpack.packb(fields)])))
    assert SECRET.encode() not in msgpack.packb(other)
    assert other[Request.RID] == "the-rid"
    assert other[Request.HTTP_WORKER_IPC] == "ipc:///kept"
    assert other[Request.VALIDATION_ERROR] == "kept"
    assert len(other[Request.INPUT_TEXT]) == len(SECRET)
    assert list(other[Request.SESSION_PARAMS]) == ["id", "depth"]
    assert other[Request.SESSION_PARAMS]["depth"][1] == {"n": 7}
    assert other[Request.INPUT_EMBEDS] != fields[Request.INPUT_EMBEDS]
    assert np.isfinite(np.array(other[Request.INPUT_EMBEDS])).all()
    assert other[Request.INPUT_MULTI_IDS] != fields[Request.INPUT_MULTI_IDS]
    assert other[Request.SAMPLING_PARAMS] == fields[Request.SAMPLING_PARAMS]


def test_evidence_stays() -> None:
    """What made a request a bug is not content: bad ids, stray placeholders, odd encodings, trailing nonsense."""
    ids = [1000, 1 << 31, -5, True, 1.5, None, 248056, 2000]
    record = Record(frames(request("r", ids=ids, mm=media(item(offsets=((3, 1), (90, 99))), im=248056))))
    other = fields_of(redacted(record))
    assert other[Request.INPUT_IDS][1:7] == ids[1:7]
    assert other[Request.MULTIMODAL_INPUTS][Media.MM_ITEMS][0][Item.OFFSETS] == [[3, 1], [90, 99]]


def test_positions_metadata_and_large_floats() -> None:
    positions = np.arange(30, dtype="<i8").reshape(3, 10)
    data = {
        "image_grid_thw": tensor(np.array([[1, 4, 4]])),
        "timestamps": tensor(np.arange(8, dtype="<f4")),
        "pixels_again": tensor(np.arange(1000, dtype="<f4")),
        "fps": 2.0,
    }
    mm = media(item(data=data, encoded=tensor(np.ones((4, 8), "<f4"))), positions=tensor(positions, aux=1))
    record = Record([*frames(request("r", mm=mm)), positions.tobytes(), b"unreferenced" * 10])
    other = redacted(record)
    assert other.frames[1] == record.frames[1]
    assert other.frames[2] != record.frames[2]
    before, after = (fields_of(r)[Request.MULTIMODAL_INPUTS][Media.MM_ITEMS][0] for r in (record, other))
    metadata = Item.MODEL_SPECIFIC_DATA
    assert before[metadata]["image_grid_thw"] == after[metadata]["image_grid_thw"]
    assert before[metadata]["timestamps"] == after[metadata]["timestamps"]
    assert before[metadata]["pixels_again"] != after[metadata]["pixels_again"]
    assert before[Item.ENCODED] != after[Item.ENCODED]


def test_a_preprocessed_request() -> None:
    record = Record(
        [
            msgpack.packb(
                {
                    "token_ids": [5000, 163605, 6000],
                    "request_id": "r",
                    "multi_modal_data": {"image_url": [{"Url": SECRET}]},
                    "model": "kept",
                    "stop_conditions": {"max_tokens": 7, "stop": [SECRET]},
                }
            )
        ]
    )
    other = fields_of(redacted(record, keep_ids=[163605]))
    assert SECRET.encode() not in msgpack.packb(other)
    assert (other["request_id"], other["model"]) == ("r", "kept")
    assert other["stop_conditions"]["max_tokens"] == 7
    assert other["token_ids"][1] == 163605
    assert other["token_ids"][0] != 5000


def test_other_messages_pass_and_unreadable_ones_do_not() -> None:
    abort = Record(abort_frames("r", Framing.NATIVE))
    assert redacted(abort) is abort
    for message in (b"\xc1", b"", frames(request("r"))[0][:-1], msgpack.packb(["TokenizedGenerateReqInput", 7])):
        assert Redactor(1).redact(Record([message])) is None


def test_the_seed_decides() -> None:
    record = Record(frames(image_request("r")))
    assert redacted(record) == redacted(record)
    assert Redactor(2).redact(record) != redacted(record)
    assert Redactor().redact(record) != Redactor().redact(record)


def test_every_readable_message_of_a_recording_keeps_its_rid() -> None:
    with Reader(Path(__file__).parent.parent / "data/recordings/small.rec") as reader:
        for record in reader:
            assert peek(redacted(record).frames, record.framing).rids == peek(record.frames, record.framing).rids


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "<f8", "|b1", "int64", "float8_e4m3fn"])
def test_random_tensors_are_finite(dtype: str) -> None:
    data = random_tensor_bytes(np.random.default_rng(0), 4096 * ITEM_BYTES[dtype], dtype)
    request_ = Record(frames(request("r", mm=media(item(feature=[dtype, [4096], raw(data)])))))
    value = decode_request(request_.frames, Framing.NATIVE).items[0][Item.FEATURE]
    found = decode_request(request_.frames, Framing.NATIVE).tensor(value)
    if dtype == "float8_e4m3fn":
        assert not set(found.data) & {0x7F, 0xFF}
    else:
        assert np.isfinite(found.array()).all()
    if dtype == "|b1":
        assert set(found.data) == {0, 1}
