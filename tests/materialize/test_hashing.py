"""Content hashes: what the encoder would see as different hashes differently, however it was written."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from sidecar.materialize.hashing import HASHES, canonical_hash, tokenspeed_hash
from tests.build import grid, item, raw, tensor, views

DATA = np.arange(30 * 150 * 3, dtype=np.uint8)
GRID = {"image_grid_thw": grid((1, 4, 4))}


def canonical(modality: int = 1, feature: Any = None, data: Any = None, aux: tuple[bytes, ...] = ()) -> int:
    (view,) = views(item(modality, feature=feature, data=GRID if data is None else data), aux=aux)
    return canonical_hash(view)


def test_names() -> None:
    assert {"canonical": canonical_hash, "tokenspeed": tokenspeed_hash} == HASHES


def test_equal_bytes_that_are_different_pictures() -> None:
    """The engine's own hash takes all of these for one."""
    features = [
        ["uint8", [30, 150, 3], raw(DATA.tobytes())],
        ["uint8", [150, 30, 3], raw(DATA.tobytes())],
        ["int8", [30, 150, 3], raw(DATA.tobytes())],
        ["uint8", [13500], raw(DATA.tobytes())],
        ["int16", [30, 75, 3], raw(DATA.tobytes())],
    ]
    assert len({canonical(feature=feature) for feature in features}) == len(features)
    own = {tokenspeed_hash(views(item(feature=feature))[0]) for feature in features}
    assert len(own) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"modality": 1}, {"modality": 2}),
        ({"data": {"video_grid_thw": grid((2, 4, 4))}}, {"data": {"video_grid_thw": grid((1, 4, 4))}}),
        ({"data": {"second_per_grid_ts": 0.5}}, {"data": {"second_per_grid_ts": 1.0}}),
        ({"data": {"a": 1}}, {"data": {"b": 1}}),
        ({"data": {"a": [1, 2]}}, {"data": {"a": [2, 1]}}),
        ({"data": {"a": [[1, 2], [3, 4]]}}, {"data": {"a": [1, 2, 3, 4]}}),
        ({"data": {"a": 1}}, {"data": {}}),
        ({"data": {"a": 1.5}}, {"data": {"a": 1}}),
        ({"data": {"a": -1}}, {"data": {"a": 2**64 - 1}}),
        ({"data": {"a": float("nan")}}, {"data": {"a": 0.0}}),
    ],
)
def test_other_metadata_is_another_content(one: dict[str, Any], other: dict[str, Any]) -> None:
    feature = tensor(DATA.reshape(30, 150, 3))
    assert canonical(feature=feature, **one) != canonical(feature=feature, **other)


def test_one_feature_of_two_pictures_is_neither() -> None:
    a, b = np.ones((4, 6), np.float32), np.zeros((4, 6), np.float32)
    hashes = {canonical(feature=tensor(value)) for value in (a, b, np.concatenate([a, b]), np.concatenate([b, a]))}
    assert len(hashes) == 4


@pytest.mark.parametrize(("kind", "name"), [("float32", "int32"), ("float32", "uint32"), ("float16", "bfloat16")])
def test_equal_bits_of_another_type(kind: str, name: str) -> None:
    data = b"\0\1\2\3" * 4
    size = np.dtype(kind).itemsize
    assert canonical(feature=[kind, [16 // size], raw(data)]) != canonical(feature=[name, [16 // size], raw(data)])


def test_the_same_content_written_differently() -> None:
    data = np.linspace(0, 1, 24, dtype=np.float32).tobytes()
    features = [
        ["float32", [4, 6], raw(data)],
        ["<f4", [4, 6], raw(data)],
        ["float", [4, 6], raw(data)],
        ["float32", [4, 6], 1],
    ]
    assert len({canonical(feature=feature, aux=(data,)) for feature in features}) == 1
    ways = [
        {"g": grid((1, 4, 4)), "s": 2},
        {"s": 2, "g": grid((1, 4, 4))},
        {"g": grid((1, 4, 4), dtype="int32"), "s": 2.0},
        {"g": [[1, 4, 4]], "s": tensor([2])},
        {"g": [1, 4, 4], "s": tensor(np.float32(2))},
        {"g": tensor(np.array([[1, 4, 4]], np.uint64)), "s": [[2]]},
    ]
    assert len({canonical(feature=features[0], data=way) for way in ways}) == 1


@given(st.integers(-(2**63), 2**64 - 1), st.integers(-(2**63), 2**64 - 1))
def test_numbers_hash_by_value(a: int, b: int) -> None:
    same = canonical(data={"a": a}) == canonical(data={"a": b})
    assert same is (a == b)


def test_long_metadata_and_metadata_of_bits() -> None:
    long = np.arange(10_000)
    assert canonical(data={"a": tensor(long)}) != canonical(data={"a": tensor(long[::-1].copy())})
    assert canonical(data={"a": ["float8_e5m2", [2], raw(b"\1\2")]}) != canonical(
        data={"a": ["float8_e5m2", [2], raw(b"\2\1")]}
    )


def test_the_hash_is_stable() -> None:
    """It names contents in caches that outlive this process: it may change with its version line alone."""
    feature = tensor(np.arange(24, dtype=np.float32).reshape(4, 6))
    assert canonical(feature=feature) == 11584832123915932856
    assert 0 <= canonical() < 2**64


@pytest.mark.parametrize("name", ["canonical", "tokenspeed"])
@pytest.mark.parametrize("nbytes", [0, 1, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20 + 7])
def test_a_large_feature_is_hashed_in_pieces_that_change_nothing(name: str, nbytes: int) -> None:
    data = bytes(index * 7 % 251 for index in range(1000)) * (nbytes // 1000 + 1)
    (view,) = views(item(feature=["uint8", [nbytes], raw(data[:nbytes])], data=GRID))
    rests: list[None] = []
    found = HASHES[name](view, lambda: rests.append(None))
    assert len(rests) == max(-(-nbytes // 2**20) - 1, 0)
    if name == "tokenspeed":
        whole = blake2b(data[:nbytes], digest_size=8)
    else:
        whole = blake3(b"ingest-sidecar content hash, version 1\n")
        for label, value in (
            (b"modality", b"\x01"),
            (b"metadata", b"image_grid_thw"),
            (b"integers", struct.pack("<Q3q", 3, 1, 4, 4)),
            (b"dtype", b"uint8"),
            (b"shape", struct.pack("<Q", nbytes)),
        ):
            whole.update(struct.pack("<BQ", len(label), len(value)) + label + value)
        whole.update(struct.pack("<Q", nbytes) + data[:nbytes])
    assert found == int.from_bytes(whole.digest()[:8], "big")
