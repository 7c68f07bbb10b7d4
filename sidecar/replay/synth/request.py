"""A request as the frontend holds it, and its frames."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from sidecar.replay.synth.media import SynthItem, SynthTensor
from sidecar.wire.framing import TYPE_ADD, Framing
from sidecar.wire.msgpack import EXT_RAW, Buffer
from sidecar.wire.pads import pad_value
from sidecar.wire.tokenspeed import GENERATE_TAG, REQUEST_DEFAULTS, Item, Media, Modality, Request, Sampling

SAMPLING: Final[Mapping[Sampling, Any]] = {
    Sampling.MAX_NEW_TOKENS: 128,
    Sampling.TEMPERATURE: 1.0,
    Sampling.TOP_P: 1.0,
    Sampling.TOP_K: 1 << 30,
    Sampling.MIN_P: 0.0,
    Sampling.FREQUENCY_PENALTY: 0.0,
    Sampling.PRESENCE_PENALTY: 0.0,
    Sampling.REPETITION_PENALTY: 1.0,
    Sampling.MIN_NEW_TOKENS: 0,
    Sampling.IGNORE_EOS: False,
    Sampling.SKIP_SPECIAL_TOKENS: True,
    Sampling.SPACES_BETWEEN_SPECIAL_TOKENS: True,
    Sampling.NO_STOP_TRIM: False,
    Sampling.N: 1,
    Sampling.STOP_STRS: [],
    Sampling.STOP_STR_MAX_LEN: 0,
    Sampling.IS_NORMALIZED: True,
}
"""What a gateway sends; the seed is nil."""


@dataclass
class SynthRequest:
    """A request before it is packed; everything may be changed, into nonsense too.

    `mangle` has the last word: it is given the payload's fields and returns what is packed.
    """

    rid: str
    ids: list[Any]
    items: list[SynthItem] = field(default_factory=list)
    unpadded: list[int] | None = None
    sampling: dict[Sampling, Any] = field(default_factory=lambda: dict(SAMPLING))
    fields: dict[Request, Any] = field(default_factory=dict)
    media: dict[Media, Any] = field(default_factory=dict)
    mangle: Callable[[list[Any]], Any] = lambda fields: fields

    def place(self, item: SynthItem) -> None:
        """Put an item at the end of the prompt."""
        for is_span, ids in item.pieces:
            if is_span:
                item.offsets.append([len(self.ids), len(self.ids) + len(ids) - 1])
            self.ids.extend(ids)
        self.items.append(item)

    def materialize(self) -> None:
        """Do what a gateway does: hashes, pads, padded ids; M-RoPE positions it leaves out."""
        self.unpadded = list(self.ids)
        for item in self.items:
            assert item.hash is not None
            item.pad_value = pad_value(item.modality, item.hash)
            for start, end in item.offsets:
                self.ids[start : end + 1] = [item.pad_value] * (end - start + 1)

    def frames(self, framing: Framing, aux_bytes: int) -> list[Buffer]:
        """The message. Tensors of at least `aux_bytes` travel as aux frames; 0 keeps all inline."""
        pack = _Packing(aux_bytes)
        values: dict[int, Any] = {int(f): v for f, v in REQUEST_DEFAULTS.items()}
        values |= {Request.TAG: GENERATE_TAG, Request.RID: self.rid, Request.INPUT_IDS: self.ids}
        values[Request.SAMPLING_PARAMS] = [self.sampling.get(f) for f in Sampling]
        values[Request.INPUT_IDS_UNPADDED] = self.unpadded
        if self.items or self.media:
            values[Request.MULTIMODAL_INPUTS] = self._media(pack)
        values |= {int(f): v for f, v in self.fields.items()}
        count = Request.MULTIMODAL_INPUTS + 1 if self.items or self.media else Request.STREAM + 1
        count = max([count, *(f + 1 for f in self.fields)])
        fields = self.mangle([values.get(position) for position in range(count)])
        payload: bytes = fields if isinstance(fields, bytes) else msgpack.packb(fields)
        message: list[Buffer] = [payload, *pack.aux]
        return [TYPE_ADD, *message] if framing is Framing.TYPED else message

    def _media(self, pack: _Packing) -> list[Any]:
        media: dict[int, Any] = {Media.MM_ITEMS: [pack.item(item) for item in self.items]}
        for field_, modality in ((Media.IM_TOKEN_ID, Modality.IMAGE), (Media.VIDEO_TOKEN_ID, Modality.VIDEO)):
            media[field_] = next((item.placeholder for item in self.items if item.modality is modality), None)
        media |= {f: pack.value(v) for f, v in self.media.items()}
        return [media.get(f) for f in Media]


class _Packing:
    """Turns items and tensors into plain values, and collects the aux frames."""

    def __init__(self, aux_bytes: int) -> None:
        self.aux: list[Buffer] = []
        self._aux_bytes = aux_bytes

    def item(self, item: SynthItem) -> list[Any]:
        values: dict[int, Any] = {
            Item.MODALITY: int(item.modality),
            Item.HASH: item.hash,
            Item.PAD_VALUE: item.pad_value,
            Item.OFFSETS: item.offsets,
            Item.FEATURE: self.value(item.feature),
            Item.MODEL_SPECIFIC_DATA: {key: self.value(value) for key, value in item.metadata.items()},
        }
        return [values.get(f) for f in Item]

    def value(self, value: Any) -> Any:
        if not isinstance(value, SynthTensor):
            return value
        if self._aux_bytes and len(value.data) >= self._aux_bytes:
            self.aux.append(value.data)
            return [value.dtype, list(value.shape), len(self.aux)]
        return [value.dtype, list(value.shape), msgpack.ExtType(EXT_RAW, value.data)]


def new_rid(rng: random.Random, number: int) -> str:
    """A rid that no other run has, but for one with the same seed."""
    return f"synth-{rng.getrandbits(48):012x}-{number}"


def new_hash(rng: random.Random) -> int:
    """A random 64-bit hash."""
    return rng.getrandbits(64)
