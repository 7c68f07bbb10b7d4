"""What an item brings: a feature that the encoder can take, in a modality that the model has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sidecar.admission.features import check_features, check_modalities, check_present
from sidecar.errors import Reason, Rejection
from sidecar.model import ModelSpec
from tests.build import BARE, KIMI, LLAMA4, OMNI, QWEN, item, patches, raw, tensor, views

ROOM = {"bootstrap_room": 1, "bootstrap_host": "h", "bootstrap_port": 2}


def test_something_must_be_there() -> None:
    shm = {"shm_name": "psm_1", "shape": [1], "dtype": "uint8"}
    check_present(
        views(item(), item(hash=1, shm=shm), item(hash=1, handshake=ROOM), item(feature=None, encoded=tensor([[1.0]])))
    )
    with pytest.raises(Rejection, match=r"item 1 \(video\) has no feature, no shared-memory handle") as caught:
        check_present(views(item(), item(2, feature=None)))
    assert caught.value.reason is Reason.FEATURE_MISSING


def refused(entry: Any, spec: ModelSpec, rows: dict[int, int] | None = None) -> str:
    with pytest.raises(Rejection) as caught:
        check_features(views(entry), spec, rows or {})
    assert caught.value.reason is Reason.FEATURE_INVALID
    assert caught.value.message.startswith("item 0: the ")
    return caught.value.message


@pytest.mark.parametrize("shape", [(), (0,), (0, 24), (16, 0), (16, 0, 24)])
@pytest.mark.parametrize("spec", [QWEN, KIMI, BARE])
def test_features_of_nothing(shape: tuple[int, ...], spec: ModelSpec) -> None:
    data = b"\0" * 4 if shape == () else b""
    assert f"has the shape {list(shape)}; expected at least one row" in refused(
        item(feature=["float32", list(shape), raw(data)]), spec
    )


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (QWEN, (16, 24), [(384,), (16, 25), (16, 23), (1, 16, 24), (16, 24, 1), (24, 16)]),
        (KIMI, (16, 3, 2, 2), [(16, 12), (16, 3, 4), (16, 3, 2, 4), (16, 1, 2, 2), (1, 16, 3, 2, 2)]),
        (LLAMA4, (2, 3, 4, 4), [(2, 48), (2, 3, 4, 2), (2, 1, 4, 4)]),
    ],
)
def test_shapes_by_family(spec: ModelSpec, good: tuple[int, ...], bad: list[tuple[int, ...]]) -> None:
    check_features(views(item(feature=tensor(np.zeros(good, np.float32)))), spec, {})
    shm = {"shm_name": "psm_1", "shape": list(good), "dtype": "float32"}
    check_features(views(item(hash=1, shm=shm)), spec, {})
    for shape in bad:
        message = refused(item(feature=tensor(np.zeros(shape, np.float32))), spec)
        assert (
            f"has the shape {list(shape)}; the model's patch sizes make it [rows, {', '.join(map(str, good[1:]))}]"
            in message
        )
        assert refused(item(hash=1, shm={**shm, "shape": list(shape)}), spec)


def test_rows() -> None:
    entry = item(feature=tensor(patches(16)))
    check_features(views(entry), QWEN, {0: 16})
    check_features(views(entry), QWEN, {})
    assert "has 16 rows; its grids make 20" in refused(entry, QWEN, {0: 20})
    check_features(views(entry), OMNI, {0: 20})  # its config states no patch size


@pytest.mark.parametrize("shape", [(3, 8), (5, 8), (4,), (1, 4, 8), ()])
def test_an_encoding_has_a_row_a_token(shape: tuple[int, ...]) -> None:
    check_features(views(item(feature=None, encoded=tensor(np.zeros((4, 8), np.float32)))), QWEN, {})
    assert "expected [4, hidden size], a row a token" in refused(
        item(encoded=tensor(np.zeros(shape, np.float32))), QWEN
    )


def test_modalities() -> None:
    check_modalities(views(item(), item(2)), QWEN)
    check_modalities(views(item(), item(2), item(3, data={})), OMNI)
    for modality, what in ((3, "item 0 is an audio; qwen3_5 has encoders for: image, video"),):
        with pytest.raises(Rejection) as caught:
            check_modalities(views(item(modality, data={})), QWEN)
        assert (caught.value.reason, caught.value.message) == (Reason.MODALITY_UNSUPPORTED, what)
    with pytest.raises(Rejection, match="item 1 is a video; kimi_k25 has encoders for: image"):
        check_modalities(views(item(), item(2)), KIMI)
