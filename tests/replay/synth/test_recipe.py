"""Synthetic requests against the sidecar itself: sound ones pass, broken ones are refused for their reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from sidecar.context import Context
from sidecar.errors import Reason, UsageError
from sidecar.model import ModelSpec, from_config, load_model
from sidecar.outcome import Result
from sidecar.pipeline import run
from sidecar.recording import Framing, Record
from sidecar.replay.decode import decode_request, modality_of, peek
from sidecar.replay.scheduler_check import SchedulerCheck
from sidecar.replay.synth.broken import BREAKERS
from sidecar.replay.synth.distributions import parse_count, parse_size
from sidecar.replay.synth.media import MediaMaker
from sidecar.replay.synth.recipe import Builder, Recipe, make_records
from sidecar.settings import Settings
from sidecar.wire.tokenspeed import Item, Modality, Request
from tests.build import KIMI, LLAMA4, QWEN, TEXT

MODELS: Final = Path(__file__).parents[3] / "config/models"
SMALL: Final[Mapping[str, Any]] = {
    "image_size": parse_size("choice:8x8,12x8", "x"),
    "prompt": parse_count("20-40", "x"),
    "frames": parse_count("2-3", "x"),
    "audio": parse_count("30-120", "x"),
}


def qwen_like(model_type: str, **extra: Any) -> ModelSpec:
    return from_config(
        {
            "model_type": model_type,
            "image_token_id": 5001,
            "video_token_id": 5001 if model_type == "glm4v" else 5002,
            "text_config": {"vocab_size": 6000},
            "vision_config": {"spatial_merge_size": 2, "patch_size": 2, "temporal_patch_size": 2, "in_channels": 3},
            **extra,
        }
    )


UNKNOWN_MROPE: Final = from_config(
    {
        "model_type": "nobody_knows",
        "image_token_id": 5001,
        "text_config": {"vocab_size": 6000, "rope_scaling": {"mrope_section": [1, 2, 3]}},
        "vision_config": {"image_size": 8},
    }
)
SPECS: Final = {
    "qwen3_5": QWEN,
    "kimi_k25": KIMI,
    "llama4": from_config({**LLAMA4.config, "vision_config": {"image_size": 64, "patch_size": 2}}),
    "text": TEXT,
    "omni": load_model(str(MODELS / "qwen3_omni")),
    **{name: qwen_like(name) for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "ernie4_5_vl_moe")},
}
SIZES: Final = {"omni": {**SMALL, "image_size": parse_size("choice:64x64,96x64", "x")}}


def context(spec: ModelSpec, **values: Any) -> Context:
    return Context.from_settings(Settings.model_validate(values), spec)


def recipe(name: str, count: int, **options: Any) -> Recipe:
    return Recipe(SPECS[name], count, **{**SIZES.get(name, SMALL), **options})


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("options", [{}, {"missing_hashes": 1.0}, {"materialized": 1.0}, {"aux_bytes": 0}], ids=str)
def test_sound_requests_are_served(name: str, options: dict[str, Any]) -> None:
    ctx = context(SPECS[name])
    check = SchedulerCheck(Framing.NATIVE, mrope=SPECS[name].mrope_family is not None)
    for record in make_records(recipe(name, 8, **options)):
        outcome = run(record.frames, ctx)
        assert outcome.result is Result.FORWARDED, outcome.message
        assert check.check(outcome.messages[0]).problems == ()
        assert record.metadata == {"expect": "forwarded"}


SETTINGS: Final[Mapping[Reason, dict[str, Any]]] = {
    Reason.PROMPT_TOO_LONG: {"engine": {"max_model_len": 5000}},
    Reason.TEXT_REQUEST: {"admission": {"text_requests": "reject"}},
}
NEEDS: Final = {
    Reason.TEXT_ONLY_MODEL: ("text",),
    Reason.METADATA_INVALID: ("qwen3_5", "qwen2_5_vl", "omni"),
    Reason.MROPE_UNSUPPORTED: ("unknown",),
    Reason.GRID_INVALID: ("qwen3_5", "kimi_k25", "omni"),
    Reason.GRID_MISMATCH: ("qwen3_5", "kimi_k25", "omni"),
    Reason.MODALITY_UNSUPPORTED: ("qwen3_5", "kimi_k25", "llama4"),
    Reason.EXPANSION_MISMATCH: ("qwen3_5", "omni"),
}
CASES: Final = [
    (reason, name) for reason in Reason for name in NEEDS.get(reason, ("qwen3_5", "kimi_k25", "llama4", "omni"))
]


@pytest.mark.parametrize(("reason", "name"), CASES)
def test_a_broken_request_is_refused_for_its_reason(reason: Reason, name: str) -> None:
    spec = UNKNOWN_MROPE if name == "unknown" else SPECS[name]
    ctx = context(spec, **SETTINGS.get(reason, {}))
    refused = 0
    for record in make_records(Recipe(spec, 3, broken=[reason], seed=2, **SIZES.get(name, SMALL))):
        outcome = run(record.frames, ctx)
        if record.metadata["expect"] == "forwarded":
            assert outcome.result is Result.FORWARDED
            continue
        refused += 1
        assert outcome.reason == reason == record.metadata["reason"], outcome.message
        assert outcome.result == (Result.DROPPED if reason is Reason.DUPLICATE_RID else Result.REJECTED)
    assert refused == 3


def test_every_reason_has_a_breaker() -> None:
    assert set(BREAKERS) == set(Reason)


def test_an_engine_with_its_own_processor_counts_placeholders() -> None:
    ctx = context(KIMI, engine={"kind": "sglang"})
    for record in make_records(Recipe(KIMI, 3, broken=[Reason.EXPANSION_MISMATCH], **SMALL)):
        assert run(record.frames, ctx).reason == Reason.EXPANSION_MISMATCH


@pytest.mark.parametrize(
    ("reason", "spec", "what"),
    [
        (Reason.GRID_INVALID, LLAMA4, "no grid"),
        (Reason.METADATA_INVALID, KIMI, "a model with videos"),
        (Reason.MODALITY_UNSUPPORTED, SPECS["omni"], "every modality"),
        (Reason.FEATURE_MISSING, TEXT, "no images can be made for qwen3"),
    ],
)
def test_what_a_model_cannot_have_is_said(reason: Reason, spec: ModelSpec, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        list(make_records(Recipe(spec, 1, broken=[reason], **SMALL)))


@pytest.mark.parametrize(
    ("size", "tokens"),
    [((224, 224), 64), ((448, 448), 256), ((640, 480), 414), ((1024, 768), 1036), ((1920, 1080), 2691)],
)
@pytest.mark.parametrize("model", ["kimi_k25", "kimi_k3"])
def test_kimi_sizes(model: str, size: tuple[int, int], tokens: int) -> None:
    maker = MediaMaker(load_model(str(MODELS / model)))
    spans = [ids for is_span, ids in maker.image(Builder(Recipe(maker.model, 1)).rng, *size).pieces if is_span]
    assert [len(span) for span in spans] == [tokens]


def test_the_same_seed_makes_the_same_bytes() -> None:
    def made(seed: int) -> list[Record]:
        return list(make_records(recipe("qwen3_5", 10, seed=seed)))

    assert made(1) == made(1) != made(2)


def test_the_mix_is_kept() -> None:
    for kind in ("text", "image", "video", "audio", "mixed"):
        for record in make_records(recipe("omni", 6, mix={kind: 1.0})):
            assert modality_of(record.frames, record.framing, peek(record.frames, record.framing)) == kind
    with pytest.raises(UsageError, match="audio cannot be made for kimi_k25, only image, text"):
        list(make_records(recipe("kimi_k25", 1, mix={"audio": 1.0})))


@pytest.mark.parametrize("framing", list(Framing))
def test_tensors_travel_as_told(framing: Framing) -> None:
    for aux_bytes, large in ((1, True), (0, False)):
        for record in make_records(recipe("qwen3_5", 5, mix={"image": 1.0}, framing=framing, aux_bytes=aux_bytes)):
            request = decode_request(record.frames, framing)
            features = [request.tensor(item[Item.FEATURE]) for item in request.items]
            assert all((feature.aux > 0) is large for feature in features)


def test_hashes_and_pads_as_told() -> None:
    def items(**options: Any) -> list[list[Any]]:
        records = make_records(recipe("qwen3_5", 40, mix={"image": 1.0}, **options))
        return [item for record in records for item in decode_request(record.frames, record.framing).items]

    missing = [item[Item.HASH] is None for item in items(missing_hashes=0.5)]
    assert 0.3 < sum(missing) / len(missing) < 0.7
    assert all(item[Item.PAD_VALUE] is not None for item in items(materialized=1.0))
    assert all(item[Item.PAD_VALUE] is None for item in items())


def test_times_follow_the_rate() -> None:
    records = list(make_records(recipe("text", 2000, rate=100.0)))
    assert records[-1].mono_ns / 1e9 == pytest.approx(20, rel=0.15)
    assert [r.mono_ns for r in records] == sorted(r.mono_ns for r in records)


def test_a_share_is_broken() -> None:
    made = list(make_records(recipe("text", 200, broken=[Reason.PROMPT_EMPTY], broken_share=0.25)))
    share = sum(record.metadata["expect"] == "rejected" for record in made) / len(made)
    assert share == pytest.approx(0.25, abs=0.1)


def test_text_ids_are_ordinary() -> None:
    for name, spec in SPECS.items():
        if name == "text":
            continue
        special = {spec.token_id(modality) for modality in Modality}
        for record in make_records(recipe(name, 10, mix={"text": 1.0})):
            ids = decode_request(record.frames, record.framing)[Request.INPUT_IDS]
            assert not special & set(ids)
            assert max(ids) < (dataclasses.asdict(spec)["vocab_size"] or 1 << 31)
