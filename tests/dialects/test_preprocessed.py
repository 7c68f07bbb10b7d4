"""The map-encoded preprocessed request."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest

from sidecar.admission.memory import RidMemory
from sidecar.context import Context
from sidecar.errors import Reason
from sidecar.materialize.placeholders import NativePlaceholder
from sidecar.outcome import Kind, Outcome, Result
from sidecar.pipeline import run
from sidecar.wire.framing import Framing
from tests import build

PAD = 163605
NATIVE = NativePlaceholder(PAD, (27, 91, 74, 82))
IMAGES = {"image_url": [{"Url": "https://example.org/a.png"}, {"Decoded": {"shape": [2, 2, 3], "data": b"\x00\xff"}}]}


def body(ids: Any = (1, PAD, 2, PAD, 3), **entries: Any) -> dict[str, Any]:
    return {
        "model": "kimi",
        "token_ids": list(ids) if ids is not None else None,
        "stop_conditions": {"max_tokens": 16, "ignore_eos": False},
        "sampling_options": {"temperature": 0.5, "seed": None},
        "eos_token_ids": [7],
        "annotations": [],
        **entries,
    }


def k3(kind: str = "vllm", framing: Framing = Framing.NATIVE, **rules: Any) -> Context:
    spec = dataclasses.replace(build.KIMI, model_type="kimi_k3")
    native = NATIVE if kind == "vllm" else None
    return build.context_of(spec, build.policy(framing, engine_kind=kind, **rules), native=native)


def go(entries: dict[str, Any] | bytes, context: Context | None = None) -> Outcome:
    return run(build.frames(entries), context if context is not None else k3())


def answer(outcome: Outcome) -> dict[str, Any]:
    fields: dict[str, Any] = msgpack.unpackb(build.sent(outcome)[0])
    return fields


def test_pads_become_the_native_sequence_and_every_other_byte_stays() -> None:
    entries = body(multi_modal_data=IMAGES, request_id="r", mm_processor_kwargs={"x": 1.5}, later_field=[None, b"\xff"])
    payload = msgpack.packb(entries)
    outcome = go(payload)
    assert (outcome.kind, outcome.result, outcome.dialect, outcome.rid) == (
        Kind.GENERATE, Result.FORWARDED, "preprocessed", "r",
    )  # fmt: skip
    expanded = msgpack.packb([1, *NATIVE.ids, 2, *NATIVE.ids, 3])
    assert build.sent(outcome) == [payload.replace(msgpack.packb(entries["token_ids"]), expanded)]


@pytest.mark.parametrize(
    "entries",
    [
        body(),
        body(multi_modal_data=None),
        body(multi_modal_data={}),
        body(multi_modal_data={"image_url": []}),
        body(multi_modal_data={"video_url": [{"Url": "v"}]}),
        body(ids=[1, 27, 91, 74, 82, 2], multi_modal_data=IMAGES),
        body(multi_modal_data=IMAGES, extra_args={"expanded_token_ids": [1, 2]}),
        body(multi_modal_data=IMAGES, extra_args={"mm_placeholders": [[1, 2]]}),
        body(multi_modal_data=IMAGES, extra_args={"mm_hashes": ["a"]}),
        body(multi_modal_data=IMAGES, extra_args={"mm_kwargs_shm": {"name": "x"}}),
    ],
    ids=["text", "nil", "empty", "no images", "videos", "native", "expanded", "placeholders", "hashes", "transferred"],
)
def test_a_request_that_needs_nothing_passes_as_the_very_frames(entries: dict[str, Any]) -> None:
    message = [*build.frames(entries), b"an aux frame"]
    outcome = run(message, k3())
    assert outcome.result is Result.FORWARDED, outcome.message
    assert build.sent(outcome) == message


def test_other_models_are_never_rewritten() -> None:
    entries = body(multi_modal_data=IMAGES)
    assert build.sent(go(entries, build.context(build.KIMI, engine_kind="vllm"))) == build.frames(entries)


def test_sglang_keeps_the_pad_and_counts() -> None:
    entries = body(multi_modal_data=IMAGES)
    assert build.sent(go(entries, k3("sglang"))) == build.frames(entries)
    outcome = go(body(ids=[1, PAD], multi_modal_data=IMAGES), k3("sglang"))
    assert outcome.reason is Reason.EXPANSION_MISMATCH


def test_a_refused_map_keeps_its_keys_and_loses_ids_and_media() -> None:
    entries = body(ids=[1, PAD, 2], multi_modal_data=IMAGES, request_id="r", later={"k": b"\x80"})
    outcome = go(entries)
    assert outcome.reason is Reason.EXPANSION_MISMATCH
    error = "prompt carries 1 <|media_pad|> token(s) but 2 image(s) were supplied; refusing to expand"
    assert answer(outcome) == {**entries, "token_ids": [], "multi_modal_data": None, "validation_error": error}


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        (body(ids=[]), Reason.PROMPT_EMPTY),
        (body(ids=None), Reason.PROMPT_EMPTY),
        (body(ids=[1, -1]), Reason.TOKEN_IDS_INVALID),
        (body(ids=[1, 163840]), Reason.TOKEN_IDS_INVALID),
        (body(ids=[1, 2.0]), Reason.TOKEN_IDS_INVALID),
        ({**body(), "token_ids": "abc"}, Reason.MALFORMED_REQUEST),
        (body(request_id=7), Reason.MALFORMED_REQUEST),
        (body(multi_modal_data=[1]), Reason.MALFORMED_MULTIMODAL),
        (body(multi_modal_data={"image_url": {"Url": "x"}}), Reason.MALFORMED_MULTIMODAL),
        (body(multi_modal_data={"image_url": [None] * 1025}), Reason.TOO_LARGE),
        (body(ids=[1] * 99), Reason.PROMPT_TOO_LONG),
        (msgpack.packb(body(request_id="r")) + b"\x00", Reason.MALFORMED_REQUEST),
        (msgpack.packb(body(request_id="r"))[:-1], Reason.MALFORMED_REQUEST),
    ],
)
def test_what_is_refused_and_why(entries: Any, reason: Reason) -> None:
    outcome = go(entries, k3(max_model_len=100))
    assert (outcome.result, outcome.reason) == (Result.REJECTED, reason), outcome.message
    fields = answer(outcome)
    assert fields["token_ids"] == []
    assert fields["validation_error"]


def test_the_gate() -> None:
    entries = body(multi_modal_data=IMAGES)
    text_only = build.context(dataclasses.replace(build.TEXT, vocab_size=None))
    assert go(entries, text_only).reason is Reason.TEXT_ONLY_MODEL
    assert go(body(), k3(text_requests="reject")).reason is Reason.TEXT_REQUEST
    stripped = go(entries, k3(language_model_only=True, role="decode"))
    assert answer(stripped) == {**entries, "multi_modal_data": None}


def test_a_preset_error_passes_and_survives_a_refusal() -> None:
    entries = body(multi_modal_data=IMAGES, validation_error="bad image")
    assert build.sent(go(entries)) == build.frames(entries)
    refused = go({**entries, "token_ids": []})
    assert answer(refused)["validation_error"] == "bad image"


def test_a_rid_is_forwarded_once_and_none_has_no_memory() -> None:
    context = k3()
    context.rids = RidMemory(30.0)
    assert go(body(request_id="r"), context).result is Result.FORWARDED
    assert go(body(request_id="r"), context).result is Result.DROPPED
    assert [go(body(), context).result for _ in range(2)] == [Result.FORWARDED] * 2


def test_both_framings_and_the_way_between_them() -> None:
    entries = body(multi_modal_data=IMAGES)
    typed = run(build.frames(entries, framing=Framing.TYPED), k3(framing=Framing.TYPED))
    native = go(entries)
    assert build.sent(typed) == [b"\x00", *build.sent(native)]


def test_a_map_without_token_ids_is_nobodys() -> None:
    outcome = go({"prompt": "hello"})
    assert (outcome.kind, outcome.result) == (Kind.UNREADABLE, Result.DROPPED)
