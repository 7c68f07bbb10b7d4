"""What `model_specific_data` says, under the names that gateways and processors use, as planner input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import Reason, Rejection
from sidecar.materialize.mrope import MediaItem
from sidecar.model import ModelSpec
from sidecar.wire.media import ItemView, Metadata
from sidecar.wire.tensors import pack_tensor
from sidecar.wire.tokenspeed import Modality

MROPE_GRID_NAMES: Final[Mapping[Modality, str]] = {
    Modality.IMAGE: "image_grid_thw",
    Modality.VIDEO: "video_grid_thw",
}
GRID_NAME: Final = "grid_thws"
"""The name of grids for families without M-RoPE, Kimi's. Each family's encoder looks for its own name only."""

SECONDS_NAMES: Final = ("video_second_per_grid", "second_per_grid_ts")

_UNPROMOTABLE: Final = frozenset({"uint16", "uint32", "uint64"})
"""torch cannot join these with the grids of another request in the batch."""

Grids = tuple[tuple[int, int, int], ...]


def grids_of(item: ItemView, spec: ModelSpec) -> Grids:
    """The item's (t, h, w) rows under the name that the model's encoder reads, () where it has none.

    Raises `Rejection(grid_invalid)` for a grid that is not a list of rows of three integers. The rows'
    numbers are checked where their meaning is known.
    """
    name = GRID_NAME if spec.mrope_family is None else MROPE_GRID_NAMES.get(item.modality, "")
    value = item.metadata.get(name)
    if value is None:
        return ()
    rows = _integers(item, name, value, Reason.GRID_INVALID)
    if value.tensor is not None and value.tensor.canonical_dtype in _UNPROMOTABLE:
        raise _bad(item, Reason.GRID_INVALID, f"{name} is {value.tensor.dtype}; expected int64 or int32")
    if rows.ndim != 2 or rows.shape[1] != 3:
        raise _bad(item, Reason.GRID_INVALID, f"{name} has the shape {list(rows.shape)}; expected rows of (t, h, w)")
    return tuple(map(tuple, rows.tolist()))


def media_item(item: ItemView, grids: Grids) -> MediaItem:
    """The item as the M-RoPE planners take it.

    Raises `Rejection(metadata_invalid)` for metadata that is not numbers of the expected form.
    """
    seconds, dtype = _seconds(item)
    metadata = item.metadata
    return MediaItem(
        item.ordinal,
        item.modality,
        item.offsets or (),
        grids,
        seconds,
        dtype,
        _lengths(item) if "audio_feature_lengths" in metadata else None,
        bool(metadata["use_audio_in_video"].array().any()) if "use_audio_in_video" in metadata else False,
        _pairs(item, "target_sizes") if "target_sizes" in metadata else None,
    )


def _first(item: ItemView, names: tuple[str, ...]) -> tuple[str, Metadata] | None:
    for name in names:
        entry = item.metadata.get(name)
        if entry is not None:
            return name, entry
    return None


def _seconds(item: ItemView) -> tuple[tuple[float, ...] | None, str | None]:
    entry = _first(item, SECONDS_NAMES)
    if entry is None or item.modality is not Modality.VIDEO:
        return None, None
    name, value = entry
    numbers = value.array()
    if numbers.dtype.kind not in "iuf" or numbers.ndim > 1:
        raise _bad(item, Reason.METADATA_INVALID, f"{name} is not a number or a list of them")
    return tuple(numbers.reshape(-1).tolist()), value.tensor.canonical_dtype if value.tensor is not None else None


def _lengths(item: ItemView) -> tuple[int, ...]:
    name = "audio_feature_lengths"
    lengths = _integers(item, name, item.metadata[name], Reason.METADATA_INVALID)
    return tuple(lengths.reshape(-1).tolist())


def _pairs(item: ItemView, name: str) -> tuple[tuple[int, int], ...]:
    pairs = _integers(item, name, item.metadata[name], Reason.METADATA_INVALID)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise _bad(item, Reason.METADATA_INVALID, f"{name} has the shape {list(pairs.shape)}; expected rows of (h, w)")
    return tuple(map(tuple, pairs.tolist()))


def _integers(item: ItemView, name: str, value: Metadata, reason: Reason) -> NDArray[Any]:
    numbers = value.array()
    if numbers.dtype.kind not in "iu" and numbers.size:
        raise _bad(item, reason, f"{name} is {numbers.dtype}; expected integers")
    return numbers


def _bad(item: ItemView, reason: Reason, what: str) -> Rejection:
    return Rejection(reason, f"item {item.ordinal}: {what}")


def pack_plain(entry: Metadata) -> bytes:
    """A plain metadata value as the tensor that the engine's decoder insists on.

    Integers become int64, floats float64, so no value changes; a number becomes 0-d. TokenSpeed's
    struct types every entry as a tensor and its decoder ends the scheduler over anything else.
    """
    values = np.asarray(entry.plain)
    if values.dtype.kind == "b":
        return pack_tensor("bool", values.shape, values.tobytes())
    if values.dtype.kind == "f":
        return pack_tensor("float64", values.shape, values.astype("<f8").tobytes())
    dtype = "uint64" if values.dtype.kind == "u" else "int64"
    return pack_tensor(dtype, values.shape, values.astype("<u8" if dtype == "uint64" else "<i8").tobytes())
