"""One way at least to break a request for every reason that the sidecar has.

A breaker makes the requests to send, of which the last one is to be refused; what else must be so (a
setting of the sidecar, a kind of model) stands beside it in `BREAKERS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from sidecar.errors import Reason, UsageError
from sidecar.replay.synth.media import OMNI_FAMILIES, SynthItem, SynthTensor
from sidecar.replay.synth.recipe import Builder
from sidecar.replay.synth.request import SynthRequest, new_hash
from sidecar.wire.tokenspeed import Item, Media, Modality, Request, Sampling

_WIDTH, _HEIGHT = 96, 64
_NESTING: Final = 100
_LONG_PROMPT: Final = 5000


@dataclass(frozen=True, slots=True)
class Breaker:
    """How to break a request for a reason, and what that takes beside the request."""

    make: Callable[[Builder], list[SynthRequest]]
    needs: str = ""


def _text(change: Callable[[Builder, SynthRequest], None]) -> Callable[[Builder], list[SynthRequest]]:
    def make(builder: Builder) -> list[SynthRequest]:
        request = builder.text()
        change(builder, request)
        return [request]

    return make


def _image(change: Callable[[Builder, SynthRequest, SynthItem], None]) -> Callable[[Builder], list[SynthRequest]]:
    def make(builder: Builder) -> list[SynthRequest]:
        request = builder.media(builder.image(_WIDTH, _HEIGHT))
        change(builder, request, request.items[0])
        return [request]

    return make


def _malformed_request(builder: Builder, request: SynthRequest) -> None:
    request.mangle = builder.rng.choice(
        (
            lambda fields: fields[:4],
            lambda fields: msgpack.packb(fields) + b"\x00",
            lambda fields: [*fields[: Request.STREAM], "yes"],
        )
    )


def _malformed_multimodal(builder: Builder, request: SynthRequest, item: SynthItem) -> None:
    request.media = builder.rng.choice(({Media.MM_ITEMS: "items"}, {Media.MM_ITEMS: [[7, *[None] * (len(Item) - 1)]]}))


def _malformed_tensor(builder: Builder, request: SynthRequest, item: SynthItem) -> None:
    assert item.feature is not None
    if builder.rng.random() < 0.5:
        item.feature.data = item.feature.data[:-1]
    else:
        item.feature.shape = (1 << 40, *item.feature.shape[1:])


def _too_large(builder: Builder, request: SynthRequest) -> None:
    nested: Any = None
    for _ in range(_NESTING):
        nested = [nested]
    request.fields[Request.SESSION_PARAMS] = nested


def _token_ids_invalid(builder: Builder, request: SynthRequest) -> None:
    request.ids[builder.rng.randrange(len(request.ids))] = builder.rng.choice((-1, 1 << 31, 1.5, None, True))


def _prompt_empty(builder: Builder, request: SynthRequest) -> None:
    request.ids = []


def _prompt_too_long(builder: Builder, request: SynthRequest) -> None:
    request.ids = builder.maker.text(builder.rng, _LONG_PROMPT)


def _sampling_invalid(builder: Builder, request: SynthRequest) -> None:
    field, value = builder.rng.choice(((Sampling.TEMPERATURE, math.nan), (Sampling.SEED, 1 << 63)))
    request.sampling[field] = value


def _n_unsupported(builder: Builder, request: SynthRequest) -> None:
    request.sampling[Sampling.N] = 2


def _logprobs_unsupported(builder: Builder, request: SynthRequest) -> None:
    request.fields |= {Request.RETURN_LOGPROB: True, Request.TOP_LOGPROBS_NUM: 5}


def _media_for_nobody(builder: Builder) -> list[SynthRequest]:
    """An image, with whatever a model without images may be sent."""
    if builder.maker.modalities:
        return [builder.media(builder.image(_WIDTH, _HEIGHT))]
    item = SynthItem(
        Modality.IMAGE,
        SynthTensor.noise(builder.rng, "bfloat16", (16, 1536)),
        {"image_grid_thw": SynthTensor.integers([[1, 4, 4]])},
        [(True, builder.maker.text(builder.rng, 1) * 4)],
        new_hash(builder.rng),
    )
    return [builder.media(item)]


def _offsets_invalid(builder: Builder, request: SynthRequest, item: SynthItem) -> None:
    start, end = item.offsets[0]
    item.offsets[0] = builder.rng.choice(([end, start - 1], [start, len(request.ids)], [-1, end]))


def _placeholder_mismatch(builder: Builder, request: SynthRequest, item: SynthItem) -> None:
    request.ids[item.offsets[0][0]] = builder.maker.text(builder.rng, 1)[0]


def _grid(item: SynthItem, change: Callable[[int, int, int], tuple[int, int, int]]) -> None:
    for name in ("image_grid_thw", "grid_thws"):
        if name in item.metadata:
            t, h, w = msgpack_row(item.metadata[name])
            item.metadata[name] = SynthTensor.integers([change(t, h, w)])
            return
    raise UsageError("this model's images carry no grid that could be wrong")


def msgpack_row(tensor: SynthTensor) -> tuple[int, int, int]:
    """The (t, h, w) of a one-row grid."""
    t, h, w = (int.from_bytes(tensor.data[i : i + 8], "little", signed=True) for i in (0, 8, 16))
    return t, h, w


def _grid_invalid(builder: Builder, request: SynthRequest, item: SynthItem) -> None:
    _grid(item, builder.rng.choice((lambda t, h, w: (t, h + 1, w), lambda t, h, w: (t, 0, w))))


def _grid_mismatch(builder: Builder, request: SynthRequest, item: SynthItem) -> None:
    _grid(item, lambda t, h, w: (t, h * 2, w))


def _metadata_invalid(builder: Builder) -> list[SynthRequest]:
    model = builder.maker.model
    if Modality.VIDEO in builder.maker.modalities and model.mrope_family is not None:
        item = builder.video(_WIDTH, _HEIGHT, 2)
        key = "video_second_per_grid" if model.mrope_family in OMNI_FAMILIES else "second_per_grid_ts"
        item.metadata[key] = [-1.0]
        return [builder.media(item)]
    raise UsageError("this model has neither videos with seconds nor audio with lengths that could be wrong")


def _feature_missing(builder: Builder, request: SynthRequest, item: SynthItem) -> None:
    item.feature = None


def _feature_invalid(builder: Builder, request: SynthRequest, item: SynthItem) -> None:
    assert item.feature is not None
    rows, *tail = item.feature.shape
    if builder.rng.random() < 0.5:
        item.feature = SynthTensor.noise(builder.rng, item.feature.dtype, (rows, *tail[:-1], tail[-1] + 1))
    else:
        item.feature = SynthTensor(item.feature.dtype, (0, *tail), b"")


def _modality_unsupported(builder: Builder, request: SynthRequest, item: SynthItem) -> None:
    lacking = [m for m in Modality if m not in builder.maker.model.modalities]
    if not lacking:
        raise UsageError("this model has encoders for every modality")
    item.modality = lacking[-1]
    item.metadata = {}
    if builder.maker.model.model_type.startswith("kimi"):
        item.metadata["grid_thws"] = SynthTensor.integers([[1, 2, 2 * (item.offsets[0][1] - item.offsets[0][0] + 1)]])


def _without_feature(request: SynthRequest, field: Item, value: Any) -> None:
    """Take the feature away and say where it is instead."""

    def mangle(fields: list[Any]) -> list[Any]:
        item = fields[Request.MULTIMODAL_INPUTS][Media.MM_ITEMS][0]
        item[Item.FEATURE], item[field] = None, value
        return fields

    request.mangle = mangle


def _hash_missing(builder: Builder, request: SynthRequest, item: SynthItem) -> None:
    item.hash = None
    handshake = {"bootstrap_room": 1, "bootstrap_host": "127.0.0.1", "bootstrap_port": 8998}
    _without_feature(request, Item.ENCODE_HANDSHAKE, handshake)


def _shm_invalid(builder: Builder, request: SynthRequest, item: SynthItem) -> None:
    assert item.feature is not None
    name = f"psm_synth_{builder.rng.getrandbits(48):012x}"
    handle = {"shm_name": name, "shape": list(item.feature.shape), "dtype": item.feature.dtype}
    _without_feature(request, Item.FEATURE_SHM, handle)


def _hash_conflict(builder: Builder) -> list[SynthRequest]:
    small, large = builder.image(_WIDTH, _HEIGHT), builder.image(8 * _WIDTH, _HEIGHT)
    large.hash = small.hash = new_hash(builder.rng)
    return [builder.media(small), builder.media(large)]


def _pad_value_invalid(builder: Builder, request: SynthRequest, item: SynthItem) -> None:
    item.pad_value = builder.rng.choice((0, 999_999, (1 << 31) - 1))


def _mrope_invalid(builder: Builder, request: SynthRequest, item: SynthItem) -> None:
    n = len(request.ids) - 1
    request.media[Media.MROPE_POSITIONS] = SynthTensor.integers([list(range(n))] * 3)


def _any_image(builder: Builder) -> list[SynthRequest]:
    return [builder.media(builder.image(_WIDTH, _HEIGHT))]


def _expansion_mismatch(builder: Builder) -> list[SynthRequest]:
    if Modality.VIDEO in builder.maker.modalities:
        item = builder.video(_WIDTH, _HEIGHT, 2)
    elif builder.maker.model.model_type == "kimi_k3":
        item = builder.image(_WIDTH, _HEIGHT)
    else:
        return _too_many_pads(builder)
    item.pieces = [(is_span, ids[:1] if is_span else ids) for is_span, ids in item.pieces]
    return [builder.media(item)]


def _too_many_pads(builder: Builder) -> list[SynthRequest]:
    """Raw media for an engine that processes it itself: two placeholders, one image."""
    item = builder.image(_WIDTH, _HEIGHT)
    request = builder.media(item)
    request.ids = [*builder.maker.text(builder.rng, 5), item.placeholder, item.placeholder]
    item.feature, item.hash, item.offsets, item.metadata = None, None, [], {}
    return [request]


def _duplicate_rid(builder: Builder) -> list[SynthRequest]:
    first, second = builder.text(), builder.text()
    second.rid = first.rid
    return [first, second]


BREAKERS: Final[Mapping[Reason, Breaker]] = {
    Reason.MALFORMED_REQUEST: Breaker(_text(_malformed_request)),
    Reason.MALFORMED_MULTIMODAL: Breaker(_image(_malformed_multimodal)),
    Reason.MALFORMED_TENSOR: Breaker(_image(_malformed_tensor)),
    Reason.TOO_LARGE: Breaker(_text(_too_large)),
    Reason.TOKEN_IDS_INVALID: Breaker(_text(_token_ids_invalid)),
    Reason.PROMPT_EMPTY: Breaker(_text(_prompt_empty)),
    Reason.PROMPT_TOO_LONG: Breaker(_text(_prompt_too_long), "engine.max_model_len of at most 5000"),
    Reason.SAMPLING_INVALID: Breaker(_text(_sampling_invalid)),
    Reason.N_UNSUPPORTED: Breaker(_text(_n_unsupported), "a sidecar that finalizes sampling (native egress)"),
    Reason.LOGPROBS_UNSUPPORTED: Breaker(
        _text(_logprobs_unsupported), "a sidecar that finalizes sampling, engine.output_logprobs = false"
    ),
    Reason.TEXT_ONLY_MODEL: Breaker(_media_for_nobody, "a text-only model, or engine.language_model_only = true"),
    Reason.TEXT_REQUEST: Breaker(_text(lambda builder, request: None), 'admission.text_requests = "reject"'),
    Reason.OFFSETS_INVALID: Breaker(_image(_offsets_invalid)),
    Reason.PLACEHOLDER_MISMATCH: Breaker(_image(_placeholder_mismatch)),
    Reason.GRID_INVALID: Breaker(_image(_grid_invalid), "a model whose images carry grids"),
    Reason.GRID_MISMATCH: Breaker(_image(_grid_mismatch), "a model whose images carry grids"),
    Reason.METADATA_INVALID: Breaker(_metadata_invalid, "a model with videos"),
    Reason.FEATURE_MISSING: Breaker(_image(_feature_missing)),
    Reason.FEATURE_INVALID: Breaker(_image(_feature_invalid)),
    Reason.MODALITY_UNSUPPORTED: Breaker(_image(_modality_unsupported), "a model that lacks a modality"),
    Reason.HASH_MISSING: Breaker(_image(_hash_missing)),
    Reason.HASH_CONFLICT: Breaker(_hash_conflict),
    Reason.PAD_VALUE_INVALID: Breaker(_image(_pad_value_invalid)),
    Reason.SHM_INVALID: Breaker(_image(_shm_invalid)),
    Reason.MROPE_INVALID: Breaker(_image(_mrope_invalid)),
    Reason.MROPE_UNSUPPORTED: Breaker(_any_image, "a model that uses M-RoPE in a form unknown to the sidecar"),
    Reason.EXPANSION_MISMATCH: Breaker(_expansion_mismatch, "kimi_k2.5 only: engine.kind = sglang"),
    Reason.DUPLICATE_RID: Breaker(_duplicate_rid, "admission.duplicate_window_s above 0"),
}
