"""Metadata under the names of gateways and processors, in every form that it comes in."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from sidecar.errors import Reason, Rejection
from sidecar.materialize.metadata import grids_of, media_item, pack_plain
from sidecar.model import ModelSpec
from sidecar.wire.tensors import read_tensor
from sidecar.wire.tokenspeed import Modality
from tests.build import KIMI, OMNI, QWEN, grid, item, raw, tensor, views


def grids(value: Any, name: str = "image_grid_thw", modality: int = 1, spec: ModelSpec = QWEN) -> Any:
    return grids_of(views(item(modality, data={name: value}))[0], spec)


FORMS = [
    grid((1, 4, 6), (2, 8, 8)),
    grid((1, 4, 6), (2, 8, 8), dtype="int32"),
    grid((1, 4, 6), (2, 8, 8), dtype="int16"),
    grid((1, 4, 6), (2, 8, 8), dtype="uint8"),
    [[1, 4, 6], [2, 8, 8]],
    ["<i8", [2, 3], raw(np.array([1, 4, 6, 2, 8, 8]).tobytes())],
    ["long", [2, 3], raw(np.array([1, 4, 6, 2, 8, 8]).tobytes())],
]


@pytest.mark.parametrize("form", FORMS)
def test_grids_in_every_form(form: Any) -> None:
    assert grids(form) == ((1, 4, 6), (2, 8, 8))
    assert grids(form, "video_grid_thw", 2) == ((1, 4, 6), (2, 8, 8))
    assert grids(form, "grid_thws", 1, KIMI) == ((1, 4, 6), (2, 8, 8))


def test_each_family_has_its_own_name() -> None:
    assert grids(FORMS[0], "grid_thws") == ()
    assert grids(FORMS[0], "video_grid_thw") == ()
    assert grids(FORMS[0], "image_grid_thw", 2) == ()
    assert grids(FORMS[0], "image_grid_thw", 1, KIMI) == ()
    assert grids(FORMS[0], "image_grid_thw", 3, OMNI) == ()


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (tensor([1, 4, 4]), "has the shape [3]; expected rows of (t, h, w)"),
        (tensor([[1, 4]]), "has the shape [1, 2]"),
        (tensor([[[1, 4, 4]]]), "has the shape [1, 1, 3]"),
        (tensor(4), "has the shape []"),
        (tensor([[1.0, 4.0, 4.0]]), "is float64; expected integers"),
        ([[1.0, 4.0, 4.0]], "is float64; expected integers"),
        (tensor(np.ones((1, 3), bool)), "is bool; expected integers"),
        (grid((1, 4, 4), dtype="uint16"), "is uint16; expected int64 or int32"),
        (grid((1, 4, 4), dtype="uint32"), "is uint32"),
        (grid((1, 4, 4), dtype="uint64"), "is uint64"),
        ([], "has the shape [0]"),
    ],
)
def test_what_is_no_grid(value: Any, what: str) -> None:
    with pytest.raises(Rejection) as caught:
        grids(value)
    assert caught.value.reason is Reason.GRID_INVALID
    assert caught.value.message.startswith("item 0: image_grid_thw ")
    assert what in caught.value.message


def planned(modality: int = 2, **data: Any) -> Any:
    (view,) = views(item(modality, data=data))
    return media_item(view, ())


@pytest.mark.parametrize(
    ("value", "seconds", "dtype"),
    [
        (2, (2,), None),
        (0.5, (0.5,), None),
        ([0.5, 1], (0.5, 1.0), None),
        (tensor(np.float32(0.5)), (0.5,), "float32"),
        (tensor(np.array([0.5, 1.5])), (0.5, 1.5), "float64"),
        (tensor([2]), (2,), "int64"),
        (["bfloat16", [1], raw(b"\x00\x3f")], (0.5,), "bfloat16"),
    ],
)
@pytest.mark.parametrize("name", ["video_second_per_grid", "second_per_grid_ts"])
def test_seconds_in_every_form(name: str, value: Any, seconds: tuple[float, ...], dtype: str | None) -> None:
    found = planned(**{name: value})
    assert (found.seconds, found.seconds_dtype) == (seconds, dtype)
    assert planned(1, **{name: value}).seconds is None


@pytest.mark.parametrize("value", [True, [[1.0]], tensor([[1.0]]), tensor(np.ones(1, bool))])
def test_seconds_that_are_none(value: Any) -> None:
    with pytest.raises(Rejection, match="is not a number or a list of them") as caught:
        planned(second_per_grid_ts=value)
    assert caught.value.reason is Reason.METADATA_INVALID


def test_an_fp8_number_is_none() -> None:
    with pytest.raises(Rejection) as caught:
        planned(second_per_grid_ts=["float8_e5m2", [1], raw(b"\0")])
    assert caught.value.reason is Reason.MALFORMED_TENSOR


def test_audio_and_pairs() -> None:
    found = planned(3, audio_feature_lengths=tensor([100, 200]), use_audio_in_video=True)
    assert (found.modality, found.audio_lengths, found.use_audio_in_video) == (Modality.AUDIO, (100, 200), True)
    assert planned(3, audio_feature_lengths=7, use_audio_in_video=tensor([False])).audio_lengths == (7,)
    assert not planned(3, use_audio_in_video=0).use_audio_in_video
    assert planned(1, target_sizes=[[1, 2], [3, 4]]).target_sizes == ((1, 2), (3, 4))
    for data in ({"audio_feature_lengths": 1.5}, {"target_sizes": [1, 2]}, {"target_sizes": [[1.5, 2.5]]}):
        with pytest.raises(Rejection) as caught:
            planned(**data)
        assert caught.value.reason is Reason.METADATA_INVALID


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (5, "int64"),
        (-5, "int64"),
        (2**63, "uint64"),
        (0.5, "float64"),
        (True, "bool"),
        ([1, 2], "int64"),
        ([[1.5, 2], [3, 4]], "float64"),
        ([], "float64"),
        ([True, False], "bool"),
    ],
)
def test_plain_values_become_tensors_of_the_same_numbers(value: Any, dtype: str) -> None:
    (view,) = views(item(data={"a": value}))
    packed = pack_plain(view.metadata["a"])
    result = read_tensor(packed, 0, len(packed), (), "x")
    assert (result.dtype, result.array().tolist()) == (dtype, value)
    assert msgpack.unpackb(packed)[1] == list(np.asarray(value).shape)
