"""What a Hugging Face config says about a model, read once at start into a frozen `ModelSpec`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar import model_resolver
from sidecar.errors import ConfigError
from sidecar.materialize.mrope.families import ARCHITECTURES, MODEL_TYPES, NO_MROPE_MODEL_TYPES
from sidecar.model_fields import Found, Part, one_integer
from sidecar.wire.tokenspeed import Modality

ID_NAMES: Final[Mapping[Modality, tuple[str, ...]]] = {
    Modality.IMAGE: (
        "image_token_id",
        "image_token_index",
        "media_placeholder_token_id",
        "image_placeholder_token_id",
        "im_token_id",
        "img_context_token_id",
        "im_patch_id",
    ),
    Modality.VIDEO: ("video_token_id", "video_token_index", "video_placeholder_token_id"),
    Modality.AUDIO: ("audio_token_id", "audio_token_index", "audio_placeholder_token_id"),
}
"""The names under which configs state the placeholder ids, the most common one first."""

FLAT_PATCH_TYPES: Final = frozenset(
    {
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen4_exp",
        "qwen2_5_omni",
        "qwen2_5_omni_thinker",
        "qwen3_omni_moe",
        "qwen3_omni_moe_thinker",
        "glm4v",
        "glm4v_moe",
        "glm46v",
        "glm_ocr",
        "cosmos3_omni",
        "cohere_compass",
    }
)
"""Model types whose features are flattened patches, [patches, channels·temporal_patch_size·patch_size²]."""

KIMI_TYPES: Final = frozenset({"kimi_k25", "kimi_k3", "kimi_vl"})
"""Model types whose features are square patches, [patches, 3, patch_size, patch_size]."""

GRID_TYPES: Final = frozenset({"kimi_k25", "kimi_k3"})
"""Model types without M-RoPE whose items carry a grid that says how many tokens they take."""

TILE_TYPES: Final = frozenset({"llama4"})
"""Model types whose features are whole tiles, [tiles, 3, image_size, image_size]."""

_IMAGE: Final = frozenset({Modality.IMAGE})
_VISION: Final = frozenset({Modality.IMAGE, Modality.VIDEO})
_ALL: Final = frozenset(Modality)
_OMNI_FAMILIES: Final = frozenset({"qwen2_5_omni", "qwen3_omni_moe"})
_IMAGE_FAMILIES: Final = frozenset({"glm_image", "hunyuan_vl"})
_SHARED_ID_FAMILIES: Final = frozenset({"glm4v"})
"""Families that mark the frames of a video with the image's placeholder."""

_logger = logging.getLogger(__name__)


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
    states, None where it states none. `modalities` are those that the model can encode; a config
    that says nothing about media has all of them. `mrope_family` names a planner of
    `materialize.mrope`; it is None for a model without M-RoPE. `mrope_unknown` says that the config
    speaks of M-RoPE (an mrope_section) but no planner is known for it. Times are None where the
    config does not state them. `image_placeholder` is the text of a native image placeholder and
    `image_placeholder_ids` are its ids where the operator gave them. `source` is the folder or hub
    id that a tokenizer can be loaded from, empty for a bare config. `config` is the resolved JSON,
    for the planners.
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
    temporal_merge_size: int = 1
    tokens_per_second: float | None = None
    position_id_per_seconds: float | None = None
    seconds_per_chunk: float | None = None
    feature_shapes: Mapping[Modality, FeatureShape] = field(default_factory=dict)
    mrope_family: str | None = None
    mrope_unknown: bool = False
    image_placeholder: str | None = None
    image_placeholder_ids: tuple[int, ...] | None = None
    source: str = ""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def token_id(self, modality: Modality) -> int | None:
        """The placeholder id of a modality, None where the config has none."""
        return (self.image_token_id, self.video_token_id, self.audio_token_id)[modality - 1]

    def span_token_modality(self, modality: Modality) -> Modality:
        """The modality whose placeholder fills the spans of this one: GLM's video frames hold the image's.

        Source: transformers 5.24, `Glm4vProcessor`, which writes each frame of a video as an image.
        """
        shared = modality is Modality.VIDEO and self.mrope_family in _SHARED_ID_FAMILIES
        return Modality.IMAGE if shared else modality


def grid_tokens(row: tuple[int, int, int], merge: int) -> int:
    """The tokens that a grid row of one of `GRID_TYPES` makes: (h / merge) · (w / merge).

    A row's frames are pooled into one, so t does not count (Kimi-K2.5 technical report, MoonViT-3D).
    """
    return (row[1] // merge) * (row[2] // merge)


def load_model(
    path: str, *, trust_remote_code: bool = False, image_placeholder_ids: Sequence[int] | None = None
) -> ModelSpec:
    """The model in a folder, a `config.json`, or a repository of the hub.

    The JSON file is read first. Where it leaves out a placeholder id, transformers is asked for the
    default of its config class, in a child process; without an answer the file stands alone.
    `trust_remote_code` lets that child run code that comes with the model.

    Raises:
        ConfigError: there is no such model, or its config contradicts itself.
    """
    found = model_resolver.find(path)
    try:
        spec = from_config(found.config)
        if _lacks_ids(spec):
            answer = model_resolver.complete(found, trust_remote_code)
            if answer.problem:
                _logger.warning("%s: left as it is, transformers has no defaults: %s", found.label, answer.problem)
            else:
                spec = _with_defaults(spec, answer.config)
    except ConfigError as error:
        raise ConfigError(f"{found.label}: {error}") from None
    ids = None if image_placeholder_ids is None else tuple(image_placeholder_ids)
    return dataclasses.replace(spec, source=found.source, image_placeholder_ids=ids)


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    """What a config says, and no more: nothing is looked up.

    Raises:
        ConfigError: a field has a wrong type, or two fields contradict each other. It names them.
    """
    top = Part("", config)
    model_type = top.text("model_type") or ""
    architectures = top.texts("architectures")
    if not model_type and not architectures:
        raise ConfigError("model_type and architectures are both missing; one of them must name the model")
    tables = _tables(top)
    ids = {modality: _placeholder_id(tables, modality) for modality in Modality}
    family = _family(model_type, architectures)
    modalities = _modalities(model_type, architectures, family, tables, ids)
    vocab_size = _vocab_size(tables)
    _check_ids(ids, vocab_size, family)
    merge = one_integer((*tables.vision, *tables.main), ["spatial_merge_size"], 1)
    temporal = one_integer(tables.vision, ["temporal_patch_size"], 1)
    flat = model_type in FLAT_PATCH_TYPES
    temporal_patch_size = temporal.value if temporal else (2 if flat else 1)
    temporal_merge = one_integer(tables.vision, ["temporal_merge_size"], 1)
    placeholder = top.get("image_placeholder")
    return ModelSpec(
        model_type=model_type,
        architectures=architectures,
        multimodal=bool(modalities),
        modalities=modalities,
        image_token_id=_value(ids[Modality.IMAGE]),
        video_token_id=_value(ids[Modality.VIDEO]),
        audio_token_id=_value(ids[Modality.AUDIO]),
        vocab_size=vocab_size,
        spatial_merge_size=merge.value if merge else _default_merge(model_type, family, tables),
        temporal_patch_size=temporal_patch_size,
        temporal_merge_size=_value(temporal_merge) or (2 if family == "ernie4_5_vl_moe" else 1),
        tokens_per_second=_first_positive(tables.vision, "tokens_per_second"),
        position_id_per_seconds=_first_positive(tables.main, "position_id_per_seconds"),
        seconds_per_chunk=_first_positive(tables.main, "seconds_per_chunk"),
        feature_shapes=_feature_shapes(model_type, modalities, tables, temporal_patch_size),
        mrope_family=family if modalities else None,
        mrope_unknown=bool(modalities)
        and family is None
        and model_type not in NO_MROPE_MODEL_TYPES
        and _speaks_of_mrope(config),
        image_placeholder=placeholder if isinstance(placeholder, str) else None,
        config=config,
    )


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables of a config by what they describe. `main` are the config and its thinker's."""

    main: tuple[Part, ...]
    text: tuple[Part, ...]
    vision: tuple[Part, ...]
    audio: tuple[Part, ...]

    def states_null(self, key: str) -> bool:
        """Whether a table that a model of this kind has by default is switched off."""
        return any(key in part.data and part.get(key) is None for part in self.main)


def _tables(top: Part) -> _Tables:
    thinker = top.part("thinker_config")
    main = (top,) if thinker is None else (top, thinker)

    def nested(*keys: str) -> tuple[Part, ...]:
        parts = [part.part(key) for part in main for key in keys]
        return tuple(part for part in parts if part is not None)

    return _Tables(
        main, nested("text_config", "llm_config", "language_config"), nested("vision_config"), nested("audio_config")
    )


def _placeholder_id(tables: _Tables, modality: Modality) -> Found | None:
    """The placeholder of a modality, under any of its names, in any of the tables that may state it."""
    encoder = tables.audio if modality is Modality.AUDIO else tables.vision
    return one_integer((*tables.main, *tables.text, *encoder), ID_NAMES[modality], 0)


def _check_ids(ids: Mapping[Modality, Found | None], vocab_size: int | None, family: str | None) -> None:
    seen: dict[int, Found] = {}
    for modality, found in ids.items():
        if found is None:
            continue
        if vocab_size is not None and found.value >= vocab_size:
            raise ConfigError(f"{found.label} = {found.value}: not in the vocabulary, which has {vocab_size} ids")
        other = seen.setdefault(found.value, found)
        shared = modality is Modality.VIDEO and family in _SHARED_ID_FAMILIES
        if other is not found and family is not None and not shared:
            raise ConfigError(
                f"{other.label} and {found.label} are both {found.value}, but {family} models tell "
                "modalities apart by their ids; correct one of them"
            )


def _vocab_size(tables: _Tables) -> int | None:
    sizes = [part.integer("vocab_size", 1) for part in (*tables.main, *tables.text)]
    return max((size for size in sizes if size is not None), default=None)


def _family(model_type: str, architectures: Sequence[str]) -> str | None:
    """The M-RoPE family that the model type and the architectures agree on."""
    claims = {f'model_type "{model_type}"': MODEL_TYPES[model_type]} if model_type in MODEL_TYPES else {}
    if model_type in NO_MROPE_MODEL_TYPES:
        claims = {f'model_type "{model_type}"': "no M-RoPE"}
    claims |= {f'architecture "{name}"': ARCHITECTURES[name] for name in architectures if name in ARCHITECTURES}
    if len(set(claims.values())) > 1:
        said = " and ".join(f"{claim} means {family}" for claim, family in claims.items())
        raise ConfigError(f"model_type and architectures contradict each other: {said}; correct one of them")
    family = next(iter(claims.values()), None)
    return None if family == "no M-RoPE" else family


def _modalities(
    model_type: str,
    architectures: Sequence[str],
    family: str | None,
    tables: _Tables,
    ids: Mapping[Modality, Found | None],
) -> frozenset[Modality]:
    """What the model can encode; empty for a text-only model."""
    if family is not None or model_type in KIMI_TYPES or model_type in TILE_TYPES:
        if family in _OMNI_FAMILIES:
            able = _ALL
        elif family is None or family in _IMAGE_FAMILIES:
            able = _IMAGE
        else:
            able = _VISION
        if tables.states_null("vision_config") and not tables.vision:
            able -= _VISION
        if tables.states_null("audio_config") and not tables.audio:
            able -= {Modality.AUDIO}
        return able
    stated = {modality for modality, found in ids.items() if found is not None}
    if tables.vision:
        stated.add(Modality.IMAGE)
    if tables.audio:
        stated.add(Modality.AUDIO)
    if Modality.IMAGE in stated and _speaks_of_video((*tables.main, *tables.vision)):
        stated.add(Modality.VIDEO)
    if stated:
        return frozenset(stated)
    known = model_type in NO_MROPE_MODEL_TYPES
    return _ALL if known or not _is_language_model(architectures, tables) else frozenset()


def _speaks_of_video(parts: Sequence[Part]) -> bool:
    return any("video" in key and value is not None for part in parts for key, value in part.data.items())


def _is_language_model(architectures: Sequence[str], tables: _Tables) -> bool:
    """Whether a config that says nothing of media describes a text-only model."""
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures):
        return True
    sizes = ("num_hidden_layers", "hidden_size", "n_layer", "n_embd", "d_model")
    return any(part.get(key) is not None for part in (*tables.main, *tables.text) for key in sizes)


def _default_merge(model_type: str, family: str | None, tables: _Tables) -> int:
    """The merge size of a config that does not name one: Kimi's kernel, else the config class's default."""
    for part in (*tables.vision, *tables.main):
        kernel = part.square("merge_kernel_size")
        if kernel is not None:
            return kernel
    if family is None:
        return 2 if model_type in KIMI_TYPES else 1
    return 1 if family == "glm_image" else 2


def _feature_shapes(
    model_type: str, modalities: frozenset[Modality], tables: _Tables, temporal_patch_size: int
) -> dict[Modality, FeatureShape]:
    """Shapes of features, for model types whose patches have one known form and whose sizes are stated."""
    for part in tables.vision:
        patch, image = part.square("patch_size"), part.square("image_size")
        channels = next((found for key in _CHANNELS if (found := part.integer(key, 1)) is not None), 3)
        if model_type in FLAT_PATCH_TYPES and patch is not None:
            shape = FeatureShape(2, (channels * temporal_patch_size * patch * patch,))
        elif model_type in KIMI_TYPES and patch is not None:
            shape = FeatureShape(4, (channels, patch, patch))
        elif model_type in TILE_TYPES and image is not None:
            shape = FeatureShape(4, (channels, image, image))
        else:
            continue
        return dict.fromkeys(sorted(modalities & _VISION), shape)
    return {}


_CHANNELS: Final = ("in_channels", "in_chans", "num_channels")


def _first_positive(parts: Sequence[Part], key: str) -> float | None:
    return next((value for part in parts if (value := part.positive(key)) is not None), None)


def _speaks_of_mrope(config: Mapping[str, Any]) -> bool:
    """Whether any table of a config, however deep, holds a section of an M-RoPE."""
    pending: list[Any] = [config]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            if value.get("mrope_section") is not None or value.get("xdrope_section") is not None:
                return True
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return False


def _lacks_ids(spec: ModelSpec) -> bool:
    return any(spec.token_id(modality) is None for modality in spec.modalities)


def _with_defaults(spec: ModelSpec, resolved: Mapping[str, Any]) -> ModelSpec:
    """A model whose config leaves something out, with what transformers' config class says about it.

    Taken over are the missing placeholder ids, and, for a config that says nothing about media,
    which media the model has. Nothing else: a default vocabulary or patch size says nothing about
    this checkpoint, and the defaults of times differ between transformers and the engines. An id
    beyond the vocabulary that the config itself states is a default for some other checkpoint.
    """
    tables = _tables(Part("", resolved))
    modalities = spec.modalities
    if spec.mrope_family is None and all(spec.token_id(modality) is None for modality in Modality):
        ids = {modality: _placeholder_id(tables, modality) for modality in Modality}
        modalities = _modalities(spec.model_type, spec.architectures, None, tables, ids)
    added = {}
    for modality in sorted(modalities):
        default = _placeholder_id(tables, modality) if spec.token_id(modality) is None else None
        if default is not None and (spec.vocab_size is None or default.value < spec.vocab_size):
            added[ID_NAMES[modality][0]] = default.value
    thinker = spec.config.get("thinker_config")
    if isinstance(thinker, Mapping):
        config = {**spec.config, "thinker_config": {**thinker, **added}}
    else:
        config = {**spec.config, **added}
    unknown = spec.mrope_family is None and spec.model_type not in NO_MROPE_MODEL_TYPES
    return dataclasses.replace(
        from_config(config),
        multimodal=bool(modalities),
        modalities=modalities,
        mrope_unknown=bool(modalities) and unknown and (spec.mrope_unknown or _speaks_of_mrope(resolved)),
    )


def _value(found: Found | None) -> int | None:
    return None if found is None else found.value
