"""Content hashes for items that come without one.

`canonical` tells apart whatever the encoder would see as different. `tokenspeed` is the engine's own
hash, for deployments in which other paths into the same engine use it: it covers the raw bytes alone,
so images of equal bytes and different shape collide.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Final

import numpy as np
from blake3 import blake3

from sidecar.wire.media import ItemView, Metadata
from sidecar.wire.tensors import Tensor

_DOMAIN: Final = b"ingest-sidecar content hash, version 1\n"
_HASH_BYTES: Final = 8

_SMALL: Final = 4096

_PIECE: Final = 1 << 20
"""Bytes of a feature between two rests: 0.1 ms of blake3, 0.7 ms of blake2b."""

Rest = Callable[[], None]
"""Called between two pieces of a large feature, to let other threads have the core."""


def no_rest() -> None:
    """Go on."""


def canonical_hash(item: ItemView, rest: Rest = no_rest) -> int:
    """The first 8 bytes, big-endian, of the blake3 of an item's modality, feature and metadata.

    The feature counts with its dtype, shape and bytes. Metadata counts by value: a number, a list and
    a tensor that say the same hash the same, whatever integer or float type they came in.
    """
    digest = blake3(_DOMAIN)
    _update(digest.update, b"modality", struct.pack("<B", item.modality))
    for key in sorted(item.metadata):
        _update(digest.update, b"metadata", key.encode("utf-8", "surrogatepass"))
        _update_metadata(digest.update, item.metadata[key])
    if item.feature is not None:
        _update_tensor(digest.update, item.feature, rest)
    return int.from_bytes(digest.digest(length=_HASH_BYTES), "big")


def tokenspeed_hash(item: ItemView, rest: Rest = no_rest) -> int:
    """blake2b with an 8-byte digest over the feature's raw bytes, read big-endian.

    A feature that is not there is hashed as its repr. TokenSpeed, `runtime/multimodal/hash.py`.
    """
    digest = blake2b(digest_size=_HASH_BYTES)
    if item.feature is not None:
        _update_pieces(digest.update, item.feature.data, rest)
    else:
        digest.update(repr(None).encode())
    return int.from_bytes(digest.digest(), "big")


HASHES: Final[Mapping[str, Callable[[ItemView, Rest], int]]] = {
    "canonical": canonical_hash,
    "tokenspeed": tokenspeed_hash,
}
"""The values of `materialize.hash`."""


def _update(update: Callable[[bytes], object], label: bytes, data: bytes) -> None:
    update(struct.pack("<BQ", len(label), len(data)) + label + data)


def _update_tensor(update: Callable[[bytes | memoryview], object], tensor: Tensor, rest: Rest = no_rest) -> None:
    _update(update, b"dtype", tensor.canonical_dtype.encode())
    _update(update, b"shape", struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape))
    update(struct.pack("<Q", tensor.data.nbytes))
    _update_pieces(update, tensor.data, rest)


def _update_pieces(update: Callable[[bytes | memoryview], object], data: memoryview, rest: Rest) -> None:
    for start in range(0, data.nbytes, _PIECE):
        if start:
            rest()
        update(data[start : start + _PIECE])


def _update_metadata(update: Callable[[bytes | memoryview], object], entry: Metadata) -> None:
    tensor = entry.tensor
    if tensor is not None and (tensor.elements > _SMALL or tensor.canonical_dtype.startswith("float8")):
        _update_tensor(update, tensor)
        return
    values = entry.array()
    shape = [size for size in values.shape if size != 1]
    if values.dtype.kind == "f":
        wide = values.astype(np.float64)
        whole = bool(np.isfinite(wide).all()) and bool((wide == np.trunc(wide)).all())
        if not whole or not bool((np.abs(wide) < 2.0**63).all()):
            _update(update, b"floats", struct.pack(f"<{len(shape)}Q", *shape) + wide.tobytes())
            return
    kind = b"uint64" if values.dtype == np.uint64 else b"integers"
    exact = values if values.dtype == np.uint64 else values.astype(np.int64)
    if kind == b"uint64" and not bool((exact >= 2**63).any()):
        kind, exact = b"integers", exact.astype(np.int64)
    _update(update, kind, struct.pack(f"<{len(shape)}Q", *shape) + exact.tobytes())
