"""Media as spans: what the engine's decoder would refuse is refused, what it takes is read as it stands."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import numpy as np
import pytest

from sidecar.errors import Reason, Rejection
from sidecar.wire.media import MAX_METADATA_ENTRIES, MAX_METADATA_VALUES, ShmHandle, pack_offsets
from sidecar.wire.tokenspeed import Modality
from tests.build import grid, item, media, media_view, patches, raw, tensor, views

SHM = {"shm_name": "psm_1", "shape": [16, 24], "dtype": "float32"}
ROOM = {"bootstrap_room": 7, "bootstrap_host": "h", "bootstrap_port": 8998}


def refused(fields: Any, *aux: bytes, max_items: int = 1024) -> Rejection:
    with pytest.raises(Rejection) as caught:
        media_view(fields, *aux, max_items=max_items)
    return caught.value


def test_an_item_as_it_stands() -> None:
    feature = patches(16)
    (view,) = views(
        item(
            2, hash=2**64 - 1, pad=1_000_000, offsets=((2, 5), (0, 1)), feature=["float32", [16, 24], 1], tail=["x", 1]
        ),
        aux=[feature.tobytes()],
    )
    assert (view.ordinal, view.modality, view.hash, view.pad_value) == (0, Modality.VIDEO, 2**64 - 1, 1_000_000)
    assert (view.offsets, view.tokens) == (((2, 5), (0, 1)), 6)
    assert view.feature is not None
    assert (view.feature.shape, view.feature.aux) == ((16, 24), 1)
    assert (view.shm, view.encoded, view.deepstack, view.handshake) == (None, None, None, False)
    assert list(view.metadata) == ["video_grid_thw"]
    assert len(view.tensors) == 2


@pytest.mark.parametrize("count", range(1, 11))
def test_short_items(count: int) -> None:
    (view,) = views(item(hash=5, shm=None)[:count])
    assert (view.modality, view.handshake) == (Modality.IMAGE, False)
    assert (view.hash, view.offsets) == (5 if count > 1 else None, ((2, 5),) if count > 3 else None)


def test_media_as_it_stands() -> None:
    positions = tensor(np.arange(24).reshape(3, 8))
    view = media_view(media(item(), im=5, video=6, positions=positions, delta=tensor([[-2]]), scalar=-2, tail=[1]))
    assert (view.im_token_id, view.video_token_id, view.delta_scalar) == (5, 6, -2)
    assert view.positions is not None
    assert (view.positions.shape, view.positions.array().tolist()) == ((3, 8), np.arange(24).reshape(3, 8).tolist())
    assert view.delta is not None
    assert view.delta.array().tolist() == [[-2]]
    assert len(view.array) == 8


@pytest.mark.parametrize("count", range(1, 8))
def test_short_media(count: int) -> None:
    view = media_view(media(item(), im=5)[:count])
    assert view.im_token_id == (5 if count > 1 else None)
    assert view.positions is None


def test_no_items_leave_the_rest_to_be_decoded() -> None:
    assert media_view(media()).items == []
    assert media_view([[]]).items == []
    assert refused([[], "x"]).message == "im_token_id is no integer"
    assert refused(media(reserved=5)).reason is Reason.MALFORMED_TENSOR
    assert refused(media(positions=5)).reason is Reason.MALFORMED_TENSOR


@pytest.mark.parametrize("fields", [5, "x", b"x", {}, True, []])
def test_what_is_no_media(fields: Any) -> None:
    assert refused(fields).reason is Reason.MALFORMED_MULTIMODAL


@pytest.mark.parametrize("items", [5, None, {}, "x"])
def test_what_are_no_items(items: Any) -> None:
    assert "list of items" in refused([items]).message


@pytest.mark.parametrize("entry", [5, None, {}, "x", []])
def test_what_is_no_item(entry: Any) -> None:
    error = refused(media(item(), entry))
    assert (error.reason, error.message) == (Reason.MALFORMED_MULTIMODAL, "item 1 is no array with a modality")


def test_too_many_items() -> None:
    media_view(media(*[item()] * 3), max_items=3)
    error = refused(media(*[item()] * 4), max_items=3)
    assert (error.reason, "4 items; the limit is 3 (limits.items)" in error.message) == (Reason.TOO_LARGE, True)


@pytest.mark.parametrize("modality", [0, 4, -1, 2**63, 1.0, True, None, "IMAGE", [1]])
def test_modalities(modality: Any) -> None:
    error = refused(media(item(modality)))
    assert error.reason is Reason.MALFORMED_MULTIMODAL
    assert "item 0 has the modality" in error.message


@pytest.mark.parametrize("value", [1.0, True, "5", b"5", [5], {}])
@pytest.mark.parametrize("field", ["hash", "pad"])
def test_what_is_no_integer(field: str, value: Any) -> None:
    assert "is no integer" in refused(media(item(**{field: value}))).message


@pytest.mark.parametrize("value", [0, 2**63, 2**64 - 1, -1, -(2**63)])
def test_hashes(value: int) -> None:
    assert views(item(hash=value))[0].hash == value


@pytest.mark.parametrize(
    "offsets",
    [
        5,
        "x",
        {},
        [5],
        [[1]],
        [[1, 2, 3]],
        [["a", "b"]],
        [[1, 2.0]],
        [[True, 2]],
        [[1, None]],
        [None],
        [[[1, 2]]],
        [{1: 2}],
        [msgpack.ExtType(3, b"x")],
    ],
)
def test_offsets_that_are_no_pairs(offsets: Any) -> None:
    error = refused(media(item(offsets=offsets)))
    assert error.reason is Reason.MALFORMED_MULTIMODAL
    assert "item 0" in error.message
    assert "offset" in error.message


def test_offsets() -> None:
    assert views(item(offsets=None))[0].offsets is None
    assert views(item(offsets=[]))[0].offsets == ()
    assert views(item(offsets=[[2**63, -5]]))[0].offsets == ((2**63, -5),)
    assert pack_offsets([(1, 2), (300, 5)]) == msgpack.packb([[1, 2], [300, 5]])


def test_shared_memory_handles() -> None:
    (view,) = views(item(hash=1, shm={**SHM, "later": [1]}))
    assert view.shm == ShmHandle("psm_1", (16, 24), "float32")
    assert view.shm is not None
    assert view.shm.nbytes == 1536
    (view,) = views(item(hash=1, shm={"dtype": "bfloat16", "shape": [], "shm_name": ""}))
    assert view.shm is not None
    assert view.shm.nbytes == 2


@pytest.mark.parametrize(
    ("shm", "reason"),
    [
        (5, Reason.MALFORMED_MULTIMODAL),
        (["psm_1", [1], "float32"], Reason.MALFORMED_MULTIMODAL),
        ({}, Reason.MALFORMED_MULTIMODAL),
        ({"shm_name": "x", "shape": [1]}, Reason.MALFORMED_MULTIMODAL),
        ({**SHM, "shm_name": 5}, Reason.MALFORMED_MULTIMODAL),
        ({**SHM, "shm_name": None}, Reason.MALFORMED_MULTIMODAL),
        ({**SHM, "shape": 5}, Reason.MALFORMED_TENSOR),
        ({**SHM, "shape": [-1]}, Reason.MALFORMED_TENSOR),
        ({**SHM, "shape": [1.0]}, Reason.MALFORMED_TENSOR),
        ({**SHM, "dtype": "<f4"}, Reason.MALFORMED_TENSOR),
        ({**SHM, "dtype": "torch.float32"}, Reason.MALFORMED_TENSOR),
        ({**SHM, "dtype": "strided"}, Reason.MALFORMED_TENSOR),
        ({**SHM, "dtype": None}, Reason.MALFORMED_TENSOR),
        ({1: 2}, Reason.MALFORMED_REQUEST),
    ],
)
def test_handles_that_are_refused(shm: Any, reason: Reason) -> None:
    assert refused(media(item(hash=1, shm=shm))).reason is reason


def test_one_segment_in_two_items() -> None:
    twice = media(item(hash=1, shm=SHM), item(hash=2, shm={**SHM, "shm_name": "b"}), item(hash=3, shm=SHM))
    error = refused(twice)
    assert error.reason is Reason.MALFORMED_MULTIMODAL
    assert "items 0 and 2 carry the same shared-memory segment 'psm_1'" in error.message


def test_metadata_in_every_form() -> None:
    data = {
        "tensor": grid((1, 4, 4)),
        "int": 5,
        "float": 0.5,
        "bool": True,
        "list": [1, 2, 3],
        "rows": [[1, 2], [3, 4]],
        "empty": [],
        "huge": 2**64 - 1,
    }
    (view,) = views(item(data=data))
    assert {name: entry.array().tolist() for name, entry in view.metadata.items()} == {
        **data,
        "tensor": [[1, 4, 4]],
    }
    tensor_entry = view.metadata["tensor"].tensor
    assert tensor_entry is not None
    assert view.tensors == [view.feature, tensor_entry]


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"a": 1},
        b"x",
        [None],
        [[1], [2, 3]],
        [[1], 2],
        [b"x"],
        [1, "a"],
        msgpack.ExtType(3, b"x"),
        [{}],
        [[[1]], [[2, 3]]],
        list(range(MAX_METADATA_VALUES + 1)),
        eval("[" * 17 + "1" + "]" * 17),
    ],
)
def test_metadata_that_is_no_numbers(value: Any) -> None:
    error = refused(media(item(data={"note": value})))
    assert error.reason is Reason.MALFORMED_MULTIMODAL
    assert "item 0: note" in error.message


@pytest.mark.parametrize(
    "value", ["x", ["x"], ["float32"], ["float32", [1]], ["float99", [1], raw(b"\0")], ["int64", [1], 5]]
)
def test_metadata_that_is_a_broken_tensor(value: Any) -> None:
    error = refused(media(item(data={"note": value})))
    assert error.reason in (Reason.MALFORMED_TENSOR, Reason.MALFORMED_MULTIMODAL)


@pytest.mark.parametrize("data", [None, 5, [], "x"])
def test_what_is_no_metadata(data: Any) -> None:
    assert refused(media(item(data=data))).message == "item 0: model_specific_data is no map"


def test_too_many_metadata_entries() -> None:
    most = {f"k{i}": i for i in range(MAX_METADATA_ENTRIES)}
    views(item(data=most))
    error = refused(media(item(data={**most, "more": 1})))
    assert (error.reason, str(MAX_METADATA_ENTRIES) in error.message) == (Reason.TOO_LARGE, True)


def test_handshakes() -> None:
    (view,) = views(item(hash=5, handshake={**ROOM, "later": {"a": [1]}}))
    assert view.handshake
    assert views(item(hash=5, handshake={**ROOM, "bootstrap_room": 2**64 - 1}))[0].handshake


@pytest.mark.parametrize("missing", ROOM)
@pytest.mark.parametrize("value", ["absent", None, "", 1.5, [], True])
def test_incomplete_handshakes(missing: str, value: Any) -> None:
    room = {key: entry for key, entry in ROOM.items() if key != missing}
    if value != "absent":
        room[missing] = value
    error = refused(media(item(hash=5, handshake=room)))
    assert error.reason is Reason.MALFORMED_MULTIMODAL
    assert f"lacks a usable {missing}" in error.message


@pytest.mark.parametrize("room", [5, [], "x", True])
def test_what_is_no_handshake(room: Any) -> None:
    assert "encode_handshake is no map" in refused(media(item(hash=5, handshake=room))).message


@pytest.mark.parametrize(
    "value", [b"\xa1\xff", b"\xd4\3\0", b"\x81\1\2", b"\xc7\x0c\xff" + struct.pack(">Iq", 0, 2**62)]
)
def test_handshakes_that_the_engine_cannot_decode(value: bytes) -> None:
    packed = msgpack.packb(media(item(hash=5, handshake={**ROOM, "z": "@@"}))).replace(b"\xa2@@", value)
    assert "encode_handshake cannot be decoded" in refused(packed).message


@pytest.mark.parametrize("field", ["feature", "encoded", "deepstack"])
def test_tensors_say_where_they_stand(field: str) -> None:
    name = {"deepstack": "encoded_deepstack"}.get(field, field)
    error = refused(media(item(), item(**{field: ["float32", [1], raw(b"")]})))
    assert error.reason is Reason.MALFORMED_TENSOR
    assert error.message.startswith(f"item 1: {name}: float32 [1] takes 4 bytes, but 0 came")


def test_unknown_modality_is_never_read_as_image() -> None:
    for packed in (msgpack.packb(media(item(9))), msgpack.packb(media(item("AUDIO")))):
        assert refused(packed).reason is Reason.MALFORMED_MULTIMODAL
