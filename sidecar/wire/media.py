"""The multimodal part of a TokenSpeed request: items, their tensors, handles and metadata, as spans.

Everything that the engine's decoder would refuse is refused here, under `malformed_multimodal` or
`malformed_tensor`; what the values mean is for `admission` to say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from sidecar.errors import Reason, Rejection
from sidecar.wire.msgpack import NIL, Buffer, read_array_header, read_int, read_map_header, read_str
from sidecar.wire.plain import unpack_plain
from sidecar.wire.spans import ArrayView, array_view, element_bounds, map_view
from sidecar.wire.tensors import ITEM_BYTES, MAX_RANK, TORCH_DTYPES, Tensor, read_shape, read_tensor
from sidecar.wire.tokenspeed import Item, Media, Modality

MAX_METADATA_VALUES: Final = 4096
"""The most numbers that a metadata value may hold when it comes as a plain list."""

MAX_METADATA_ENTRIES: Final = 64
"""The most entries in an item's `model_specific_data`; no processor makes a dozen."""

_HASH_RANGE: Final = (-(2**63), 2**64)


class ShmHandle(NamedTuple):
    """A handle to a tensor in a POSIX shared-memory segment."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """What the segment must hold: the product of the shape times the size of an element."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


class Metadata(NamedTuple):
    """An entry of `model_specific_data`: a tensor, or a plain number, bool or list of them.

    `span` is where the value stands in the payload.
    """

    tensor: Tensor | None
    plain: Any
    span: tuple[int, int]

    def array(self) -> NDArray[Any]:
        """The numbers, of the shape they came in; a plain number is 0-d."""
        return self.tensor.array() if self.tensor is not None else np.asarray(self.plain)


class ItemView(NamedTuple):
    """One `MultimodalDataItem`.

    `offsets` are inclusive [start, end] spans of the prompt, as they came; None where the field is nil.
    """

    ordinal: int
    array: ArrayView
    modality: Modality
    hash: int | None
    pad_value: int | None
    offsets: tuple[tuple[int, int], ...] | None
    feature: Tensor | None
    shm: ShmHandle | None
    metadata: Mapping[str, Metadata]
    encoded: Tensor | None
    deepstack: Tensor | None
    handshake: bool

    @property
    def tokens(self) -> int:
        """How many prompt positions the item's spans cover."""
        return sum(end - start + 1 for start, end in self.offsets or ())

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the item, metadata included."""
        own = [tensor for tensor in (self.feature, self.encoded, self.deepstack) if tensor is not None]
        return own + [entry.tensor for entry in self.metadata.values() if entry.tensor is not None]


class MediaView(NamedTuple):
    """`MultimodalInputs`, checked: the payload field, its items, and what it says of tokens and positions."""

    array: ArrayView
    items: list[ItemView]
    im_token_id: int | None
    video_token_id: int | None
    positions: Tensor | None
    delta: Tensor | None
    delta_scalar: int | None


def _bad(what: str) -> Rejection:
    return Rejection(Reason.MALFORMED_MULTIMODAL, what)


def read_media(
    buf: Buffer, pos: int, end: int, aux: Sequence[Buffer], *, max_items: int, max_depth: int
) -> MediaView | None:
    """The view of field 22 of a request, which stands at `pos` of a buffer that ends at `end`; None if it is nil.

    Without items the request is text, but what else the field holds is decoded by the engine all the
    same. Raises `Rejection` with `malformed_multimodal`, `malformed_tensor`, or `too_large` for more than
    `max_items` items.
    """
    if buf[pos : pos + 1] == NIL:
        return None
    fields, body = read_array_header(buf, pos, end)
    count, at = read_array_header(buf, body, end) if fields > 0 else (-1, body)
    if count < 0:
        raise _bad("multimodal_inputs is no array with a list of items")
    if count > max_items:
        raise Rejection(Reason.TOO_LARGE, f"the request has {count} items; the limit is {max_items} (limits.items)")
    items = []
    for ordinal in range(count):
        item = _read_item(buf, at, end, ordinal, aux, max_depth)
        items.append(item)
        at = item.array.end
    media = ArrayView(buf, pos, [body, *element_bounds(buf, at, end, fields - 1, max_depth)])
    _check_shared_memory_once(items)
    _tensor(media, Media.RESERVED, aux, "the reserved field of multimodal_inputs")
    return MediaView(
        media,
        items,
        _integer(media, Media.IM_TOKEN_ID, "im_token_id"),
        _integer(media, Media.VIDEO_TOKEN_ID, "video_token_id"),
        _tensor(media, Media.MROPE_POSITIONS, aux, "mrope_positions"),
        _tensor(media, Media.MROPE_POSITION_DELTA, aux, "mrope_position_delta"),
        _integer(media, Media.MROPE_POSITION_DELTA_SCALAR, "mrope_position_delta_scalar"),
    )


def _read_item(buf: Buffer, pos: int, end: int, ordinal: int, aux: Sequence[Buffer], max_depth: int) -> ItemView:
    name = f"item {ordinal}"
    item = array_view(buf, pos, end, max_depth)
    if item is None or not len(item):
        raise _bad(f"{name} is no array with a modality")
    modality = read_int(buf, item.bounds[0])
    if modality not in (1, 2, 3):
        raise _bad(f"{name} has the modality {modality}; expected 1 (image), 2 (video) or 3 (audio)")
    digest = _integer(item, Item.HASH, f"{name}: hash")
    if digest is not None and not _HASH_RANGE[0] <= digest < _HASH_RANGE[1]:
        raise _bad(f"{name}: the hash {digest} does not fit 64 bits")
    return ItemView(
        ordinal,
        item,
        Modality(modality),
        digest,
        _integer(item, Item.PAD_VALUE, f"{name}: pad_value"),
        _read_offsets(item, name),
        _tensor(item, Item.FEATURE, aux, f"{name}: feature"),
        _read_handle(item, name, max_depth),
        _read_metadata(item, name, aux, max_depth),
        _tensor(item, Item.ENCODED, aux, f"{name}: encoded"),
        _tensor(item, Item.ENCODED_DEEPSTACK, aux, f"{name}: encoded_deepstack"),
        _read_handshake(item, name, max_depth),
    )


def _integer(view: ArrayView, field: int, name: str) -> int | None:
    if view.is_nil(field):
        return None
    value = read_int(view.buf, view.bounds[field])
    if value is None:
        raise _bad(f"{name} is no integer")
    return value


def _tensor(view: ArrayView, field: int, aux: Sequence[Buffer], name: str) -> Tensor | None:
    if view.is_nil(field):
        return None
    return read_tensor(view.buf, view.bounds[field], view.bounds[field + 1], aux, name)


def _read_offsets(item: ArrayView, name: str) -> tuple[tuple[int, int], ...] | None:
    if item.is_nil(Item.OFFSETS):
        return None
    buf, pos, end = item.buf, item.bounds[Item.OFFSETS], item.bounds[Item.OFFSETS + 1]
    count, _ = read_array_header(buf, pos, end)
    if count < 0:
        raise _bad(f"{name}: offsets is no list")
    try:
        offsets = msgpack.unpackb(buf[pos:end], use_list=False, ext_hook=_no_ext)
    except (msgpack.UnpackException, ValueError):
        raise _bad(f"{name}: offsets holds something that is no [start, end] pair") from None
    for offset in offsets:
        if type(offset) is not tuple or len(offset) != 2 or type(offset[0]) is not int or type(offset[1]) is not int:
            raise _bad(f"{name}: an offset is a pair of integers [start, end]; one of the {count} is not")
    return offsets  # type: ignore[no-any-return]


def _read_handle(item: ArrayView, name: str, max_depth: int) -> ShmHandle | None:
    if item.is_nil(Item.FEATURE_SHM):
        return None
    buf = item.buf
    view = map_view(buf, item.bounds[Item.FEATURE_SHM], item.bounds[Item.FEATURE_SHM + 1], max_depth)
    if view is None or not {"shm_name", "shape", "dtype"} <= view.entries.keys():
        raise _bad(f"{name}: a shared-memory handle is a map with shm_name, shape and dtype")
    _, at, after = view.entries["shm_name"]
    shm_name = read_str(buf, at, after)
    if shm_name is None:
        raise _bad(f"{name}: shm_name is no string")
    _, at, after = view.entries["shape"]
    shape = read_shape(buf, at, after, f"{name}: shared memory")
    _, at, after = view.entries["dtype"]
    dtype = read_str(buf, at, after)
    if dtype not in TORCH_DTYPES:
        raise Rejection(
            Reason.MALFORMED_TENSOR,
            f"{name}: shared memory: the dtype {dtype!r:.40} is not allowed; expected a torch name such as 'bfloat16'",
        )
    return ShmHandle(shm_name, shape, dtype)


def _read_metadata(item: ArrayView, name: str, aux: Sequence[Buffer], max_depth: int) -> dict[str, Metadata]:
    field = Item.MODEL_SPECIFIC_DATA
    if field >= len(item):
        return {}
    buf = item.buf
    if item.buf[item.bounds[field]] == 0x80:
        return {}
    view = map_view(buf, item.bounds[field], item.bounds[field + 1], max_depth)
    if view is None:
        raise _bad(f"{name}: model_specific_data is no map")
    if len(view.entries) > MAX_METADATA_ENTRIES:
        raise Rejection(
            Reason.TOO_LARGE,
            f"{name} has {len(view.entries)} entries of model_specific_data; the limit is {MAX_METADATA_ENTRIES}",
        )
    metadata = {}
    for key, (_, pos, end) in view.entries.items():
        where = f"{name}: {key:.40}"
        if _looks_like_tensor(buf, pos, end):
            metadata[key] = Metadata(read_tensor(buf, pos, end, aux, where), None, (pos, end))
        else:
            metadata[key] = Metadata(None, _read_plain(buf, pos, end, where), (pos, end))
    return metadata


def _looks_like_tensor(buf: Buffer, pos: int, end: int) -> bool:
    """Whether a metadata value is a tensor triple, well-formed or not: an array that begins with a string."""
    count, body = read_array_header(buf, pos, end)
    return count > 0 and (0xA0 <= buf[body] <= 0xBF or 0xD9 <= buf[body] <= 0xDB)


def _read_plain(buf: Buffer, pos: int, end: int, where: str) -> Any:
    """A number, a bool, or a list of them or of equal rows of them."""
    try:
        value = msgpack.unpackb(
            buf[pos:end],
            ext_hook=_no_ext,
            max_array_len=MAX_METADATA_VALUES,
            max_map_len=0,
            max_str_len=0,
            max_bin_len=0,
        )
        array = np.asarray(value)
    except (msgpack.UnpackException, ValueError, OverflowError):
        array = None
    if array is None or array.dtype.kind not in "biuf" or array.size > MAX_METADATA_VALUES or array.ndim > MAX_RANK:
        raise _bad(f"{where}: expected a tensor, a number, or a list of numbers")
    return value


def _read_handshake(item: ArrayView, name: str, max_depth: int) -> bool:
    """Whether the item's embedding comes from an encode worker: `{bootstrap_room, bootstrap_host, bootstrap_port}`."""
    field = Item.ENCODE_HANDSHAKE
    if item.is_nil(field):
        return False
    buf, pos, end = item.buf, item.bounds[field], item.bounds[field + 1]
    if read_map_header(buf, pos, end)[0] < 0:
        raise _bad(f"{name}: encode_handshake is no map")
    try:
        value = unpack_plain(buf[pos:end])
    except ValueError:
        raise _bad(f"{name}: encode_handshake cannot be decoded") from None
    wanted = {"bootstrap_room": int, "bootstrap_host": str, "bootstrap_port": int}
    wrong = [key for key, kind in wanted.items() if type(value.get(key)) is not kind or value[key] == ""]
    if wrong:
        raise _bad(f"{name}: encode_handshake lacks a usable {', '.join(wrong)}; it needs a room, a host and a port")
    return True


def _check_shared_memory_once(items: Sequence[ItemView]) -> None:
    seen: dict[str, int] = {}
    for item in items:
        if item.shm is not None:
            first = seen.setdefault(item.shm.name, item.ordinal)
            if first != item.ordinal:
                raise _bad(
                    f"items {first} and {item.ordinal} carry the same shared-memory segment {item.shm.name!r:.80}"
                )


def _no_ext(code: int, data: bytes) -> Any:
    raise ValueError(f"ext code {code}")


def pack_offsets(offsets: Sequence[tuple[int, int]]) -> bytes:
    """The encoding of an item's offsets."""
    packed: bytes = msgpack.packb([list(offset) for offset in offsets])
    return packed
