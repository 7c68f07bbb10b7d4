"""Redaction: prompts and features replaced by random values of the same shape and length.

The payload is overwritten in place, value by value, each by one of the same encoded size: every header,
number, unknown field and span stays where it was, byte for byte, so that what made a request a bug still
does. Replaced are

    token ids outside the spans   by ids of the same encoded size; equal ids of both prompts stay equal
    strings and binary values     by letters; rids, addresses, names of shared memory and errors are kept
    features and encodings        by random bytes without the top exponent bit: no NaN, no infinity
    aux frames                    like the tensor that they belong to; those that nothing refers to, too

Kept are placeholders, pads, the ids beside a span, offsets, grids and other small metadata, positions, and
hashes: whoever has the same file can recognize it by its hash.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from sidecar.errors import Rejection
from sidecar.recording import Record
from sidecar.replay.decode import (
    GenerateRequest,
    MessageKind,
    Undecodable,
    aux_of,
    decode_request,
    payload_of,
    peek,
    unpack,
)
from sidecar.wire.msgpack import Buffer, read_array_header, read_ext, read_int, read_map_header, read_str
from sidecar.wire.spans import element_bounds
from sidecar.wire.tensors import ITEM_BYTES, canonical_dtype
from sidecar.wire.tokenspeed import GENERATE_TAG, Item, Media, Request

_LETTERS: Final = string.ascii_lowercase.encode()
_KEPT_FIELDS: Final = (
    Request.TAG,
    Request.RID,
    Request.HTTP_WORKER_IPC,
    Request.BOOTSTRAP_HOST,
    Request.VALIDATION_ERROR,
)
_KEPT_KEYS: Final = ("request_id", "model", "validation_error", "extra_args")
_CONTENT_FIELDS: Final = (Item.FEATURE, Item.ENCODED, Item.ENCODED_DEEPSTACK)
_NUMERIC_CONTENT: Final = (Request.INPUT_EMBEDS, Request.INPUT_MULTI_IDS)
_SMALL_BYTES: Final = 256
_DEPTH: Final = 64
_ID_RANGES: Final = {1: (0, 1 << 7), 2: (1 << 7, 1 << 8), 3: (1 << 8, 1 << 16), 5: (1 << 16, 1 << 31)}
"""Encoded bytes -> the ids whose shortest encoding has as many."""


class Redactor:
    """Redacts the messages of one recording. The same seed gives the same random values.

    `keep_ids` are never replaced: placeholders of a dialect whose payload does not say where they are.
    """

    def __init__(self, seed: int | None = None, keep_ids: Collection[int] = ()) -> None:
        self._random = random.Random(seed)
        self._numpy = np.random.default_rng(self._random.getrandbits(64))
        self._keep_ids = frozenset(keep_ids)

    def redact(self, record: Record) -> Record | None:
        """The record without its content. None for a message that cannot be read: nobody can tell its
        content from its structure."""
        envelope = peek(record.frames, record.framing)
        if envelope.kind is MessageKind.UNREADABLE:
            return None
        if envelope.kind is not MessageKind.GENERATE:
            return record
        aux = aux_of(record.frames, record.framing)
        payload = _Payload(
            bytes(payload_of(record.frames, record.framing)), aux, self._random, self._numpy, self._keep_ids
        )
        try:
            if envelope.tag == GENERATE_TAG:
                payload.redact_request(decode_request(record.frames, record.framing))
            else:
                unpack(bytes(payload.data))
                payload.redact_map()
        except (Undecodable, Rejection):
            return None
        frames: list[Buffer] = [*record.frames[: len(record.frames) - len(aux) - 1], bytes(payload.data)]
        for index, frame in enumerate(aux, 1):
            dtype = payload.aux_dtypes.get(index, "uint8")
            frames.append(frame if dtype is None else self._features(len(frame), dtype))
        return Record(frames, record.direction, record.framing, record.wall_ns, record.mono_ns, record.metadata)

    def _features(self, nbytes: int, dtype: str) -> bytes:
        return random_tensor_bytes(self._numpy, nbytes, dtype)


def random_tensor_bytes(generator: np.random.Generator, nbytes: int, dtype: str) -> bytes:
    """Random tensor bytes: finite floats, bools of 0 and 1, any integers."""
    raw = np.frombuffer(generator.bytes(nbytes), np.uint8).copy()
    name, size = canonical_dtype(dtype), ITEM_BYTES[dtype]
    if name == "bool":
        raw &= 1
    elif name.startswith(("float", "bfloat")):
        raw[size - 1 :: size] &= 0xBF  # the highest bit of the exponent, which infinities and NaNs need
    return raw.tobytes()


class _Payload:
    """A payload that is being overwritten. `aux_dtypes` collects the aux frames that tensors refer to:
    index -> dtype, None for one that stays as it is."""

    def __init__(
        self,
        payload: bytes,
        aux: Sequence[Buffer],
        rng: random.Random,
        generator: np.random.Generator,
        keep_ids: frozenset[int],
    ) -> None:
        self.data = bytearray(payload)
        self.aux_dtypes: dict[int, str | None] = {}
        self._read = payload
        self._aux = aux
        self._random = rng
        self._numpy = generator
        self._keep_ids = keep_ids

    def redact_request(self, request: GenerateRequest) -> None:
        """A `TokenizedGenerateReqInput`."""
        places = list(self._elements(0, len(self._read)))
        lists = []
        for field, (start, end) in enumerate(places):
            if field in (Request.INPUT_IDS, Request.INPUT_IDS_UNPADDED) and isinstance(request.fields[field], list):
                lists.append((request.fields[field], list(self._elements(start, end))))
            elif field == Request.MULTIMODAL_INPUTS:
                self._media(start, end)
            elif field not in _KEPT_FIELDS:
                self._strings(start, end, numbers=field in _NUMERIC_CONTENT)
        kept_places, kept_ids = _structure_of(request)
        self._ids(lists, kept_places, kept_ids | self._keep_ids)

    def redact_map(self) -> None:
        """A preprocessed request: a map whose keys stay."""
        for key, start, end in self._entries(0, len(self._read)):
            if key == "token_ids":
                ids = unpack(self._read[start:end])
                self._ids([(ids, list(self._elements(start, end)))], set(), self._keep_ids)
            elif key not in _KEPT_KEYS:
                self._strings(start, end)

    def _ids(
        self, lists: list[tuple[list[Any], list[tuple[int, int]]]], places: set[int], ids: Collection[int]
    ) -> None:
        known = [v for values, _ in lists for v in values if type(v) is int and v not in ids]
        highest = max(known, default=0)
        drawn: dict[tuple[int, int], int] = {}
        for values, spans in lists:
            for place, value in enumerate(values):
                start, end = spans[place]
                low, high = _ID_RANGES.get(end - start, (0, 0))
                if type(value) is not int or place in places or value in ids or not low <= value < high:
                    continue
                other = drawn.get((place, value))
                if other is None:
                    other = value
                    for _ in range(8):  # a kept id must not turn up where it was not
                        candidate = self._random.randrange(low, min(high, highest + 1))
                        if candidate not in ids:
                            other = candidate
                            break
                    drawn[place, value] = other
                if end - start == 1:
                    self.data[start] = other
                else:
                    self.data[start + 1 : end] = other.to_bytes(end - start - 1, "big")

    def _media(self, start: int, end: int) -> None:
        for field, (at, after) in enumerate(self._elements(start, end)):
            if field != Media.MM_ITEMS:
                self._tensors(at, after, _is_never_content)
                continue
            for item in self._elements(at, after):
                for position, (value, behind) in enumerate(self._elements(*item)):
                    if position in _CONTENT_FIELDS:
                        self._tensors(value, behind, _is_always_content)
                    elif position == Item.MODEL_SPECIFIC_DATA:
                        for _, value_at, value_end in self._entries(value, behind):
                            self._tensors(value_at, value_end, _is_large_float)

    def _tensors(self, start: int, end: int, is_content: Callable[[str, int], bool]) -> None:
        """Overwrite those tensors in a value of which `is_content(dtype, nbytes)` says so."""
        parts = list(self._elements(start, end))
        dtype = read_str(self._read, *parts[0]) if len(parts) == 3 else None
        if dtype is None or dtype not in ITEM_BYTES:
            for part in parts:
                self._tensors(*part, is_content)
            return
        at, after = parts[2]
        index, ext = read_int(self._read, at), read_ext(self._read, at, after)
        if ext is not None:
            body = ext[1]
            if is_content(dtype, after - body):
                self.data[body:after] = random_tensor_bytes(self._numpy, after - body, dtype)
        elif index is not None and 0 < index <= len(self._aux):
            self.aux_dtypes[index] = dtype if is_content(dtype, len(self._aux[index - 1])) else None

    def _strings(self, start: int, end: int, *, numbers: bool = False) -> None:
        """Overwrite every string and binary value in a value, with `numbers` every number, too; keys stay."""
        lead = self._read[start]
        if 0xA0 <= lead <= 0xBF or 0xD9 <= lead <= 0xDB or 0xC4 <= lead <= 0xC6:
            head = 1 if lead < 0xC0 else {0xD9: 2, 0xC4: 2, 0xDA: 3, 0xC5: 3}.get(lead, 5)
            self.data[start + head : end] = bytes(self._random.choices(_LETTERS, k=end - start - head))
        elif numbers and lead in (0xCA, 0xCB):
            self.data[start + 1 : end] = random_tensor_bytes(self._numpy, end - start - 1, "float32")[::-1]
        elif numbers and 0xCC <= lead <= 0xCF:
            self.data[start + 1 : end] = self._random.randrange(read_int(self._read, start) or 1).to_bytes(
                end - start - 1, "big"
            )
        elif numbers and lead < 0x80:
            self.data[start] = self._random.randrange(lead or 1)
        else:
            for part in self._elements(start, end):
                self._strings(*part, numbers=numbers)
            for _, at, after in self._entries(start, end):
                self._strings(at, after, numbers=numbers)

    def _elements(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The spans of an array's elements; nothing for another type."""
        count, body = read_array_header(self._read, start, end)
        if count > 0:
            bounds = element_bounds(self._read, body, end, count, _DEPTH)
            yield from pairwise(bounds)

    def _entries(self, start: int, end: int) -> Iterator[tuple[str | None, int, int]]:
        """Key and span of a map's values; nothing for another type."""
        count, body = read_map_header(self._read, start, end)
        if count > 0:
            bounds = element_bounds(self._read, body, end, 2 * count, _DEPTH)
            for i in range(0, 2 * count, 2):
                yield read_str(self._read, bounds[i], bounds[i + 1]), bounds[i + 1], bounds[i + 2]


def _is_always_content(dtype: str, nbytes: int) -> bool:
    return True


def _is_never_content(dtype: str, nbytes: int) -> bool:
    return False


def _is_large_float(dtype: str, nbytes: int) -> bool:
    """Of metadata: a grid or a length is structure, a large float tensor can only be content."""
    return nbytes > _SMALL_BYTES and "float" in canonical_dtype(dtype)


def _structure_of(request: GenerateRequest) -> tuple[set[int], set[int]]:
    """The places of a prompt that are structure (spans and the ids beside them), and the ids that are
    (placeholders, pads)."""
    places: set[int] = set()
    media = request.media + [None] * (len(Media) - len(request.media))
    ids = {media[Media.IM_TOKEN_ID], media[Media.VIDEO_TOKEN_ID]}
    prompts = [p for p in (request[Request.INPUT_IDS], request[Request.INPUT_IDS_UNPADDED]) if isinstance(p, list)]
    for item in request.items:
        ids.add(item[Item.PAD_VALUE])
        for pair in item[Item.OFFSETS] if isinstance(item[Item.OFFSETS], list) else ():
            if not isinstance(pair, list) or len(pair) != 2 or not all(type(place) is int for place in pair):
                continue
            start, end = max(pair[0], 0), min(pair[1], max(map(len, prompts), default=0) - 1)
            for prompt in prompts:
                ids.update(i for i in prompt[start : end + 1] if type(i) is int)
            places.update(range(start - 1, end + 2))
    return places, {i for i in ids if type(i) is int}
