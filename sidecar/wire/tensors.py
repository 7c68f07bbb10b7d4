"""Tensors on the wire: `[dtype, shape, data]`, checked before anything is allocated, viewed, never copied.

`data` is an ext of code 3 (raw bytes inside the payload) or the one-based index of an aux frame.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import Reason, Rejection
from sidecar.wire.msgpack import (
    EXT_RAW,
    Buffer,
    pack_array_header,
    pack_ext,
    pack_int,
    pack_str,
    read_array_header,
    read_ext,
    read_int,
    read_str,
)
from sidecar.wire.spans import element_bounds

MAX_RANK: Final = 16
"""No feature or metadata tensor comes near it; decoders behind us stop at 32 or 64 dimensions."""

_MAX_ELEMENTS: Final = 2**63 // 8 - 1
"""torch and numpy compute the strides of an empty tensor as if its zeros were ones, in signed 64-bit bytes."""

_TORCH_ITEM_BYTES: Final = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "short": 2, "uint32": 4, "int32": 4, "int": 4,
    "uint64": 8, "int64": 8, "long": 8, "float16": 2, "half": 2, "bfloat16": 2, "float32": 4, "float": 4,
    "float64": 8, "double": 8, "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}  # fmt: skip
_NUMPY_ITEM_BYTES: Final = {
    **{order + kind: 1 for order in "|<" for kind in ("b1", "i1", "u1")},
    **{f"<{kind}{size}": size for kind in "iu" for size in (2, 4, 8)},
    **{f"<f{size}": size for size in (2, 4, 8)},
}

ITEM_BYTES: Final[Mapping[str, int]] = {**_TORCH_ITEM_BYTES, **_NUMPY_ITEM_BYTES}
"""Every dtype that may be on the wire, as torch names it or as a numpy typestring -> bytes an element."""

TORCH_DTYPES: Final = frozenset(_TORCH_ITEM_BYTES)
"""The names that `getattr(torch, name)` knows: the only ones a shared-memory handle may carry."""

_NUMPY_OF_TORCH: Final = {
    "bool": "|b1", "short": "<i2", "int": "<i4", "long": "<i8", "half": "<f2", "float": "<f4", "double": "<f8",
    **{name: "<" + name[0] + str(size) for name, size in _TORCH_ITEM_BYTES.items()
       if name.rstrip("0123456789") in ("int", "uint", "float") and name[-1].isdigit()},
}  # fmt: skip

_NUMPY_KINDS: Final = {
    "b": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8", "u2": "uint16",
    "u4": "uint32", "u8": "uint64", "f2": "float16", "f4": "float32", "f8": "float64", "b1": "bool",
}  # fmt: skip
_TORCH_ALIASES: Final = {
    "short": "int16", "int": "int32", "long": "int64", "half": "float16", "float": "float32", "double": "float64",
}  # fmt: skip


class Tensor(NamedTuple):
    """A tensor that has been checked.

    `data` views the raw little-endian bytes in the frame they came in. `aux` is the index of its aux
    frame, 0 for an inline tensor, whose ext value stands at `data_span` of the payload.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    aux: int
    data_span: tuple[int, int]

    @property
    def elements(self) -> int:
        """The product of the shape; 1 for a 0-d tensor."""
        return math.prod(self.shape)

    @property
    def canonical_dtype(self) -> str:
        """torch's full name of the dtype, whichever spelling the wire has: `float` and `<f4` are float32."""
        return canonical_dtype(self.dtype)

    def array(self) -> NDArray[Any]:
        """The values as a numpy array of the tensor's shape, without a copy.

        bfloat16 comes as float32. Raises `Rejection(malformed_tensor)` for fp8, which numpy lacks.
        """
        if self.canonical_dtype == "bfloat16":
            bits = np.frombuffer(self.data, "<u2").astype(np.uint32) << 16
            return bits.view(np.float32).reshape(self.shape)
        typestring = _NUMPY_OF_TORCH.get(self.dtype, self.dtype)
        if typestring not in _NUMPY_ITEM_BYTES:
            raise Rejection(Reason.MALFORMED_TENSOR, f"a {self.dtype} tensor stands where numbers are expected")
        return np.frombuffer(self.data, typestring).reshape(self.shape)


def canonical_dtype(dtype: str) -> str:
    """torch's full name of a dtype of `ITEM_BYTES`."""
    if dtype[0] in "<|":
        return _NUMPY_KINDS[dtype[1:]]
    return _TORCH_ALIASES.get(dtype, dtype)


def _bad(name: str, what: str) -> Rejection:
    return Rejection(Reason.MALFORMED_TENSOR, f"{name}: {what}")


def read_tensor(buf: Buffer, pos: int, end: int, aux: Sequence[Buffer], name: str) -> Tensor:
    """The tensor that the value `buf[pos:end]` describes.

    `aux` are the message's aux frames; index 1 is `aux[0]`. `name` says where the tensor stands, for
    messages. Raises `Rejection(malformed_tensor)`.
    """
    count, body = read_array_header(buf, pos, end)
    if count != 3:
        found = "no array" if count < 0 else f"an array of {count}"
        raise _bad(name, f"a tensor is [dtype, shape, data]; this is {found}")
    at_dtype, at_shape, at_data, after = element_bounds(buf, body, end, 3)
    dtype = read_str(buf, at_dtype, at_shape)
    item_bytes = ITEM_BYTES.get(dtype) if dtype is not None else None
    if dtype is None or item_bytes is None:
        raise _bad(name, f"the dtype {dtype!r:.40} is not allowed; expected a torch name such as 'bfloat16' or '<f4'")
    shape = read_shape(buf, at_shape, at_data, name)
    data, index = _read_data(buf, at_data, after, aux, name)
    expected = item_bytes * math.prod(shape)
    if data.nbytes != expected:
        raise _bad(name, f"{dtype} {list(shape)} takes {expected} bytes, but {data.nbytes} came")
    return Tensor(dtype, shape, data, index, (at_data, after))


def read_shape(buf: Buffer, pos: int, end: int, name: str) -> tuple[int, ...]:
    """The shape at `pos`: a list of at most `MAX_RANK` non-negative integers."""
    rank, body = read_array_header(buf, pos, end)
    if rank < 0:
        raise _bad(name, "the shape is no list")
    if rank > MAX_RANK:
        raise _bad(name, f"the shape has {rank} dimensions; the limit is {MAX_RANK}")
    shape = []
    for axis, at in enumerate(element_bounds(buf, body, end, rank)[:-1]):
        size = read_int(buf, at)
        if size is None or size < 0:
            raise _bad(name, f"dimension {axis} of the shape is {'no integer' if size is None else size}")
        shape.append(size)
    if 0 in shape and math.prod(size or 1 for size in shape) > _MAX_ELEMENTS:
        raise _bad(name, f"the shape {shape} has no element, but strides beyond 64 bits")
    return tuple(shape)


def _read_data(buf: Buffer, pos: int, end: int, aux: Sequence[Buffer], name: str) -> tuple[memoryview, int]:
    index = read_int(buf, pos)
    if index is not None:
        if not 1 <= index <= len(aux):
            raise _bad(name, f"the data is aux frame {index}; the message has {len(aux)}, counted from 1")
        return memoryview(aux[index - 1]), index
    ext = read_ext(buf, pos, end)
    if ext is None:
        raise _bad(name, "the data is neither raw bytes (an ext of code 3) nor the index of an aux frame")
    code, start = ext
    if code != EXT_RAW:
        what = "a pickle, which is never read" if code in (1, 2) else "unknown"
        raise _bad(name, f"the data is an ext of code {code} ({what}); expected code {EXT_RAW}, raw bytes")
    return memoryview(buf)[start:end], 0


def pack_tensor(dtype: str, shape: Sequence[int], data: Buffer | int) -> bytes:
    """The encoding of a tensor with its bytes inline, or with the index of the aux frame that holds them."""
    head = b"".join((b"\x93", pack_str(dtype), pack_array_header(len(shape)), *map(pack_int, shape)))
    return head + (pack_int(data) if isinstance(data, int) else pack_ext(EXT_RAW, data))


def pack_int64_scalar(value: int) -> bytes:
    """The encoding of an int64 tensor of shape [1, 1]."""
    return pack_tensor("int64", (1, 1), struct.pack("<q", value))
