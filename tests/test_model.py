"""What configs say: real ones, minimal ones, contradictory ones."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import ConfigError
from sidecar.materialize.mrope.families import ARCHITECTURES, MODEL_TYPES
from sidecar.model import FeatureShape, ModelSpec, from_config, load_model
from sidecar.wire.tokenspeed import Modality

ROOT = Path(__file__).parents[1]
BUNDLED = ROOT / "config" / "models"
TINY = ROOT / "tests" / "data" / "models"
MINIMAL: dict[str, dict[str, Any]] = json.loads((TINY / "minimal.json").read_text())

IMAGE = frozenset({Modality.IMAGE})
VISION = frozenset({Modality.IMAGE, Modality.VIDEO})
ALL = frozenset(Modality)
QWEN_PATCHES = {Modality.IMAGE: FeatureShape(2, (1536,)), Modality.VIDEO: FeatureShape(2, (1536,))}
KIMI_PATCHES = {Modality.IMAGE: FeatureShape(4, (3, 14, 14))}


def qwen(**changes: Any) -> dict[str, Any]:
    """A small Qwen3.5 config with some fields changed; dots nest, `...` removes."""
    config = json.loads((TINY / "qwen3_5" / "config.json").read_text())
    for dotted, value in changes.items():
        *path, last = dotted.split(".")
        table = config
        for name in path:
            table = table.setdefault(name, {})
        if value is ...:
            table.pop(last, None)
        else:
            table[last] = value
    return config


def ids(spec: ModelSpec) -> tuple[int | None, int | None, int | None]:
    return spec.image_token_id, spec.video_token_id, spec.audio_token_id


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3_5", ("qwen3_5", VISION, (248056, 248057, None), 248320, 2, QWEN_PATCHES)),
        ("qwen3_omni", ("qwen3_omni_moe", ALL, (151655, 151656, 151675), 152064, 2, QWEN_PATCHES)),
        ("kimi_k25", (None, IMAGE, (163605, None, None), 163840, 2, KIMI_PATCHES)),
        ("kimi_k3", (None, IMAGE, (163605, None, None), 163840, 2, KIMI_PATCHES)),
        ("qwen3", (None, frozenset(), (None, None, None), 151936, 1, {})),
    ],
)
def test_bundled_models(name, expected, monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)  # a child process would be a start-up of seconds
    spec = load_model(str(BUNDLED / name))
    found = (
        spec.mrope_family,
        spec.modalities,
        ids(spec),
        spec.vocab_size,
        spec.spatial_merge_size,
        spec.feature_shapes,
    )
    assert found == expected
    assert spec.multimodal is bool(spec.modalities)
    assert not spec.mrope_unknown
    assert spec.config == json.loads((BUNDLED / name / "config.json").read_text())


def test_every_bundled_model_is_tested():
    assert {path.name for path in BUNDLED.iterdir()} == {"qwen3_5", "qwen3_omni", "kimi_k25", "kimi_k3", "qwen3"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kimi_k25", (None, IMAGE, (265, None, None), 291, KIMI_PATCHES)),
        ("kimi_k3", (None, IMAGE, (265, None, None), 291, KIMI_PATCHES)),
        ("llama4", (None, IMAGE, (271, None, None), 291, {Modality.IMAGE: FeatureShape(4, (3, 336, 336))})),
        ("qwen3_5", ("qwen3_5", VISION, (261, 262, None), 300, QWEN_PATCHES)),
        ("qwen3_vl", ("qwen3_vl", VISION, (261, 262, None), 300, QWEN_PATCHES)),
    ],
)
def test_models_that_gateway_frames_were_recorded_with(name, expected, monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    spec = load_model(str(TINY / name))
    assert (spec.mrope_family, spec.modalities, ids(spec), spec.vocab_size, spec.feature_shapes) == expected


@pytest.mark.parametrize("name", MINIMAL)
def test_a_minimal_config_works_and_states_no_more_than_it_says(name):
    config = MINIMAL[name]
    before = copy.deepcopy(config)
    spec = from_config(config)
    assert config == before
    assert spec.multimodal
    assert spec.vocab_size is None
    assert spec.feature_shapes == {}
    assert not spec.mrope_unknown
    assert spec.mrope_family == MODEL_TYPES.get(config["model_type"])
    inner = {**config, **config.get("thinker_config", {})}
    assert ids(spec) == (
        inner.get("image_token_id", inner.get("media_placeholder_token_id")),
        inner.get("video_token_id"),
        inner.get("audio_token_id"),
    )
    stated = inner.get("vision_config", {}).get("spatial_merge_size")
    assert stated is None or spec.spatial_merge_size == stated


def test_minimal_configs_cover_every_family():
    assert {from_config(config).mrope_family for config in MINIMAL.values()} == {*MODEL_TYPES.values(), None}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_alone_names_the_family(name):
    spec = from_config({"architectures": [name]})
    assert spec.mrope_family == ARCHITECTURES[name]
    assert spec.model_type == ""
    assert spec.multimodal


def test_a_custom_model_type_keeps_the_family_of_its_architecture():
    spec = from_config({"model_type": "mine", "architectures": ["Qwen2_5_VLForConditionalGeneration"]})
    assert (spec.model_type, spec.mrope_family) == ("mine", "qwen2_5_vl")


@pytest.mark.parametrize(
    ("config", "modalities"),
    [
        ({"model_type": "x"}, ALL),
        ({"model_type": "x", "architectures": ["XForConditionalGeneration"]}, ALL),
        ({"model_type": "x", "vision_config": {}}, IMAGE),
        ({"model_type": "x", "image_token_id": 5}, IMAGE),
        ({"model_type": "x", "image_token_id": 5, "video_token_id": 6}, VISION),
        ({"model_type": "x", "vision_config": {"video_fps": 2}}, VISION),
        ({"model_type": "x", "vision_config": {}, "video_placeholder": None}, IMAGE),
        ({"model_type": "x", "audio_config": {"audio_token_id": 7}}, frozenset({Modality.AUDIO})),
        ({"model_type": "x", "architectures": ["XForCausalLM"]}, frozenset()),
        ({"model_type": "x", "architectures": ["GPT2LMHeadModel"]}, frozenset()),
        ({"model_type": "x", "num_hidden_layers": 2}, frozenset()),
        ({"model_type": "x", "text_config": {"hidden_size": 8}}, frozenset()),
        ({"model_type": "x", "architectures": ["XForCausalLM"], "vision_config": {}}, IMAGE),
        ({"model_type": "aria"}, ALL),
        ({"model_type": "aria", "hidden_size": 8}, ALL),
        ({"model_type": "kimi_k25", "video_placeholder": "<v>"}, IMAGE),
        ({"model_type": "glm_image"}, IMAGE),
        ({"model_type": "hunyuan_vl"}, IMAGE),
        ({"model_type": "qwen3_omni_moe"}, ALL),
        ({"model_type": "qwen3_omni_moe", "thinker_config": {"audio_config": None}}, VISION),
        ({"model_type": "qwen3_omni_moe", "vision_config": None}, frozenset({Modality.AUDIO})),
        ({"model_type": "qwen3_5", "vision_config": None}, frozenset()),
    ],
)
def test_modalities(config, modalities):
    spec = from_config(config)
    assert spec.modalities == modalities
    assert spec.multimodal is bool(modalities)


def test_m_rope_at_any_depth():
    config: dict[str, Any] = {"mrope_section": [1]}
    for _ in range(5000):
        config = {"inner": [config]}
    assert from_config({"model_type": "x", "deep": config}).mrope_unknown


def test_a_family_without_its_encoders_has_no_positions_either():
    assert from_config({"model_type": "qwen3_5", "vision_config": None}).mrope_family is None


@pytest.mark.parametrize(
    ("config", "unknown"),
    [
        ({"model_type": "x", "vision_config": {}, "rope_scaling": {"mrope_section": [1, 2, 3]}}, True),
        (
            {"model_type": "x", "text_config": {"rope_parameters": {"mrope_section": [1, 2, 3]}}, "image_token_id": 1},
            True,
        ),
        ({"model_type": "x", "vision_config": {}, "layers": [{"rope": {"xdrope_section": [1]}}]}, True),
        ({"model_type": "x", "vision_config": {}, "rope_scaling": {"mrope_section": None}}, False),
        ({"model_type": "x", "vision_config": {}}, False),
        ({"model_type": "x", "num_hidden_layers": 2, "rope_scaling": {"mrope_section": [1]}}, False),
        ({"model_type": "qwen3_5", "rope_scaling": {"mrope_section": [1]}}, False),
        ({"model_type": "kimi_k25", "rope_scaling": {"mrope_section": [1]}}, False),
    ],
)
def test_m_rope_that_nobody_knows(config, unknown):
    assert from_config(config).mrope_unknown is unknown


@pytest.mark.parametrize(
    "config",
    [
        {"image_token_id": 5},
        {"image_token_index": 5},
        {"media_placeholder_token_id": 5},
        {"im_token_id": 5},
        {"thinker_config": {"image_token_index": 5}},
        {"text_config": {"image_token_id": 5}},
        {"vision_config": {"image_token_id": 5}},
        {"image_token_id": 5, "image_token_index": 5, "media_placeholder_token_id": None},
    ],
)
def test_names_and_places_of_a_placeholder(config):
    spec = from_config({"model_type": "x", **config})
    assert spec.token_id(Modality.IMAGE) == spec.image_token_id == 5
    assert spec.token_id(Modality.VIDEO) is spec.token_id(Modality.AUDIO) is None


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"vocab_size": 291, "text_config": {"vocab_size": 300}}, 300),
        ({"vocab_size": 300, "text_config": {"vocab_size": 291}}, 300),
        ({"thinker_config": {"text_config": {"vocab_size": 9}}}, 9),
        ({"talker_config": {"vocab_size": 8448}, "vision_config": {"vocab_size": 32000}}, None),
        ({"vocab_size": None}, None),
    ],
)
def test_the_vocabulary_is_the_larger_of_what_is_stated(config, size):
    assert from_config({"model_type": "x", **config}).vocab_size == size


def test_sizes_and_times():
    spec = from_config(
        {
            "model_type": "qwen2_5_vl",
            "vision_config": {"tokens_per_second": 2, "patch_size": 14, "in_chans": 1, "temporal_patch_size": 4},
        }
    )
    assert (spec.tokens_per_second, spec.position_id_per_seconds, spec.seconds_per_chunk) == (2.0, None, None)
    assert spec.temporal_patch_size == 4
    assert spec.feature_shapes[Modality.VIDEO] == FeatureShape(2, (1 * 4 * 14 * 14,))
    omni = from_config(
        {"model_type": "qwen2_5_omni", "thinker_config": {"position_id_per_seconds": 25, "seconds_per_chunk": 2.5}}
    )
    assert (omni.position_id_per_seconds, omni.seconds_per_chunk) == (25.0, 2.5)
    assert from_config({"model_type": "ernie4_5_vl_moe"}).temporal_merge_size == 2
    assert (
        from_config({"model_type": "ernie4_5_vl_moe", "vision_config": {"temporal_merge_size": 1}}).temporal_merge_size
        == 1
    )


@pytest.mark.parametrize(
    ("config", "merge"),
    [
        ({"model_type": "qwen3_5", "vision_config": {"spatial_merge_size": 4}}, 4),
        ({"model_type": "mistral3", "spatial_merge_size": 3}, 3),
        ({"model_type": "qwen2_5_omni", "thinker_config": {"vision_config": {"spatial_merge_size": 1}}}, 1),
        ({"model_type": "kimi_k25", "vision_config": {"merge_kernel_size": [3, 3]}}, 3),
        ({"model_type": "kimi_k25", "vision_config": {"merge_kernel_size": 1}}, 1),
        ({"model_type": "kimi_k25"}, 2),
        ({"model_type": "qwen3_5"}, 2),
        ({"model_type": "glm_image"}, 1),
        ({"model_type": "x"}, 1),
    ],
)
def test_spatial_merge(config, merge):
    assert from_config(config).spatial_merge_size == merge


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "model_type and architectures are both missing; one of them must name the model"),
        ({"model_type": 3}, "model_type = 3: expected a string"),
        ({"architectures": "Qwen"}, 'architectures = "Qwen": expected a list of strings'),
        ({"architectures": [1]}, "architectures = [1]: expected a list of strings"),
        (qwen(vision_config="big"), 'vision_config = "big": expected a table'),
        (qwen(text_config=[]), "text_config = []: expected a table"),
        (qwen(image_token_id=True), "image_token_id = true: expected a whole number, at least 0"),
        (qwen(image_token_id="261"), 'image_token_id = "261": expected a whole number, at least 0'),
        (qwen(image_token_id=261.0), "image_token_id = 261.0: expected a whole number, at least 0"),
        (qwen(video_token_id=-200), "video_token_id = -200: expected a whole number, at least 0"),
        (qwen(image_token_id=300), "image_token_id = 300: not in the vocabulary, which has 300 ids"),
        (qwen(video_token_id=261), "image_token_id and video_token_id are both 261, but qwen3_5 models tell "),
        (qwen(image_token_index=7), "image_token_id = 261 and image_token_index = 7 mean the same thing; make"),
        (
            qwen(**{"text_config.image_token_id": 7}),
            "image_token_id = 261 and text_config.image_token_id = 7 mean the same thing",
        ),
        (qwen(**{"text_config.vocab_size": 0}), "text_config.vocab_size = 0: expected a whole number, at least 1"),
        (qwen(vocab_size=False), "vocab_size = false: expected a whole number, at least 1"),
        (
            qwen(**{"vision_config.spatial_merge_size": 0}),
            "vision_config.spatial_merge_size = 0: expected a whole number, at least 1",
        ),
        (qwen(**{"vision_config.spatial_merge_size": True}), "vision_config.spatial_merge_size = true: "),
        (
            qwen(spatial_merge_size=4),
            "vision_config.spatial_merge_size = 2 and spatial_merge_size = 4 mean the same thing",
        ),
        (qwen(**{"vision_config.patch_size": [16, 14]}), "vision_config.patch_size = [16, 14]: expected a whole"),
        (qwen(**{"vision_config.patch_size": "16"}), 'vision_config.patch_size = "16": expected a whole number'),
        (qwen(**{"vision_config.temporal_patch_size": 0}), "vision_config.temporal_patch_size = 0: expected"),
        (qwen(**{"vision_config.in_channels": 0}), "vision_config.in_channels = 0: expected a whole number"),
        (qwen(**{"vision_config.tokens_per_second": 0}), "vision_config.tokens_per_second = 0: expected a number"),
        (qwen(position_id_per_seconds=float("nan")), "position_id_per_seconds = NaN: expected a number above 0"),
        (qwen(seconds_per_chunk=True), "seconds_per_chunk = true: expected a number above 0"),
        (
            {"model_type": "kimi_k25", "vision_config": {"merge_kernel_size": [2, 3]}},
            "vision_config.merge_kernel_size = [2, 3]: expected a whole number, at least 1, or two equal ones",
        ),
        (
            {"model_type": "qwen3_omni_moe", "thinker_config": {"audio_token_id": 5, "image_token_id": 5}},
            "thinker_config.image_token_id and thinker_config.audio_token_id are both 5",
        ),
        (
            qwen(architectures=["Qwen3OmniMoeForConditionalGeneration"]),
            'model_type "qwen3_5" means qwen3_5 and architecture "Qwen3OmniMoeForConditionalGeneration" means '
            "qwen3_omni_moe; correct one of them",
        ),
        (
            {"model_type": "kimi_k25", "architectures": ["Qwen2VLForConditionalGeneration"]},
            'model_type "kimi_k25" means no M-RoPE and architecture "Qwen2VLForConditionalGeneration" means qwen2_vl',
        ),
        ({"model_type": "kimi_k3", "media_placeholder_token_id": True}, "media_placeholder_token_id = true: "),
    ],
)
def test_a_config_that_contradicts_itself_names_the_field(config, message):
    with pytest.raises(ConfigError) as caught:
        from_config(config)
    assert message in str(caught.value)


def test_ids_may_be_shared_where_nothing_depends_on_them():
    assert ids(from_config({"model_type": "glm4v", "image_token_id": 5, "video_token_id": 5})) == (5, 5, None)
    assert ids(from_config({"model_type": "x", "image_token_id": 5, "video_token_id": 5})) == (5, 5, None)


@pytest.mark.parametrize(
    ("value", "text"), [("<|img|>", "<|img|>"), ("", ""), (None, None), (5, None), (["<|img|>"], None)]
)
def test_the_native_placeholder_is_left_as_the_checkpoint_states_it(value, text):
    spec = from_config({"model_type": "kimi_k3", "image_placeholder": value})
    assert spec.image_placeholder == text
    assert spec.config["image_placeholder"] == value


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 400000) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_PATHS = sorted(
    {
        *(("text_config", key) for key in ("vocab_size", "image_token_id", "rope_scaling")),
        *(("vision_config", key) for key in ("spatial_merge_size", "patch_size", "temporal_patch_size")),
        *((key,) for key in qwen()),
        ("thinker_config",),
        ("audio_config",),
        ("image_token_index",),
        ("position_id_per_seconds",),
    }
)


@given(st.lists(st.tuples(st.sampled_from(_PATHS), _JSON), max_size=4))
def test_any_config_is_read_or_refused_as_configuration(changes):
    config = qwen()
    for path, value in changes:
        table = config
        for name in path[:-1]:
            table = table[name] if isinstance(table.get(name), dict) else {}
        table[path[-1]] = value
    try:
        spec = from_config(config)
    except ConfigError:
        return
    assert isinstance(spec.multimodal, bool)
    assert spec.spatial_merge_size >= 1


def test_importing_the_module_imports_no_heavy_library():
    code = (
        "import sys, sidecar.model as m; m.load_model('config/models/qwen3_5');"
        "print([n for n in ('torch', 'transformers', 'pydantic', 'huggingface_hub') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"
