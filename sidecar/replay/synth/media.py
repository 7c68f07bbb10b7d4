"""Media items as a model's frontend would send them: how they stand in the prompt, and what comes with them.

Sizes follow the models' processors: Kimi pads an image up to whole merged patches, so that 640×480 makes
23·18 = 414 tokens; the Qwen-VL line rounds to the nearest; a video is t frames of one size.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from sidecar.errors import UsageError
from sidecar.replay.redact import random_tensor_bytes
from sidecar.wire.tensors import ITEM_BYTES
from sidecar.wire.tokenspeed import Modality

KIMI_TYPES: Final = ("kimi_k25", "kimi_k3", "kimi_vl")
FRAME_SPAN_FAMILIES: Final = ("qwen3_vl", "qwen3_5", "glm4v")
"""A video of t frames is t spans with timestamps between them; elsewhere it is one span."""

OMNI_FAMILIES: Final = ("qwen2_5_omni", "qwen3_omni_moe")
_UNKNOWN_LAYOUTS: Final = ("glm_image", "hunyuan_vl", "hy_v4_vl", "minicpmv4_7")
_MERGED_TIME_FAMILY: Final = "ernie4_5_vl_moe"

_PATCH: Final = 14
_MEL_BINS: Final = 128
_TILE_TOKENS: Final = 144
_MARKERS: Final = {
    Modality.IMAGE: ("vision_start_token_id", "vision_end_token_id"),
    Modality.VIDEO: ("vision_start_token_id", "vision_end_token_id"),
    Modality.AUDIO: ("audio_start_token_id", "audio_end_token_id"),
}


class FeatureShape(Protocol):
    """`sidecar.model.FeatureShape`, as far as it is needed here."""

    @property
    def rank(self) -> int: ...
    @property
    def tail(self) -> tuple[int, ...]: ...


class Model(Protocol):
    """`sidecar.model.ModelSpec`, as far as it is needed here."""

    @property
    def model_type(self) -> str: ...
    @property
    def multimodal(self) -> bool: ...
    @property
    def modalities(self) -> frozenset[Modality]: ...
    @property
    def vocab_size(self) -> int | None: ...
    @property
    def spatial_merge_size(self) -> int: ...
    @property
    def temporal_patch_size(self) -> int: ...
    @property
    def temporal_merge_size(self) -> int: ...
    @property
    def feature_shapes(self) -> Mapping[Modality, FeatureShape]: ...
    @property
    def mrope_family(self) -> str | None: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    def token_id(self, modality: Modality) -> int | None: ...


@dataclass
class SynthTensor:
    """A tensor to be packed. `data` are its raw bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def integers(cls, values: Sequence[Any]) -> SynthTensor:
        """An int64 tensor of nested lists."""
        array = np.array(values, "<i8")
        return cls("int64", array.shape, array.tobytes())

    @classmethod
    def noise(cls, rng: random.Random, dtype: str, shape: tuple[int, ...]) -> SynthTensor:
        """Random finite values."""
        generator = np.random.default_rng(rng.getrandbits(64))
        return cls(dtype, shape, random_tensor_bytes(generator, math.prod(shape) * ITEM_BYTES[dtype], dtype))


@dataclass
class SynthItem:
    """A media item that is not in a prompt yet.

    `pieces` are the ids that it puts into the prompt: runs of placeholders (True) and the ids around
    them (False). `offsets` are set when it is placed.
    """

    modality: Modality
    feature: SynthTensor | None
    metadata: dict[str, Any]
    pieces: list[tuple[bool, list[int]]]
    hash: int | None = None
    pad_value: int | None = None
    offsets: list[list[int]] = field(default_factory=list)

    @property
    def placeholder(self) -> int:
        """The id that stands for the item."""
        return next(ids[0] for is_span, ids in self.pieces if is_span)


@dataclass(frozen=True)
class MediaMaker:
    """Makes the media items of one model."""

    model: Model

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """What can be made for this model."""
        if not self.model.multimodal or self.model.mrope_family in _UNKNOWN_LAYOUTS:
            return ()
        known = [m for m in sorted(self.model.modalities) if m is not Modality.VIDEO or self.model.mrope_family]
        return tuple(m for m in known if m is not Modality.AUDIO or self.model.mrope_family in OMNI_FAMILIES)

    def image(self, rng: random.Random, width: int, height: int) -> SynthItem:
        """An image of so many pixels."""
        model = self.model
        if model.mrope_family is None and model.model_type not in KIMI_TYPES:
            return self._tiles(rng, width, height)
        grid = (1, *self._patches(width, height))
        rows = SynthTensor.integers([grid])
        name = "grid_thws" if model.mrope_family is None else "image_grid_thw"
        tokens = grid[1] * grid[2] // model.spatial_merge_size**2
        patches = grid[1] * grid[2]
        return SynthItem(
            Modality.IMAGE,
            self._feature(rng, Modality.IMAGE, patches),
            {name: rows, "patches_per_image": SynthTensor.integers([patches])},
            self._placed(rng, Modality.IMAGE, [tokens]),
        )

    def video(self, rng: random.Random, width: int, height: int, frames: int) -> SynthItem:
        """A video of so many pixels and temporal patches."""
        model = self.model
        h, w = self._patches(width, height)
        if model.mrope_family == _MERGED_TIME_FAMILY:
            frames = math.ceil(frames / model.temporal_merge_size) * model.temporal_merge_size
        grid = (frames, h, w)
        area = h * w // model.spatial_merge_size**2
        metadata: dict[str, Any] = {"video_grid_thw": SynthTensor.integers([grid])}
        if model.mrope_family in FRAME_SPAN_FAMILIES:
            spans = [area] * frames
        elif model.mrope_family == _MERGED_TIME_FAMILY:
            spans = [area * frames // model.temporal_merge_size]
        else:
            spans = [area * frames]
            seconds = np.array([rng.choice((0.5, 1.0, 2.0))], "<f4")
            key = "video_second_per_grid" if model.mrope_family in OMNI_FAMILIES else "second_per_grid_ts"
            if model.mrope_family != "qwen2_vl":
                metadata[key] = SynthTensor("float32", (1,), seconds.tobytes())
        feature = self._feature(rng, Modality.VIDEO, frames * h * w)
        return SynthItem(Modality.VIDEO, feature, metadata, self._placed(rng, Modality.VIDEO, spans))

    def audio(self, rng: random.Random, length: int) -> SynthItem:
        """An audio clip of so many mel frames."""
        feature = SynthTensor.noise(rng, "float32", (_MEL_BINS, length))
        metadata = {"audio_feature_lengths": SynthTensor.integers([length])}
        pieces = self._placed(rng, Modality.AUDIO, [self._audio_tokens(length)])
        return SynthItem(Modality.AUDIO, feature, metadata, pieces)

    def text(self, rng: random.Random, n: int) -> list[int]:
        """So many ids of ordinary text: none of them special."""
        low, high = self._text_range()
        return [rng.randrange(low, high) for _ in range(n)]

    def _text_range(self) -> tuple[int, int]:
        named = [
            v
            for table in _tables(self.model.config)
            for k, v in table.items()
            if k.endswith(("token_id", "token_index"))
        ]
        special = [v for v in named if type(v) is int and v > 1]
        vocabulary = self.model.vocab_size or 32_000
        high = min([*special, *(i for m in Modality if (i := self.model.token_id(m)) is not None), vocabulary])
        if high < 4:
            raise UsageError(f"the config leaves no ids for text: the lowest special id is {high}")
        return (100 if high > 1000 else 2), high

    def _patches(self, width: int, height: int) -> tuple[int, int]:
        """(h, w) in patches, each a multiple of the merge size."""
        merge, patch = self.model.spatial_merge_size, self._patch()
        side = merge * patch
        if self.model.model_type in KIMI_TYPES:
            return math.ceil(height / side) * merge, math.ceil(width / side) * merge
        return max(1, round(height / side)) * merge, max(1, round(width / side)) * merge

    def _patch(self) -> int:
        shape = self.model.feature_shapes.get(Modality.IMAGE)
        if shape is None:
            return _PATCH
        if len(shape.tail) == 3:
            return shape.tail[2]
        return max(1, math.isqrt(shape.tail[0] // (3 * self.model.temporal_patch_size)))

    def _feature(self, rng: random.Random, modality: Modality, rows: int) -> SynthTensor:
        shape = self.model.feature_shapes.get(modality)
        tail = shape.tail if shape is not None else (3 * self.model.temporal_patch_size * _PATCH * _PATCH,)
        return SynthTensor.noise(rng, "bfloat16", (rows, *tail))

    def _tiles(self, rng: random.Random, width: int, height: int) -> SynthItem:
        """An image as whole tiles, each one span: what models without a grid are sent."""
        shape = self.model.feature_shapes.get(Modality.IMAGE)
        tail = shape.tail if shape is not None and len(shape.tail) == 3 else (3, 336, 336)
        columns, rows = max(1, round(width / tail[2])), max(1, round(height / tail[1]))
        tiles = columns * rows
        metadata = {
            "aspect_ratios": SynthTensor.integers([[rows, columns]]),
            "patches_per_image": SynthTensor.integers([tiles]),
        }
        feature = SynthTensor.noise(rng, "bfloat16", (tiles, *tail))
        return SynthItem(Modality.IMAGE, feature, metadata, self._placed(rng, Modality.IMAGE, [_TILE_TOKENS] * tiles))

    def _placed(self, rng: random.Random, modality: Modality, spans: Sequence[int]) -> list[tuple[bool, list[int]]]:
        """The spans with their markers; several are told apart by a few ids, a video's timestamps."""
        start, end = (self._marker(rng, name) for name in _MARKERS[modality])
        placeholder = self._placeholder(modality)
        pieces: list[tuple[bool, list[int]]] = []
        for number, count in enumerate(spans):
            between = self.text(rng, 3) if number else []
            pieces += [(False, [*between, start]), (True, [placeholder] * count), (False, [end])]
        return pieces

    def _marker(self, rng: random.Random, name: str) -> int:
        for table in _tables(self.model.config):
            if type(table.get(name)) is int:
                return int(table[name])
        return self.text(rng, 1)[0]

    def _placeholder(self, modality: Modality) -> int:
        token = self.model.token_id(modality)
        if self.model.mrope_family == "glm4v" and modality is Modality.VIDEO:
            token = self.model.token_id(Modality.IMAGE)
        if token is None:
            raise UsageError(
                f"the config of this {self.model.model_type} has no placeholder for {modality.name.lower()}"
            )
        return token

    def _audio_tokens(self, length: int) -> int:
        """What the audio encoder of an Omni model makes of so many mel frames."""
        if self.model.mrope_family == "qwen2_5_omni":
            return ((length - 1) // 2 + 1 - 2) // 2 + 1
        window = next((t["n_window"] for t in _tables(self.model.config) if type(t.get("n_window")) is int), 50)
        full, left = divmod(length, 2 * window)
        halved = (left - 1) // 2 + 1
        return ((halved - 1) // 2 + 1 - 1) // 2 + 1 + full * 13


def _tables(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The config and every table in it."""
    tables = [config]
    for table in tables:
        tables.extend(value for value in table.values() if isinstance(value, Mapping))
    return tables
