"""What a Hugging Face config says about a model, read once at start into a frozen `ModelSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.wire.tokenspeed import Modality


@dataclass(frozen=True, slots=True)
class FeatureShape:
    """What a feature tensor of one modality must look like, where the config states patch sizes.

    `rank` is the number of dimensions. `tail` are the sizes of the dimensions after the first
    (`(1536,)` for Qwen's flattened patches, `(3, 14, 14)` for Kimi's).
    """

    rank: int
    tail: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model, as far as the ingest path must know it.

    Token ids are vocabulary ids. `vocab_size` is the larger of the sizes that the config itself
    states, None where it states none. `mrope_family` names a planner of `materialize.mrope`; it is
    None for a model without M-RoPE. `mrope_unknown` says that the config speaks of M-RoPE (an
    mrope_section) but no planner is known for it. `config` is the resolved JSON, for the planners.
    """

    model_type: str
    architectures: tuple[str, ...] = ()
    multimodal: bool = False
    modalities: frozenset[Modality] = frozenset()
    image_token_id: int | None = None
    video_token_id: int | None = None
    audio_token_id: int | None = None
    vocab_size: int | None = None
    spatial_merge_size: int = 1
    temporal_patch_size: int = 1
    feature_shapes: Mapping[Modality, FeatureShape] = field(default_factory=dict)
    mrope_family: str | None = None
    mrope_unknown: bool = False
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def token_id(self, modality: Modality) -> int | None:
        """The placeholder id of a modality, None where the config has none."""
        return (self.image_token_id, self.video_token_id, self.audio_token_id)[modality - 1]
