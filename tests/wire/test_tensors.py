"""Tensor triples: every allowed dtype, no other; sizes proved before anything is made; bytes viewed, never copied."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import Reason, Rejection
from sidecar.wire.tensors import (
    ITEM_BYTES,
    MAX_RANK,
    TORCH_DTYPES,
    Tensor,
    canonical_dtype,
    pack_int64_scalar,
    pack_tensor,
    read_tensor,
)
from tests.build import raw


def read(triple: Any, *aux: bytes) -> Tensor:
    packed = triple if isinstance(triple, bytes) else msgpack.packb(triple)
    return read_tensor(packed, 0, len(packed), aux, "item 3: feature")


def refused(triple: Any, *aux: bytes) -> str:
    with pytest.raises(Rejection) as caught:
        read(triple, *aux)
    assert caught.value.reason is Reason.MALFORMED_TENSOR
    assert caught.value.message.startswith("item 3: feature: ")
    return caught.value.message


@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES))
def test_every_allowed_dtype_inline_and_aux(dtype: str) -> None:
    data = bytes(range(1, 1 + 6 * ITEM_BYTES[dtype]))
    inline = read([dtype, [2, 3], raw(data)])
    assert (inline.dtype, inline.shape, bytes(inline.data), inline.aux) == (dtype, (2, 3), data, 0)
    beside = read([dtype, [2, 3], 2], b"other", data)
    assert (beside.dtype, beside.shape, bytes(beside.data), beside.aux) == (dtype, (2, 3), data, 2)
    assert inline.elements == 6


@pytest.mark.parametrize("dtype", sorted(set(ITEM_BYTES) - TORCH_DTYPES))
def test_numpy_typestrings_mean_what_numpy_means(dtype: str) -> None:
    assert np.dtype(dtype).itemsize == ITEM_BYTES[dtype]
    assert np.dtype(canonical_dtype(dtype)) == np.dtype(dtype)


def test_torch_names_mean_what_torch_means() -> None:
    from tests.wire.torch_names import SIZES

    assert {name: ITEM_BYTES[name] for name in TORCH_DTYPES} == {name: size for name, (size, _) in SIZES.items()}
    assert {name: canonical_dtype(name) for name in TORCH_DTYPES} == {name: full for name, (_, full) in SIZES.items()}


@pytest.mark.parametrize(
    "dtype",
    [
        ">f4",
        ">i8",
        "=f4",
        "f4",
        "<f16",
        "<c8",
        "complex64",
        "cfloat",
        "V8",
        "|V8",
        "O",
        "|O",
        "S4",
        "|S4",
        "<U4",
        "datetime64",
        "<M8[s]",
        "<m8",
        "object",
        "torch.float32",
        "Float32",
        "quint8",
        "qint8",
        "bits8",
        "strided",
        "channels_last",
        "",
        "dtype",
        "float4_e2m1fn_x2",
        "uint1",
        "int4",
        "|f4",
        "<b2",
        "f4,i4",
        "<f4<f4",
        "4f4",
        "(2,)f4",
    ],
)
def test_every_other_dtype_is_refused(dtype: str) -> None:
    assert "not allowed" in refused([dtype, [1], raw(b"\0" * 64)])


@pytest.mark.parametrize("dtype", [None, 5, b"float32", ["float32"], True])
def test_a_dtype_that_is_no_string(dtype: Any) -> None:
    assert "not allowed" in refused([dtype, [1], raw(b"\0\0\0\0")])


@pytest.mark.parametrize("shape", [[], [0], [1], [3, 0, 2], [1] * MAX_RANK, [2, 2, 2, 2]])
def test_shapes(shape: list[int]) -> None:
    tensor = read(["uint8", shape, raw(b"\1" * int(np.prod(shape)))])
    assert tensor.shape == tuple(shape)
    assert tensor.array().shape == tuple(shape)


@pytest.mark.parametrize(
    ("shape", "what"),
    [
        ([-1], "dimension 0 of the shape is -1"),
        ([-2, -3], "dimension 0 of the shape is -2"),
        ([1, 1.0], "dimension 1 of the shape is no integer"),
        ([True], "dimension 0 of the shape is no integer"),
        ([None], "no integer"),
        (["1"], "no integer"),
        ([1] * (MAX_RANK + 1), f"{MAX_RANK + 1} dimensions; the limit is {MAX_RANK}"),
        ([1] * 40, "40 dimensions"),
        (1, "the shape is no list"),
        (None, "the shape is no list"),
        ("11", "the shape is no list"),
        ({}, "the shape is no list"),
    ],
)
def test_shapes_that_are_refused(shape: Any, what: str) -> None:
    assert what in refused(["uint8", shape, raw(b"\0")])


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("float32", [16, 24], 1535),
        ("float32", [16, 24], 1537),
        ("float32", [1 << 20, 1 << 20], 1536),
        ("uint8", [2**32, 2**32, 2], 0),
        ("uint8", [2**64 - 1, 2**64 - 1], 1),
        ("float64", [2**61 + 1], 8),
        ("float32", [3], 0),
        ("float32", [0], 4),
    ],
)
def test_sizes_that_do_not_fit(dtype: str, shape: list[int], size: int) -> None:
    tracemalloc.start()
    message = refused([dtype, shape, 1], b"\0" * size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert f"takes {ITEM_BYTES[dtype] * int(np.prod([int(n) for n in shape], dtype=object))} bytes" in message
    assert f"{size} came" in message


@pytest.mark.parametrize("shape", [[0, 2**63], [2**62, 0], [2**32, 2**32, 0], [0, 2**60]])
def test_an_empty_tensor_whose_strides_overflow(shape: list[int]) -> None:
    assert "strides beyond 64 bits" in refused(["float64", shape, raw(b"")])


def test_an_empty_tensor_of_large_dimensions() -> None:
    assert read(["float64", [0, 2**40], raw(b"")]).array().shape == (0, 2**40)


@pytest.mark.parametrize("index", [0, -1, 2, 2**31, 2**63, -(2**63)])
def test_aux_indices(index: int) -> None:
    assert f"aux frame {index}; the message has 1, counted from 1" in refused(["uint8", [1], index], b"x")


@pytest.mark.parametrize("data", [True, False, None, b"\0", "a", 1.0, [b"\0"], {}])
def test_data_that_is_neither(data: Any) -> None:
    assert "neither raw bytes" in refused(["uint8", [1], data], b"x")


@pytest.mark.parametrize(
    ("code", "what"), [(1, "a pickle"), (2, "a pickle"), (0, "unknown"), (4, "unknown"), (127, "unknown")]
)
def test_ext_codes(code: int, what: str) -> None:
    message = refused(["uint8", [1], msgpack.ExtType(code, b"\0")])
    assert f"ext of code {code} ({what}" in message


@pytest.mark.parametrize("triple", [[], ["uint8"], ["uint8", [1]], ["uint8", [1], raw(b"\0"), 0], None, 5, "uint8", {}])
def test_what_is_no_triple(triple: Any) -> None:
    assert "a tensor is [dtype, shape, data]" in refused(triple)


def test_bits_that_spell_nan_pass_unchanged() -> None:
    for dtype, data in (
        ("bfloat16", struct.pack("<4H", 0x7FC0, 0xFFC0, 0x7F81, 0xFFFF)),
        ("float8_e4m3fn", b"\x7f\xff\x7f\xff"),
        ("float8_e5m2", b"\x7d\x7e\x7f\xfd"),
        ("float16", struct.pack("<4H", 0x7E00, 0xFE00, 0x7C01, 0xFFFF)),
        ("float32", struct.pack("<2I", 0x7FC00000, 0xFF800001)),
    ):
        shape = [len(data) // ITEM_BYTES[dtype]]
        for tensor in (read([dtype, shape, raw(data)]), read([dtype, shape, 1], data)):
            assert (tensor.dtype, bytes(tensor.data)) == (dtype, data)


def test_bytes_are_viewed_in_the_frame_they_came_in() -> None:
    data = bytes(range(256)) * 40
    packed = msgpack.packb(["uint8", [10240], raw(data)])
    inline = read_tensor(packed, 0, len(packed), (), "x")
    assert inline.data.obj is packed
    assert packed[slice(*inline.data_span)] == msgpack.packb(raw(data))
    beside = read(["uint8", [10240], 1], data)
    assert beside.data.obj is data


def test_a_view_outlives_its_frame() -> None:
    data = bytes(range(256)) * 4000
    frame = bytearray(data)
    tensor = read(["uint8", [len(data)], 1], bytes(frame))
    digest = hashlib.sha256(data).digest()
    del frame
    for number in range(5000):
        read(["uint8", [200], 1], bytes([number % 256]) * 200)
    assert hashlib.sha256(tensor.data).digest() == digest


def test_values_as_numbers() -> None:
    values = np.array([[1.5, -2.25], [0, 1e30]], np.float32)
    bf16 = (values.view(np.uint32) >> 16).astype("<u2")
    assert read(["bfloat16", [2, 2], raw(bf16.tobytes())]).array()[0].tolist() == [1.5, -2.25]
    assert read(["<f4", [2, 2], raw(values.tobytes())]).array().tolist() == values.tolist()
    assert read(["double", [1], raw(struct.pack("<d", 0.1))]).array().tolist() == [0.1]
    assert read(["long", [1], raw(struct.pack("<q", -5))]).array().tolist() == [-5]
    assert read(["bool", [2], raw(b"\0\1")]).array().tolist() == [False, True]
    with pytest.raises(Rejection, match="float8_e5m2 tensor stands where numbers are expected"):
        read(["float8_e5m2", [1], raw(b"\0")]).array()


@given(
    st.sampled_from(sorted(ITEM_BYTES)),
    st.lists(st.integers(0, 5), max_size=4),
    st.booleans(),
    st.binary(max_size=3),
)
def test_packing_is_what_reading_undoes(dtype: str, shape: list[int], beside: bool, junk: bytes) -> None:
    size = ITEM_BYTES[dtype] * int(np.prod(shape, dtype=int))
    data = bytes(i % 251 for i in range(size))
    packed = junk + pack_tensor(dtype, shape, 1 if beside else data)
    tensor = read_tensor(packed + b"\xc1", len(junk), len(packed), (data,), "x")
    assert (tensor.dtype, tensor.shape, bytes(tensor.data)) == (dtype, tuple(shape), data)
    assert packed[len(junk) :] == msgpack.packb([dtype, shape, 1 if beside else raw(data)])


def test_the_delta_tensor() -> None:
    assert pack_int64_scalar(-60) == msgpack.packb(["int64", [1, 1], raw(struct.pack("<q", -60))])
