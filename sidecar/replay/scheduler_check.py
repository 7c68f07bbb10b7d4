"""What a scheduler demands of a message that reaches it: the checks of the stand-in scheduler.

Pure: a message in, a verdict out. Each check is one that a real scheduler dies of, or silently serves
wrong tokens for, when it does not hold.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from sidecar.replay.decode import (
    Envelope,
    GenerateRequest,
    MessageKind,
    Undecodable,
    decode_request,
    modality_of,
    payload_of,
    peek,
    tensor_of,
    unpack,
)
from sidecar.wire.framing import Framing
from sidecar.wire.ids import MAX_TOKEN_ID
from sidecar.wire.msgpack import Buffer
from sidecar.wire.tokenspeed import GENERATE_TAG, Item, Media, Modality, Request, Sampling

PAD_BASE: Final = 1_000_000
PAD_SLOTS: Final = (2**31 - PAD_BASE) // 3

_REMEMBERED_RIDS: Final = 100_000
_SEED_END: Final = 2**63


@dataclass(frozen=True, slots=True)
class Verdict:
    """A message as a scheduler sees it.

    `outcome` is `forwarded` or `rejected` for a generate request, empty for others; `problems` are what
    a scheduler would stumble over, empty for a sound message.
    """

    kind: MessageKind
    tag: str
    rids: tuple[str, ...]
    modality: str = ""
    tokens: int = 0
    items: int = 0
    positions: bool = False
    outcome: str = ""
    error: str = ""
    problems: tuple[str, ...] = ()


class SchedulerCheck:
    """Checks the messages of one connection in their order; remembers which rids are live.

    A rid is live from its request to its abort, because a stand-in never finishes one; of the oldest
    beyond 100,000 it knows nothing. With `mrope` a request with media must carry positions.
    """

    def __init__(self, framing: Framing, *, mrope: bool = False, duplicates: bool = False) -> None:
        self._framing = framing
        self._mrope = mrope
        self._duplicates = duplicates
        self._live: OrderedDict[str, None] = OrderedDict()

    def check(self, frames: Sequence[Buffer]) -> Verdict:
        """The verdict on a message. Never raises, whatever the bytes."""
        envelope = peek(frames, self._framing)
        if envelope.kind is MessageKind.ABORT:
            for rid in envelope.rids:
                self._live.pop(rid, None)
            problems = () if self._framing is Framing.TYPED else tuple(_whole(frames, self._framing))
            return Verdict(envelope.kind, envelope.tag, envelope.rids, problems=problems)
        if envelope.kind is not MessageKind.GENERATE:
            problems = tuple(_whole(frames, self._framing)) if self._framing is Framing.NATIVE else ()
            if envelope.kind is MessageKind.UNREADABLE:
                problems = ("no known tag, or no rid that is a string", *problems)
            return Verdict(envelope.kind, envelope.tag, envelope.rids, problems=problems)
        if envelope.tag != GENERATE_TAG:
            return self._check_preprocessed(frames, envelope.rids)
        try:
            request = decode_request(frames, self._framing)
        except Undecodable as error:
            return Verdict(envelope.kind, envelope.tag, envelope.rids, problems=(f"undecodable: {error}",))
        problems = (*self._duplicate(envelope.rid), *check_request(request, self._framing, mrope=self._mrope))
        ids, media = request[Request.INPUT_IDS], request.media
        refusal = request.validation_error
        return Verdict(
            envelope.kind,
            envelope.tag,
            envelope.rids,
            "+".join(request.modalities),
            len(ids) if isinstance(ids, list) else 0,
            len(request.items),
            len(media) > Media.MROPE_POSITIONS and media[Media.MROPE_POSITIONS] is not None,
            "rejected" if refusal else "forwarded",
            refusal or "",
            problems,
        )

    def _check_preprocessed(self, frames: Sequence[Buffer], rids: tuple[str, ...]) -> Verdict:
        """The map-encoded dialect: a map with token ids, whose refusal is its `validation_error`."""
        try:
            fields = unpack(payload_of(frames, self._framing))
        except Undecodable as error:
            return Verdict(MessageKind.GENERATE, "preprocessed", rids, problems=(f"undecodable: {error}",))
        refusal = str(fields.get("validation_error") or "")
        ids = fields["token_ids"]
        problems = [*(self._duplicate(rids[0]) if rids else ()), *_check_ids(ids, "token_ids", empty=bool(refusal))]
        return Verdict(
            MessageKind.GENERATE,
            "preprocessed",
            rids,
            modality_of(frames, self._framing, Envelope(MessageKind.GENERATE, "preprocessed", rids)),
            len(ids) if isinstance(ids, list) else 0,
            outcome="rejected" if refusal else "forwarded",
            error=refusal,
            problems=tuple(problems),
        )

    def _duplicate(self, rid: str) -> tuple[str, ...]:
        if self._duplicates:
            return ()
        live = rid in self._live
        self._live[rid] = None
        if len(self._live) > _REMEMBERED_RIDS:
            self._live.popitem(last=False)
        return ("the rid is live already",) if live else ()


def _whole(frames: Sequence[Buffer], framing: Framing) -> Iterator[str]:
    try:
        unpack(payload_of(frames, framing))
    except Undecodable as error:
        yield f"undecodable: {error}"


def check_request(request: GenerateRequest, framing: Framing, *, mrope: bool = False) -> Iterator[str]:
    """What a scheduler would stumble over in a generate request, a sentence each.

    `framing` native means that nobody finalizes the sampling params behind this point; `mrope` that
    the model uses M-RoPE, so that media without positions are served at wrong ones.
    """
    fields = request.fields
    if len(fields) <= Request.SAMPLING_PARAMS:
        yield f"{len(fields)} fields; a scheduler needs {Request.SAMPLING_PARAMS + 1}"
        return
    rejected = request.validation_error is not None
    ids = request[Request.INPUT_IDS]
    yield from _check_ids(ids, "input_ids", empty=rejected)
    yield from _check_sampling(request[Request.SAMPLING_PARAMS], native=framing is Framing.NATIVE, rejected=rejected)
    if request[Request.VALIDATION_ERROR] == "":
        yield "validation_error is an empty string, which a scheduler ignores"
    if rejected and request[Request.MULTIMODAL_INPUTS] is not None and not ids:
        yield "a rejected request still carries media"
    if not isinstance(ids, list):
        return
    unpadded = request[Request.INPUT_IDS_UNPADDED]
    if unpadded is not None:
        yield from _check_ids(unpadded, "input_ids_unpadded", empty=rejected)
        if isinstance(unpadded, list) and len(unpadded) != len(ids):
            yield f"input_ids has {len(ids)} ids, input_ids_unpadded {len(unpadded)}"
    if request[Request.MULTIMODAL_INPUTS] is not None:
        try:
            yield from _check_media(request, ids, mrope=mrope)
        except (Undecodable, TypeError, ValueError, IndexError) as error:
            yield f"multimodal_inputs: {error}"


def _check_ids(ids: Any, name: str, *, empty: bool) -> Iterator[str]:
    if not isinstance(ids, list):
        yield f"{name} is no list"
    elif not ids:
        if not empty:
            yield f"{name} is empty"
    elif not all(type(i) is int for i in ids) or min(ids) < 0 or max(ids) >= MAX_TOKEN_ID:
        at = next(n for n, i in enumerate(ids) if type(i) is not int or not 0 <= i < MAX_TOKEN_ID)
        yield f"{name}[{at}] is not an integer in [0, 2^31)"


def _check_sampling(params: Any, *, native: bool, rejected: bool) -> Iterator[str]:
    if not isinstance(params, list):
        yield "sampling_params is no array"
        return
    params = params + [None] * (len(Sampling) - len(params))
    seed = params[Sampling.SEED]
    if seed is not None and not (type(seed) is int and 0 <= seed < _SEED_END):
        yield "the seed is not in [0, 2^63)"
    if not native or rejected:
        return
    if seed is None:
        yield "the seed is nil, and nobody resolves it behind this point"
    if params[Sampling.STOP_STRS] is None:
        yield "the sampling params are not normalized: stop_strs is nil"
    new_tokens = params[Sampling.MAX_NEW_TOKENS]
    if type(new_tokens) is int and new_tokens < 0:
        yield f"max_new_tokens is {new_tokens}"


def _check_media(request: GenerateRequest, ids: list[int], *, mrope: bool) -> Iterator[str]:
    media = request.media
    if not media:
        yield "multimodal_inputs is no array"
        return
    items = request.items
    if len(items) != len(media[Media.MM_ITEMS] or []):
        yield "an item is no array"
    if items and request[Request.INPUT_IDS_UNPADDED] is None:
        yield "media without input_ids_unpadded: the prompt has not been materialized"
    spans: list[tuple[int, int]] = []
    for number, item in enumerate(items):
        for problem in _check_item(request, item, ids, spans):
            yield f"item {number}: {problem}"
    spans.sort()
    for before, after in pairwise(spans):
        if after[0] <= before[1]:
            yield f"spans {list(before)} and {list(after)} overlap"
    yield from _check_positions(request, len(ids), mrope=mrope and bool(items))


def _check_item(
    request: GenerateRequest, item: list[Any], ids: list[int], spans: list[tuple[int, int]]
) -> Iterator[str]:
    if item[Item.MODALITY] not in tuple(Modality):
        yield f"modality {item[Item.MODALITY]!r}"
        return
    pad = item[Item.PAD_VALUE]
    low = PAD_BASE + (item[Item.MODALITY] - 1) * PAD_SLOTS
    if type(pad) is not int or not low <= pad < low + PAD_SLOTS:
        yield f"pad value {pad!r} lies outside its modality's interval from {low} to {low + PAD_SLOTS - 1}"
    offsets = item[Item.OFFSETS]
    if not offsets:
        yield "no offsets"
    for start, end in offsets or ():
        if not 0 <= start <= end < len(ids):
            yield f"offsets [{start}, {end}] in a prompt of {len(ids)}"
            continue
        spans.append((start, end))
        span = set(ids[start : end + 1])
        if span != {pad}:
            yield f"offsets [{start}, {end}] do not hold the pad value throughout"
    if item[Item.FEATURE] is not None:
        feature = request.tensor(item[Item.FEATURE])
        if not feature.shape or not feature.elements:
            yield f"a feature of shape {list(feature.shape)}"
    elif all(item[field] is None for field in (Item.FEATURE_SHM, Item.ENCODED, Item.ENCODE_HANDSHAKE)):
        yield "no feature, handle, encoding or handshake"
    for key, value in (item[Item.MODEL_SPECIFIC_DATA] or {}).items():
        if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str):
            try:
                tensor_of(value, request.aux)
            except Undecodable as error:
                yield f"{key}: {error}"


def _check_positions(request: GenerateRequest, n: int, *, mrope: bool) -> Iterator[str]:
    media = request.media + [None] * (len(Media) - len(request.media))
    positions = media[Media.MROPE_POSITIONS]
    delta = media[Media.MROPE_POSITION_DELTA]
    scalar = media[Media.MROPE_POSITION_DELTA_SCALAR]
    if positions is None:
        if mrope:
            yield "the model uses M-RoPE and the positions are nil"
    else:
        shape = request.tensor(positions).shape
        if shape != (3, n):
            yield f"mrope_positions has shape {list(shape)}; expected [3, {n}]"
    if scalar is not None and type(scalar) is not int:
        yield "the scalar delta is no integer"
    if delta is not None:
        values = request.tensor(delta).array().ravel().tolist()
        if not values:
            yield "mrope_position_delta is empty"
        elif type(scalar) is int and values[0] != scalar:
            yield f"mrope_position_delta is {values[0]}, its scalar {scalar}"
