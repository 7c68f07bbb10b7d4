"""The edits of a request: by meaning, in one pass, with aux frames behind those that came."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from sidecar.admission.memory import Content
from sidecar.dialects.edits import AUX_BYTES, RequestEdits
from sidecar.wire.request import read_request
from sidecar.wire.tokenspeed import Item, Media, Modality, Request
from tests.build import item, media, patches, request, tensor, values


def edits(fields: Any, *aux: bytes, tensor_metadata: bool = True) -> tuple[RequestEdits, bytes]:
    payload = msgpack.packb(fields)
    view = read_request(payload, "r", aux, max_items=8, max_depth=32)
    return RequestEdits(view, view.media, aux, tensor_metadata=tensor_metadata), payload


def applied(work: RequestEdits, hoist: int = 0) -> tuple[list[Any], list[bytes]]:
    payload, added = work.apply(hoist)
    fields: list[Any] = msgpack.unpackb(payload)
    return fields, [bytes(frame) for frame in added]


def test_nothing_to_do() -> None:
    work, payload = edits(request(mm=media(item())))
    assert not work
    assert work.apply(0) == (payload, [])


def test_positions_become_an_aux_frame_from_256_bytes_on() -> None:
    for n in (AUX_BYTES // 24, AUX_BYTES // 24 + 1):
        work, _ = edits(request(mm=media(item())), b"came")
        positions = np.arange(3 * n).reshape(3, n)
        work.set_positions(positions, -7)
        assert work
        fields, added = applied(work)
        fields_of_media = fields[Request.MULTIMODAL_INPUTS]
        dtype, shape, data = fields_of_media[Media.MROPE_POSITIONS]
        assert (dtype, shape) == ("int64", [3, n])
        if positions.nbytes < AUX_BYTES:
            assert (data.data, added) == (positions.tobytes(), [])
        else:
            assert (data, added) == (2, [positions.tobytes()])
        assert values(fields_of_media[Media.MROPE_POSITION_DELTA]).tolist() == [[-7]]
        assert fields_of_media[Media.MROPE_POSITION_DELTA_SCALAR] == -7


def test_positions_keep_a_delta_that_came() -> None:
    delta = tensor(np.array([[-7]], np.int32))
    work, _ = edits(request(mm=media(item(), delta=delta, scalar=-7)[:5]))
    work.set_positions(np.zeros((3, 2), np.int64), -7)
    fields, _ = applied(work)
    assert fields[Request.MULTIMODAL_INPUTS][Media.MROPE_POSITION_DELTA] == msgpack.unpackb(msgpack.packb(delta))


def test_float_positions() -> None:
    work, _ = edits(request(mm=media(item())))
    work.set_positions(np.zeros((3, 2), np.float32), np.float32(-7))
    fields, _ = applied(work)
    assert fields[Request.MULTIMODAL_INPUTS][Media.MROPE_POSITION_DELTA][0] == "float32"
    assert fields[Request.MULTIMODAL_INPUTS][Media.MROPE_POSITION_DELTA_SCALAR] == -7


def test_contents_reach_short_items() -> None:
    work, _ = edits(request(mm=media(item()[:1], item(hash=3, pad=9))))
    work.set_contents(
        [Content(0, Modality.IMAGE, 5, 1_000_005, 4, None, None), Content(1, Modality.IMAGE, 3, 9, 4, None, None)], {0}
    )
    fields, _ = applied(work)
    first, second = fields[Request.MULTIMODAL_INPUTS][Media.MM_ITEMS]
    assert first == [1, 5, 1_000_005]
    assert second[: Item.PAD_VALUE + 1] == [1, 3, 9]


def test_plain_metadata_becomes_tensors() -> None:
    data = {"n": 5, "t": tensor([1])}
    work, _ = edits(request(mm=media(item(data=data))))
    assert work
    fields, _ = applied(work)
    found = fields[Request.MULTIMODAL_INPUTS][Media.MM_ITEMS][0][Item.MODEL_SPECIFIC_DATA]
    assert found == msgpack.unpackb(msgpack.packb({"n": tensor(5), "t": tensor([1])}))
    work, payload = edits(request(mm=media(item(data=data))), tensor_metadata=False)
    assert not work
    assert work.apply(0)[0] == payload


def test_stripping_drops_every_edit_inside() -> None:
    work, _ = edits(request(ids=[1, 2], mm=media(item(data={"n": 5}))))
    work.strip_media()
    fields, added = applied(work, hoist=1)
    assert (fields[Request.MULTIMODAL_INPUTS], fields[Request.INPUT_IDS], added) == (None, [1, 2], [])


def test_large_tensors_leave_by_reference() -> None:
    feature, small = patches(64), patches(2)
    entries = media(item(feature=tensor(feature)), item(feature=tensor(small), encoded=tensor(feature)))
    work, payload = edits(request(mm=entries), b"came")
    work.request[Request.DATA_PARALLEL_RANK] = b"\5"
    out, added = work.apply(feature.nbytes)
    fields = msgpack.unpackb(out)
    first, second = fields[Request.MULTIMODAL_INPUTS][Media.MM_ITEMS]
    assert (first[Item.FEATURE][2], second[Item.ENCODED][2]) == (2, 3)
    assert second[Item.FEATURE][2].data == small.tobytes()
    assert [bytes(frame) for frame in added] == [feature.tobytes()] * 2
    assert all(isinstance(frame, memoryview) and frame.obj is payload for frame in added)
    kept, nothing = work.apply(0)
    assert nothing == added  # those of the first call; a request is written once
    assert len(kept) > len(out)


def test_extending_a_short_request() -> None:
    work, _ = edits(request(ids=[1], count=6))
    work.request[Request.INPUT_IDS_UNPADDED] = msgpack.packb([1])
    fields, _ = applied(work)
    assert len(fields) == Request.INPUT_IDS_UNPADDED + 1
    assert fields[Request.LOGPROB_START_LEN : Request.STREAM + 1] == [-1, 0, None, False]
    assert fields[Request.CREATED_TIME] == 0.0
