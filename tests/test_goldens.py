"""All requests of the golden set: what the real engine's input processor makes of them, and what we do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.context import Context
from sidecar.errors import Reason
from sidecar.materialize.hashing import tokenspeed_hash
from sidecar.outcome import Kind, Result
from sidecar.pipeline import run
from sidecar.wire.framing import Framing
from sidecar.wire.pads import pad_value
from sidecar.wire.tensors import ITEM_BYTES, canonical_dtype
from sidecar.wire.tokenspeed import Item, Media, Modality, Request
from tests.build import decoded, item, raw, sent, views
from tests.cases import DATA, Golden, goldens

R = Reason

EQUAL = [
    "full_fields",
    "gate_decode_lmo",
    "kimi_image",
    "no_arch",
    "omni_audio",
    "omni_audio_in_video_false",
    "omni_image",
    "omni_video_bf16",
    "omni_video_int",
    "omni_video_list_seconds",
    "omni_video_nodefault_cfg",
    "omni_video_scalar_0p48",
    "omni_video_scalar_1",
    "omni_video_scalar_third",
    "omni_video_unsorted_offsets",
    "omni_video_zero",
    "q35_adjacent_images_no_markers",
    "q35_aux_256",
    "q35_dtype_bf16",
    "q35_dtype_f16",
    "q35_dtype_f64",
    "q35_dtype_i8",
    "q35_dtype_u8",
    "q35_duplicate_image",
    "q35_epd_handshake",
    "q35_image_grid_int32",
    "q35_image_grid_t2",
    "q35_image_hash_given",
    "q35_image_hash_u64max",
    "q35_image_hash_zero",
    "q35_image_ids_text_after_and_before_none",
    "q35_image_padvalue_given",
    "q35_image_single",
    "q35_inline_255",
    "q35_inline_feature",
    "q35_merge1",
    "q35_merge4",
    "q35_mixed",
    "q35_mixed_unsorted",
    "q35_mrope_preset",
    "q35_mrope_preset_delta",
    "q35_multi_image",
    "q35_numpy_style_dtype",
    "q35_one_item_unsorted_offsets",
    "q35_shm_with_hash",
    "q35_video",
    "q35_video_one_item_two_grids",
    "q35_video_t1",
    "q35_video_two_items",
    "q35moe_image_single",
    "q4exp_video",
    "text_1k",
    "wire_dtype_attr",
    "wire_extra_aux",
    "wire_item_7_fields",
    "wire_shared_aux",
    "wire_text_11",
    "wire_text_24",
    "wire_text_25",
    "wire_text_27",
    "wire_text_6",
]
"""Ids, unpadded ids, hashes, pads, positions, delta, scalar and every tensor byte as the engine has them."""

STRICTER = {
    "err_odd_grid": R.GRID_INVALID,
    "ids_none_with_mm": R.PROMPT_EMPTY,
    "kimi_empty_ids": R.PROMPT_EMPTY,
    "kimi_overlap": R.OFFSETS_INVALID,
    "omni_video_negative_seconds": R.METADATA_INVALID,
    "omni_wrong_tokens": R.PLACEHOLDER_MISMATCH,
    "q35_empty_feature": R.FEATURE_INVALID,
    "q35_empty_offsets_list": R.OFFSETS_INVALID,
    "q35_feature_none_nohash": R.FEATURE_MISSING,
    "q35_image_grid_1d": R.GRID_INVALID,
    "q35_item_no_offsets_no_grid": R.OFFSETS_INVALID,
    "q35_mixed_image_audio": R.MODALITY_UNSUPPORTED,
    "q35_offset_far_out_of_range": R.OFFSETS_INVALID,
    "q35_offset_out_of_range": R.OFFSETS_INVALID,
    "q35_offset_reversed": R.OFFSETS_INVALID,
    "q35_offset_reversed_by_one": R.OFFSETS_INVALID,
    "q35_overlapping_offsets": R.OFFSETS_INVALID,
    "q35_video_single_run": R.GRID_MISMATCH,
    "q35_wrong_offset_scan_ok": R.PLACEHOLDER_MISMATCH,
    "text_empty_ids": R.PROMPT_EMPTY,
    "text_input_embeds": R.PROMPT_EMPTY,
    "wire_ids_huge": R.TOKEN_IDS_INVALID,
    "wire_negative_aux_index": R.MALFORMED_TENSOR,
}
"""The engine takes these, and its encoder, its scheduler or its cache suffers for it later."""

REFUSED = {
    "err_empty_ids_no_items": R.PROMPT_EMPTY,
    "err_empty_ids_with_image": R.PROMPT_EMPTY,
    "err_grid_bad_shape": R.PLACEHOLDER_MISMATCH,
    "err_grid_offset_count_mismatch_fewer_grids": R.GRID_MISMATCH,
    "err_omni_audio_in_video": R.METADATA_INVALID,
    "err_omni_grid_count": R.GRID_MISMATCH,
    "err_omni_grid_zero": R.PLACEHOLDER_MISMATCH,
    "err_omni_negative": R.OFFSETS_INVALID,
    "err_omni_odd_grid": R.PLACEHOLDER_MISMATCH,
    "err_omni_span": R.PLACEHOLDER_MISMATCH,
    "err_shm_without_hash": R.PLACEHOLDER_MISMATCH,
    "err_vision_start_last": R.PLACEHOLDER_MISMATCH,
    "err_wire_bad_tag": R.MALFORMED_REQUEST,
    "err_wire_dtype": R.MALFORMED_TENSOR,
    "err_wire_ext_code": R.MALFORMED_TENSOR,
    "err_wire_missing_aux": R.MALFORMED_TENSOR,
    "err_wire_modality_4": R.MALFORMED_MULTIMODAL,
    "err_wire_text_5": R.MALFORMED_REQUEST,
    "err_wire_trailing_bytes": R.MALFORMED_REQUEST,
    "err_wire_truncated": R.MALFORMED_REQUEST,
    "gate_language_model_only": R.TEXT_ONLY_MODEL,
    "gate_text_model": R.TEXT_ONLY_MODEL,
    "q35_0d_feature_nohash": R.FEATURE_INVALID,
    "wire_ids_as_bin": R.MALFORMED_REQUEST,
    "wire_integral_float_ids": R.TOKEN_IDS_INVALID,
    "wire_offsets_3tuple": R.MALFORMED_MULTIMODAL,
}
"""The engine's input processor or its decoder refuses these as well."""

DIFFERENT = {
    "full_validation_error_preset": "a request that was refused upstream passes verbatim, not materialized",
    "omni_no_items": "media without items is text and passes verbatim; the engine fills linear positions",
    "q35_already_materialized": "its ids and unpadded ids stay; the engine loses the unpadded ones",
    "q35_mrope_delta_only": "a payload that carries any M-RoPE field owns its positions; the engine computes them",
}
"""Neither stricter nor equal, on purpose."""


def test_the_table_names_every_case_once() -> None:
    names = [*EQUAL, *STRICTER, *REFUSED, *DIFFERENT]
    assert len(names) == len(set(names)) == 114
    assert set(names) == set(goldens())


def test_the_table_says_what_the_engine_does() -> None:
    expectations = {name: golden.facts["expect"] for name, golden in goldens().items()}
    assert {expectations[name] for name in (*EQUAL, *STRICTER, *DIFFERENT)} == {"ok"}
    assert {expectations[name] for name in REFUSED} == {"error"}


def framed(golden: Golden, framing: Framing) -> list[bytes]:
    return golden.frames if framing is Framing.NATIVE else [b"\x00", *golden.frames]


def changes(framing: Framing) -> dict[str, Any]:
    return {"ingress_framing": framing, "egress_framing": framing, "finalize_sampling": framing is Framing.NATIVE}


def context_for(golden: Golden, framing: Framing) -> Context:
    """The case's context; `full_fields` asks for logprobs, which only a finalizing sidecar refuses."""
    rules = changes(framing)
    if golden.name == "full_fields":
        rules["finalize_sampling"] = False
    return golden.context(**rules)


def tensor_facts(triple: Any, aux: list[bytes]) -> Any:
    """A tensor's dtype by its full name, its shape and its bytes; anything else as it is."""
    match triple:
        case [str(dtype), [*shape], data] if dtype in ITEM_BYTES:
            return canonical_dtype(dtype), shape, aux[data - 1] if isinstance(data, int) else data.data
    return triple


def media_facts(fields: Any, aux: list[bytes]) -> Any:
    """Everything in field 22, absent trailing fields as nil."""
    if fields is None:
        return None
    facts = [tensor_facts(value, aux) for value in (*fields, *[None] * 7)[:7]]
    items = []
    for fields_of_item in fields[Media.MM_ITEMS]:
        item = [tensor_facts(value, aux) for value in (*fields_of_item, *[None] * 10)[:10]]
        data = item[Item.MODEL_SPECIFIC_DATA] or {}
        item[Item.MODEL_SPECIFIC_DATA] = {name: tensor_facts(value, aux) for name, value in data.items()}
        items.append(item)
    facts[Media.MM_ITEMS] = items
    return facts


@pytest.mark.parametrize("framing", Framing)
@pytest.mark.parametrize("name", EQUAL)
def test_equal(name: str, framing: Framing) -> None:
    golden = goldens()[name]
    outcome = run(framed(golden, framing), context_for(golden, framing))
    assert (outcome.result, outcome.reason) == (Result.FORWARDED, None), outcome.message
    out = sent(outcome)
    payload, *aux = out if framing is Framing.NATIVE else out[1:]
    ours, theirs = decoded([payload]), decoded(golden.out)
    for field in (Request.INPUT_IDS, Request.INPUT_IDS_UNPADDED):
        assert ours[field : field + 1] in (theirs[field : field + 1], []), field
    if theirs[Request.INPUT_IDS_UNPADDED] is not None:
        assert ours[Request.INPUT_IDS_UNPADDED] == theirs[Request.INPUT_IDS_UNPADDED]
    media = (*ours, *[None] * 25)[Request.MULTIMODAL_INPUTS]
    assert media_facts(media, aux) == media_facts(theirs[Request.MULTIMODAL_INPUTS], golden.out[1:])
    came = decoded(golden.frames)
    touched = (Request.INPUT_IDS, Request.SAMPLING_PARAMS, Request.INPUT_IDS_UNPADDED, Request.MULTIMODAL_INPUTS)
    for place, value in enumerate(came):
        if place not in touched:
            assert ours[place] == value
    if framing is Framing.TYPED:
        assert ours[Request.SAMPLING_PARAMS] == came[Request.SAMPLING_PARAMS]


@pytest.mark.parametrize("framing", Framing)
@pytest.mark.parametrize(("name", "reason"), {**STRICTER, **REFUSED}.items())
def test_refused(name: str, reason: Reason, framing: Framing) -> None:
    golden = goldens()[name]
    outcome = run(framed(golden, framing), context_for(golden, framing))
    if name == "err_wire_bad_tag" and framing is Framing.NATIVE:
        assert (outcome.kind, outcome.result, outcome.reason) == (Kind.CONTROL, Result.DROPPED, reason)
        return
    assert (outcome.result, outcome.reason) == (Result.REJECTED, reason), outcome.message
    fields = decoded(sent(outcome), framing)
    assert (fields[Request.INPUT_IDS], fields[Request.MULTIMODAL_INPUTS]) == ([], None)
    assert fields[Request.RID] == outcome.rid
    assert fields[Request.VALIDATION_ERROR] == outcome.message


def test_a_preset_validation_error_passes_verbatim() -> None:
    golden = goldens()["full_validation_error_preset"]
    outcome = run(framed(golden, Framing.TYPED), context_for(golden, Framing.TYPED))
    assert (outcome.result, sent(outcome)) == (Result.FORWARDED, [b"\x00", *golden.frames])
    assert decoded(golden.frames)[Request.VALIDATION_ERROR]


@pytest.mark.parametrize("name", ["omni_no_items", "q35_already_materialized", "q35_mrope_delta_only"])
def test_what_differs_keeps_what_came(name: str) -> None:
    golden = goldens()[name]
    outcome = run(framed(golden, Framing.TYPED), context_for(golden, Framing.TYPED))
    assert (outcome.result, outcome.reason) == (Result.FORWARDED, None), outcome.message
    out, came, theirs = sent(outcome)[1:], decoded(golden.frames), decoded(golden.out)
    ours = decoded(out)
    if name == "q35_mrope_delta_only":
        assert outcome.delta_without_positions
        assert ours[Request.INPUT_IDS] == theirs[Request.INPUT_IDS]
        media = ours[Request.MULTIMODAL_INPUTS]
        assert media[Media.MROPE_POSITIONS] is None
        assert media[Media.MROPE_POSITION_DELTA :] == came[Request.MULTIMODAL_INPUTS][Media.MROPE_POSITION_DELTA :]
    else:
        assert out == golden.frames


@pytest.mark.parametrize("framing", Framing)
@pytest.mark.parametrize("name", [*EQUAL, *DIFFERENT])
def test_what_leaves_can_come_in_again(name: str, framing: Framing) -> None:
    golden = goldens()[name]
    first = sent(run(framed(golden, framing), context_for(golden, framing)))
    second = run(first, context_for(golden, framing))
    assert (second.result, sent(second)) == (Result.FORWARDED, first), second.message


@pytest.mark.parametrize("name", [name for name in EQUAL if goldens()[name].out])
def test_what_the_engine_made_is_not_touched(name: str) -> None:
    golden = goldens()[name]
    message = [b"\x00", *golden.out]
    outcome = run(message, context_for(golden, Framing.TYPED))
    assert (outcome.result, sent(outcome)) == (Result.FORWARDED, message), outcome.message


def rows(name: str) -> list[list[Any]]:
    found: list[list[Any]] = json.loads((DATA / "goldens" / f"{name}.json").read_text())
    return found


def test_pad_values() -> None:
    table = rows("pad_values")
    assert len(table) == 36
    for modality, content_hash, pad in table:
        assert pad_value(Modality(modality), content_hash) == pad


def test_hashes_of_features() -> None:
    table = rows("hash_feature")
    assert len(table) == 25
    for dtype, shape, data, content_hash in table:
        feature = None if dtype is None else [dtype, shape, raw(bytes.fromhex(data))]
        (view,) = views(item(feature=feature))
        assert tokenspeed_hash(view) == content_hash
