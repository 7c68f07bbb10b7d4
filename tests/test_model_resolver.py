"""Finding a config, and asking transformers for what it leaves out, in a child process."""

from __future__ import annotations

import json
import logging
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sidecar import model_resolver
from sidecar.errors import ConfigError
from sidecar.model import load_model
from sidecar.wire.tokenspeed import Modality

BUNDLED = Path(__file__).parents[1] / "config" / "models"


@pytest.fixture
def model(tmp_path):
    def write(config: Any) -> str:
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        return str(tmp_path)

    return write


def reply_with(monkeypatch, stdout: bytes, stderr: bytes = b"", status: int = 0) -> None:
    done = subprocess.CompletedProcess([], status, stdout, stderr)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)


def test_a_folder_and_its_file_are_the_same_model():
    folder, file = load_model(str(BUNDLED / "qwen3_5")), load_model(str(BUNDLED / "qwen3_5" / "config.json"))
    assert folder == file
    assert folder.source == str(BUNDLED / "qwen3_5")


def test_the_bundled_models_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_model("config/models/kimi_k25").source == str(BUNDLED / "kimi_k25")
    (tmp_path / "config" / "models" / "kimi_k25").mkdir(parents=True)
    (tmp_path / "config" / "models" / "kimi_k25" / "config.json").write_text(
        '{"model_type": "llama4", "image_token_id": 1}'
    )
    assert load_model("config/models/kimi_k25").model_type == "llama4"


def test_placeholder_ids_of_the_operator_are_kept():
    assert load_model(str(BUNDLED / "kimi_k3"), image_placeholder_ids=[1, 2]).image_placeholder_ids == (1, 2)
    assert load_model(str(BUNDLED / "kimi_k3")).image_placeholder_ids is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON: "),
        ('{"a": 1} x', "not JSON: "),
        ("[" * 100_000, "not JSON: "),
        ("[]", "expected a JSON object, found list"),
        ('{"model_type": "qwen3_5", "image_token_id": true}', "image_token_id = true: expected a whole number"),
    ],
)
def test_an_unusable_file_is_named(model, tmp_path, content, message):
    with pytest.raises(ConfigError) as caught:
        load_model(model(content))
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: ")
    assert message in str(caught.value)


def test_bytes_that_are_no_text(model, tmp_path):
    path = model("")
    (tmp_path / "config.json").write_bytes(b'{"model_type": "\xff"}')
    with pytest.raises(ConfigError, match="not JSON"):
        load_model(path)


@pytest.mark.parametrize("path", ["nowhere", "a/b/c", "/no/where", "", "a\0b", "x" * 5000, "../x"])
def test_a_path_that_is_nothing_says_what_to_do(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_model(path)
    assert str(caught.value).startswith("model.path = ")
    assert "config.json" in str(caught.value)


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(ConfigError, match=r"the folder .* has no config\.json"):
        load_model(str(tmp_path))


def test_a_hub_id_without_a_hub(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError) as caught:
        load_model("nobody/no-such-model")
    text = str(caught.value)
    assert text.startswith('model.path = "nobody/no-such-model": there is no such folder, and the hub does not give')
    assert text.endswith("set it to a folder with a config.json")


def test_a_hub_id(monkeypatch):
    config = {"model_type": "kimi_k25", "media_placeholder_token_id": 5}
    reply_with(monkeypatch, json.dumps({"config": config}).encode())
    spec = load_model("owner/name")
    assert (spec.source, spec.image_token_id, spec.config) == ("owner/name", 5, config)


def test_transformers_gives_the_ids_that_a_config_leaves_out(model):
    spec = load_model(model({"model_type": "qwen2_5_vl", "vision_config": {"spatial_merge_size": 4}}))
    assert (spec.image_token_id, spec.video_token_id) == (151655, 151656)
    assert spec.config["image_token_id"] == 151655
    assert spec.spatial_merge_size == 4
    assert spec.vocab_size is None
    assert spec.feature_shapes == {}
    assert spec.tokens_per_second is None


def test_transformers_tells_a_text_model_that_says_nothing(model):
    spec = load_model(model({"model_type": "llama"}))
    assert not spec.multimodal


def test_a_model_type_that_transformers_does_not_know(model, caplog):
    with caplog.at_level(logging.WARNING, "sidecar.model"):
        spec = load_model(model({"model_type": "kimi_k3", "image_placeholder": "<|x|>"}))
    assert (spec.image_token_id, spec.image_placeholder, spec.modalities) == (None, "<|x|>", {Modality.IMAGE})
    assert 'it does not know the model type "kimi_k3"' in caplog.text


def test_a_config_that_transformers_refuses(model, caplog):
    with caplog.at_level(logging.WARNING, "sidecar.model"):
        spec = load_model(model({"model_type": "qwen3_vl", "image_token_id": 5, "tie_word_embeddings": "x"}))
    assert (spec.image_token_id, spec.video_token_id) == (5, None)
    assert "transformers has no defaults" in caplog.text


def test_defaults_are_put_where_the_ids_belong(model, monkeypatch):
    resolved = {"thinker_config": {"image_token_index": 7, "video_token_id": 8, "audio_token_id": 900}}
    reply_with(monkeypatch, json.dumps({"config": resolved}).encode())
    config = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {"vocab_size": 500}, "video_token_id": 9}}
    spec = load_model(model(config))
    assert (spec.image_token_id, spec.video_token_id) == (7, 9)
    assert spec.audio_token_id is None, "a default beyond the vocabulary that the config states"
    assert spec.config["thinker_config"] == {**config["thinker_config"], "image_token_id": 7}
    flat = load_model(model({"model_type": "qwen2_5_omni", "vision_config": {"spatial_merge_size": 2}}))
    assert (flat.image_token_id, flat.audio_token_id) == (7, 900)
    assert "thinker_config" not in flat.config


def test_defaults_may_contradict_the_config(model, monkeypatch):
    reply_with(monkeypatch, b'{"config": {"image_token_id": 7, "video_token_id": 8}}')
    with pytest.raises(ConfigError, match="image_token_id and video_token_id are both 8"):
        load_model(model({"model_type": "qwen3_5", "image_token_id": 8}))


def test_m_rope_that_only_the_config_class_speaks_of(model, monkeypatch):
    resolved = {"vision_config": {}, "image_token_id": 7, "text_config": {"rope_parameters": {"mrope_section": [1, 2]}}}
    reply_with(monkeypatch, json.dumps({"config": resolved}).encode())
    spec = load_model(model({"model_type": "x"}))
    assert (spec.modalities, spec.mrope_unknown, spec.image_token_id) == ({Modality.IMAGE}, True, 7)


@pytest.mark.parametrize(
    ("stdout", "stderr", "problem"),
    [
        (b"", b"Traceback\nMemoryError\n", "MemoryError"),
        (b"", b"", "the child process ended with status 9"),
        (b'{"problem": "no"}', b"", "no"),
    ],
)
def test_a_child_that_fails_leaves_the_file_as_it_is(model, monkeypatch, caplog, stdout, stderr, problem):
    reply_with(monkeypatch, stdout, stderr, 9)
    with caplog.at_level(logging.WARNING, "sidecar.model"):
        assert load_model(model({"model_type": "qwen3_5"})).image_token_id is None
    assert caplog.messages[0].endswith(problem)


def test_a_child_that_hangs_is_ended(model, monkeypatch, caplog):
    monkeypatch.setattr(model_resolver, "TIMEOUT_S", 0.01)
    with caplog.at_level(logging.WARNING, "sidecar.model"):
        assert load_model(model({"model_type": "qwen3_5"})).image_token_id is None
    assert "no answer within 0.01 s" in caplog.text


def test_code_of_the_model_runs_only_with_consent(model, tmp_path, monkeypatch):
    path = model({"model_type": "mine", "auto_map": {"AutoConfig": "configuration_mine.MineConfig"}})
    (tmp_path / "configuration_mine.py").write_text(
        "from transformers import PretrainedConfig\n"
        "print('noise on standard output')\n"
        "class MineConfig(PretrainedConfig):\n"
        "    model_type = 'mine'\n"
        "    def __init__(self, image_token_id=77, **kwargs):\n"
        "        self.image_token_id = image_token_id\n"
        "        super().__init__(**kwargs)\n"
    )
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert load_model(path).image_token_id is None
    assert load_model(path, trust_remote_code=True).image_token_id == 77
