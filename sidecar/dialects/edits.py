"""The edits of one TokenSpeed request, gathered by meaning and applied in one pass over the payload."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.admission.memory import Content
from sidecar.materialize.metadata import pack_plain
from sidecar.wire.media import ItemView, MediaView, pack_offsets
from sidecar.wire.msgpack import NIL, Buffer, pack_int
from sidecar.wire.request import RequestView, default_field
from sidecar.wire.spans import Edit, set_fields, splice
from sidecar.wire.tensors import pack_int64_scalar, pack_tensor
from sidecar.wire.tokenspeed import Item, Media, Request

AUX_BYTES: Final = 256
"""Computed tensors of this size and more leave as aux frames: the engine's own encoder does the same."""


class RequestEdits:
    """What changes in a request. Empty until something is set.

    `request` maps fields of the request to their new bytes. `aux` are the aux frames that came: added
    ones are numbered behind them, so that existing indices keep their meaning. With
    `tensor_metadata`, metadata that came as plain numbers becomes tensors: the engine's decoder takes
    nothing else.
    """

    __slots__ = ("_added", "_aux", "_edits", "_media", "_media_fields", "_view", "request")

    def __init__(
        self, view: RequestView, media: MediaView | None, aux: Sequence[Buffer], *, tensor_metadata: bool
    ) -> None:
        self._view = view
        self._media = media
        self._aux = aux
        self._added: list[Buffer] = []
        self._media_fields: dict[int, bytes] = {}
        self._edits: list[Edit] = []
        self.request: dict[int, bytes] = {}
        if media is not None and tensor_metadata:
            for item in media.items:
                for entry in item.metadata.values():
                    if entry.tensor is None:
                        self._edits.append((*entry.span, pack_plain(entry)))

    def __bool__(self) -> bool:
        return bool(self.request or self._media_fields or self._edits)

    def strip_media(self) -> None:
        """Take the media out of the request, and with it every edit inside."""
        self._media = None
        self._edits.clear()
        self._media_fields.clear()
        self.request[Request.MULTIMODAL_INPUTS] = NIL

    def set_contents(self, contents: Sequence[Content], hashed: Container[int]) -> None:
        """Give every item the pad value of its content, and the hash where it was computed here."""
        assert self._media is not None
        for item, content in zip(self._media.items, contents, strict=True):
            fields: dict[int, bytes] = {}
            if content.ordinal in hashed and content.hash is not None:
                fields[Item.HASH] = pack_int(content.hash)
            if item.pad_value != content.pad_value:
                fields[Item.PAD_VALUE] = pack_int(content.pad_value)
            self._edits.extend(set_fields(item.array, fields, _nil))

    def set_offsets(self, items: Sequence[ItemView]) -> None:
        """Give items new offsets, in the order of the media's own."""
        assert self._media is not None
        for old, new in zip(self._media.items, items, strict=True):
            if old.offsets != new.offsets:
                self._edits.extend(set_fields(old.array, {Item.OFFSETS: pack_offsets(new.offsets or ())}, _nil))

    def set_positions(self, positions: NDArray[Any], delta: Any) -> None:
        """Give the request its M-RoPE positions, a contiguous [axes, n], and its delta where it has none."""
        assert self._media is not None
        whole = positions.dtype == np.int64
        dtype = "int64" if whole else positions.dtype.name
        data = positions.data.cast("B")
        place: Buffer | int = data if data.nbytes < AUX_BYTES else self._add(data)
        self._media_fields[Media.MROPE_POSITIONS] = pack_tensor(dtype, positions.shape, place)
        if self._media.delta is None:
            packed = pack_int64_scalar(delta) if whole else pack_tensor(dtype, (1, 1), delta.tobytes())
            self._media_fields[Media.MROPE_POSITION_DELTA] = packed
        if self._media.delta_scalar is None:
            self._media_fields[Media.MROPE_POSITION_DELTA_SCALAR] = pack_int(int(delta))

    def _add(self, data: Buffer) -> int:
        self._added.append(data)
        return len(self._aux) + len(self._added)

    def apply(self, hoist_bytes: int) -> tuple[bytes, list[Buffer]]:
        """The edited payload, and the aux frames to add behind those that came.

        Since the payload is copied anyway, inline tensors of at least `hoist_bytes` (0: none) are not
        copied with it: they become aux frames that view the payload they came in.
        """
        edits = list(self._edits)
        media = self._media
        if media is not None:
            edits.extend(set_fields(media.array, self._media_fields, _nil))
            if hoist_bytes:
                tensors = [tensor for item in media.items for tensor in item.tensors]
                for tensor in (*tensors, media.positions):
                    if tensor is not None and tensor.aux == 0 and tensor.data.nbytes >= hoist_bytes:
                        edits.append((*tensor.data_span, pack_int(self._add(tensor.data))))
        edits.extend(set_fields(self._view.array, self.request, default_field))
        return splice(self._view.buf, edits), self._added


def _nil(field: int) -> bytes:
    return NIL
