"""Requests, media and contexts in a few words: what the tests send, and what they read back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgpack
import numpy as np

from sidecar.admission.policy import Policy
from sidecar.context import Context
from sidecar.materialize.mrope import bind
from sidecar.model import ModelSpec, from_config
from sidecar.outcome import Outcome
from sidecar.wire.framing import Framing
from sidecar.wire.media import ItemView, MediaView, read_media
from sidecar.wire.tokenspeed import REQUEST_DEFAULTS, Request

IMAGE: Final = 248056
VIDEO: Final = 248057
WIDTH: Final = 24
"""Values a patch of the test models: 3 channels, 2 frames, 2 by 2 pixels."""

QWEN_CONFIG: Final[Mapping[str, Any]] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "text_config": {"vocab_size": 248320},
    "vision_config": {"spatial_merge_size": 2, "patch_size": 2, "temporal_patch_size": 2, "in_channels": 3},
}
QWEN: Final = from_config(QWEN_CONFIG)
OMNI: Final = from_config(
    {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "thinker_config": {
            "image_token_id": 151655,
            "video_token_id": 151656,
            "audio_token_id": 151675,
            "position_id_per_seconds": 25,
            "seconds_per_chunk": 2,
            "text_config": {"vocab_size": 152064},
            "vision_config": {"spatial_merge_size": 2},
        },
    }
)
KIMI: Final = from_config(
    {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "media_placeholder_token_id": 163605,
        "text_config": {"vocab_size": 163840},
        "vision_config": {"merge_kernel_size": [2, 2], "patch_size": 2},
    }
)
LLAMA4: Final = from_config(
    {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "image_token_index": 200092,
        "text_config": {"vocab_size": 202048},
        "vision_config": {"image_size": 4, "patch_size": 2},
    }
)
TEXT: Final = from_config(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 64,
        "num_hidden_layers": 2,
    }
)
BARE: Final = ModelSpec("some_model", multimodal=True, modalities=QWEN.modalities)
"""A model whose config says nothing: no placeholder id, no vocabulary, no M-RoPE."""

NORMALIZED: Final = (
    32, None, None, 1.0, 1.0, 1 << 30, 0.0, 0.0, 0.0, 1.0, 0, None, None, None, None, False, True, True, False,
    None, None, None, None, 7, None, 1, [], 0, True,
)  # fmt: skip
"""Sampling params in the final form that a gateway sends."""

SAMPLING: Final = (32,)
"""The shortest useful sampling params, which still have to be finalized."""


def raw(data: bytes) -> msgpack.ExtType:
    """Tensor bytes inside the payload."""
    return msgpack.ExtType(3, data)


def tensor(values: Any, dtype: str | None = None, aux: int | None = None) -> list[Any]:
    """A tensor triple of an array's values, inline, or naming an aux frame."""
    array = np.asarray(values)
    data: Any = raw(array.tobytes()) if aux is None else aux
    return [dtype or array.dtype.name, list(array.shape), data]


def grid(*rows: tuple[int, int, int], dtype: str = "int64") -> list[Any]:
    """A grid tensor [rows, 3]."""
    return tensor(np.array(rows, dtype).reshape(-1, 3))


def patches(rows: int, seed: int = 0, width: int = WIDTH) -> np.ndarray[Any, Any]:
    """A feature [rows, width] of float32, different for every seed."""
    return np.random.default_rng(seed).standard_normal((rows, width), np.float32)


def item(
    modality: Any = 1,
    *,
    hash: Any = None,
    pad: Any = None,
    offsets: Any = ((2, 5),),
    feature: Any = ...,
    shm: Any = None,
    data: Any = ...,
    encoded: Any = None,
    deepstack: Any = None,
    handshake: Any = None,
    tail: Sequence[Any] = (),
) -> list[Any]:
    """An item: by default an image of 4 by 4 patches, so 4 tokens, in the prompt's positions 2 to 5."""
    if feature is ...:
        feature = tensor(patches(16)) if shm is None and handshake is None else None
    if data is ...:
        data = {"image_grid_thw" if modality == 1 else "video_grid_thw": grid((1, 4, 4))}
    listed = [list(offset) for offset in offsets] if isinstance(offsets, tuple) else offsets
    return [modality, hash, pad, listed, feature, shm, data, encoded, deepstack, handshake, *tail]


def media(
    *items: Any,
    im: Any = None,
    video: Any = None,
    positions: Any = None,
    delta: Any = None,
    scalar: Any = None,
    reserved: Any = None,
    tail: Sequence[Any] = (),
) -> list[Any]:
    """`MultimodalInputs`."""
    return [list(items), im, video, positions, delta, scalar, reserved, *tail]


def prompt(*runs: tuple[int, int] | int) -> list[int]:
    """Ids: a number is itself, a pair is an id and how often."""
    ids: list[int] = []
    for run in runs:
        ids += [run] if isinstance(run, int) else [run[0]] * run[1]
    return ids


ONE_IMAGE: Final = prompt(11, 12, (IMAGE, 4), 13, 14)
"""The prompt of the default item: two ids, four placeholders, two ids."""


def request(
    rid: Any = "r",
    ids: Any = ONE_IMAGE,
    sampling: Any = NORMALIZED,
    mm: Any = None,
    *,
    unpadded: Any = None,
    error: Any = None,
    count: int = 25,
    tail: Sequence[Any] = (),
    **fields: Any,
) -> list[Any]:
    """A request as a list; `fields` sets others by their lower-case names, `count` is where it ends."""
    values = [REQUEST_DEFAULTS.get(field) for field in Request]
    values[Request.TAG] = "TokenizedGenerateReqInput"
    values[Request.RID] = rid
    values[Request.INPUT_IDS] = ids
    values[Request.SAMPLING_PARAMS] = list(sampling) if isinstance(sampling, tuple) else sampling
    values[Request.INPUT_IDS_UNPADDED] = unpadded
    values[Request.MULTIMODAL_INPUTS] = mm
    values[Request.VALIDATION_ERROR] = error
    for name, value in fields.items():
        values[Request[name.upper()]] = value
    return [*values[:count], *tail]


def image_request(rid: Any = "r", **fields: Any) -> list[Any]:
    """A request with the default image."""
    return request(rid, mm=media(item()), **fields)


def frames(message: Any, *aux: bytes, framing: Framing = Framing.NATIVE) -> list[bytes]:
    """A message as frames; `message` may be packed already."""
    payload = message if isinstance(message, bytes) else msgpack.packb(message)
    head = [b"\x00"] if framing is Framing.TYPED else []
    return [*head, payload, *aux]


def policy(framing: Framing = Framing.NATIVE, **changes: Any) -> Policy:
    """A policy for one framing on both sides, with what goes with it."""
    settings: dict[str, Any] = {
        "ingress_framing": framing,
        "egress_framing": framing,
        "finalize_sampling": framing is Framing.NATIVE,
    }
    return Policy(**{**settings, **changes})


def context(spec: ModelSpec = QWEN, framing: Framing = Framing.NATIVE, **changes: Any) -> Context:
    """A fresh context; `changes` are those of the policy."""
    return context_of(spec, policy(framing, **changes))


def context_of(spec: ModelSpec, rules: Policy, **changes: Any) -> Context:
    """A fresh context of a policy; `changes` are the context's own fields."""
    planner = bind(spec.mrope_family, spec.config) if spec.mrope_family is not None else None
    return dataclasses.replace(Context(spec=spec, policy=rules, planner=planner), **changes)


def flat(message: Iterable[Any]) -> list[bytes]:
    """The frames of a message as bytes."""
    return [bytes(frame) for frame in message]


def sent(outcome: Outcome) -> list[bytes]:
    """The frames of the only message of an outcome."""
    (message,) = outcome.messages
    return flat(message)


def decoded(message: Sequence[bytes], framing: Framing = Framing.NATIVE) -> list[Any]:
    """The fields of a generate request."""
    payload = message[1] if framing is Framing.TYPED else message[0]
    fields: list[Any] = msgpack.unpackb(payload, strict_map_key=False)
    return fields


def values(triple: Sequence[Any], aux: Sequence[bytes] = ()) -> np.ndarray[Any, Any]:
    """The numbers of a tensor triple whose dtype numpy knows."""
    dtype, shape, data = triple
    return np.frombuffer(aux[data - 1] if isinstance(data, int) else data.data, dtype).reshape(shape)


def media_view(fields: Any, *aux: bytes, max_items: int = 1024, max_depth: int = 32) -> MediaView:
    """Field 22 of a request, read; `fields` may be packed already."""
    packed = fields if isinstance(fields, bytes) else msgpack.packb(fields)
    view = read_media(packed, 0, len(packed), aux, max_items=max_items, max_depth=max_depth)
    assert view is not None
    return view


def views(*items: Any, aux: Sequence[bytes] = ()) -> list[ItemView]:
    """Items, read."""
    return media_view(media(*items), *aux).items
