"""One placeholder an image: the table of forms, the native text, the full sequence."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.admission.memory import ContentMemory
from sidecar.context import Context
from sidecar.errors import ConfigError, Reason, Rejection
from sidecar.materialize.placeholders import (
    FORMS,
    NativePlaceholder,
    check_count,
    convert_raw,
    native_placeholder,
    replace_pads,
)
from sidecar.model import ModelSpec, load_model
from sidecar.outcome import Outcome, Result
from sidecar.pipeline import run
from sidecar.settings import Settings
from sidecar.tokenizer import load_encoder
from sidecar.wire.ids import find_all, find_ids, list_of
from tests import build
from tests.tokenizers_data import write_tokenizer

DATA = Path(__file__).parents[1] / "data"
PROMPTS: dict[str, Any] = json.loads((DATA / "kimi_prompts.json").read_text())
PAD = 163605
NATIVE = NativePlaceholder(PAD, (27, 91, 74, 82))


def ids_of(values: list[int]) -> Any:
    packed = msgpack.packb(values)
    return find_ids(packed, 0, len(packed))


@pytest.fixture
def models(tmp_path: Path) -> dict[str, ModelSpec]:
    """The tiny models that the recordings were made with, with their tokenizer."""
    specs = {}
    for name in ("kimi_k25", "kimi_k3"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_bytes((DATA / "models" / name / "config.json").read_bytes())
        write_tokenizer(folder)
        specs[name] = load_model(str(folder))
    return specs


def collapsed(case: dict[str, Any]) -> tuple[list[int], list[list[int]]]:
    """The recorded prompt as a frontend sends it, one placeholder an image, and where that one is."""
    ids, offsets, out, at = case["unpadded"], [], [], 0
    for item in case["items"]:
        ((start, end),) = item["offsets"]
        if case["model"] == "kimi_k3":
            begin = len(ids) - ids[::-1].index(263, len(ids) - start)  # after the last <|media_begin|> before it
            out += ids[at : begin - 1]
            after = end + 2
        else:
            out += ids[at:start]
            after = end + 1
        offsets.append([len(out), len(out)])
        out.append(ids[start])
        at = after
    return out + ids[at:], offsets


def kimi_items(case: dict[str, Any], offsets: list[list[int]], *, transposed: bool = False) -> list[Any]:
    items = []
    for entry, offset in zip(case["items"], offsets, strict=True):
        _, h, w = entry["grid"]
        upload = entry["upload"][::-1] if transposed else entry["upload"]
        feature = build.tensor(np.zeros((h * w, 3, 14, 14), np.float32))
        data = {"grid_thws": build.grid(tuple(entry["grid"])), "image_sizes": build.tensor(np.array([upload]))}
        items.append(build.item(hash=entry["hash"], offsets=(tuple(offset),), feature=feature, data=data))
    return items


def run_kimi(case: dict[str, Any], spec: ModelSpec, items: list[Any], ids: list[int], **fields: Any) -> Outcome:
    context = build.context_of(spec, build.policy(), encoder=load_encoder(spec, "tokenspeed"), **fields)
    return run(build.frames(build.request(ids=ids, mm=build.media(*items, im=265))), context)


@pytest.mark.parametrize("transposed", [False, True], ids=["width-height", "height-width"])
@pytest.mark.parametrize("name", sorted(PROMPTS))
def test_a_recorded_prompt_collapsed_to_one_pad_an_image_comes_out_as_it_was(
    name: str, transposed: bool, models: dict[str, ModelSpec]
) -> None:
    case = PROMPTS[name]
    ids, offsets = collapsed(case)
    assert ids.count(265) == len(case["items"])
    outcome = run_kimi(case, models[case["model"]], kimi_items(case, offsets, transposed=transposed), ids)
    assert outcome.result is Result.FORWARDED, outcome.message
    fields = build.decoded(build.sent(outcome))
    assert fields[4] == case["input_ids"]
    assert fields[21] == case["unpadded"]
    assert [item[3] for item in fields[22][0]] == [item["offsets"] for item in case["items"]]
    assert [item[2] for item in fields[22][0]] == [item["pad_value"] for item in case["items"]]


@pytest.mark.parametrize("name", sorted(PROMPTS))
def test_a_prompt_that_is_expanded_already_keeps_its_ids(name: str, models: dict[str, ModelSpec]) -> None:
    case = PROMPTS[name]
    items = kimi_items(case, [item["offsets"][0] for item in case["items"]])
    outcome = run_kimi(case, models[case["model"]], items, case["unpadded"])
    assert build.decoded(build.sent(outcome))[21] == case["unpadded"]


def test_a_k3_image_without_its_upload_size_is_refused(models: dict[str, ModelSpec]) -> None:
    case = PROMPTS["ts-kimi_k3-image-1"]
    ids, offsets = collapsed(case)
    items = kimi_items(case, offsets)
    del items[0][6]["image_sizes"]
    outcome = run_kimi(case, models["kimi_k3"], items, ids)
    assert outcome.reason is Reason.EXPANSION_MISMATCH
    assert "image_sizes" in outcome.message


def test_a_k3_without_a_tokenizer_cannot_write_the_size(models: dict[str, ModelSpec]) -> None:
    case = PROMPTS["ts-kimi_k3-image-1"]
    ids, offsets = collapsed(case)
    context = build.context_of(models["kimi_k3"], build.policy())
    outcome = run(build.frames(build.request(ids=ids, mm=build.media(*kimi_items(case, offsets), im=265))), context)
    assert outcome.reason is Reason.EXPANSION_MISMATCH
    assert "tokenizer" in outcome.message


def test_a_single_qwen_placeholder_becomes_the_grid_and_later_offsets_shift() -> None:
    ids = build.prompt(11, build.IMAGE, 12, (build.IMAGE, 4), 13, build.IMAGE, 14)
    first = build.item(offsets=((1, 1), (8, 8)), data={"image_grid_thw": build.grid((1, 4, 6), (1, 2, 4))})
    first[4] = build.tensor(build.patches(32))
    second = build.item(offsets=((3, 6),), feature=build.tensor(build.patches(16, 1)))
    context = build.context()
    outcome = run(build.frames(build.request(ids=ids, mm=build.media(first, second))), context)
    assert outcome.result is Result.FORWARDED, outcome.message
    fields = build.decoded(build.sent(outcome))
    assert fields[21] == build.prompt(11, (build.IMAGE, 6), 12, (build.IMAGE, 4), 13, (build.IMAGE, 2), 14)
    assert [item[3] for item in fields[22][0]] == [[[1, 6], [13, 14]], [[8, 11]]]
    plain = build.context()
    whole = build.item(offsets=((1, 6), (13, 14)), data={"image_grid_thw": build.grid((1, 4, 6), (1, 2, 4))})
    whole[4] = first[4]
    again = run(
        build.frames(
            build.request(
                ids=fields[21],
                mm=build.media(whole, build.item(offsets=((8, 11),), feature=build.tensor(build.patches(16, 1)))),
            )
        ),
        plain,
    )
    assert build.sent(again) == build.sent(outcome)


def test_a_single_video_placeholder_is_refused_not_expanded() -> None:
    ids = build.prompt(11, build.VIDEO, 12)
    item = build.item(2, offsets=((1, 1),), data={"video_grid_thw": build.grid((1, 4, 4))})
    outcome = run(build.frames(build.request(ids=ids, mm=build.media(item))), build.context())
    assert outcome.reason is Reason.EXPANSION_MISMATCH
    assert "video" in outcome.message


def test_a_video_whose_frames_make_one_token_each_is_whole() -> None:
    ids = build.prompt(11, build.VIDEO, 12, build.VIDEO, 13, build.VIDEO)
    feature = build.tensor(build.patches(3 * 2 * 2))
    item = build.item(
        2, offsets=((1, 1), (3, 3), (5, 5)), feature=feature, data={"video_grid_thw": build.grid((3, 2, 2))}
    )
    outcome = run(build.frames(build.request(ids=ids, mm=build.media(item))), build.context())
    assert (outcome.result, outcome.message) == (Result.FORWARDED, "")


def test_expansion_can_be_turned_off() -> None:
    ids = build.prompt(11, build.IMAGE, 12)
    message = build.frames(build.request(ids=ids, mm=build.media(build.item(offsets=((1, 1),)))))
    assert run(message, build.context()).result is Result.FORWARDED
    assert run(message, build.context(expand_placeholders=False)).reason is Reason.GRID_MISMATCH


def test_an_expanded_prompt_obeys_the_length_rule() -> None:
    ids = build.prompt(11, build.IMAGE, 12)
    message = build.frames(build.request(ids=ids, mm=build.media(build.item(offsets=((1, 1),)))))
    assert run(message, build.context(max_model_len=8)).result is Result.FORWARDED
    assert run(message, build.context(max_model_len=7)).reason is Reason.PROMPT_TOO_LONG


def test_a_grid_that_claims_billions_is_refused_before_anything_grows() -> None:
    ids = build.prompt(11, build.IMAGE, 12)
    item = build.item(offsets=((1, 1),), data={"image_grid_thw": build.grid((1 << 20, 1 << 12, 1 << 12))})
    outcome = run(build.frames(build.request(ids=ids, mm=build.media(item))), build.context())
    assert outcome.reason is Reason.GRID_INVALID


# The native text of Kimi-K3.


def test_each_pad_becomes_the_native_sequence() -> None:
    converted = replace_pads(ids_of([1, PAD, 2, PAD, 3]), 2, NATIVE)
    assert converted is not None
    assert converted.tolist() == [1, *NATIVE.ids, 2, *NATIVE.ids, 3]


def test_a_prompt_without_pads_or_without_images_stays() -> None:
    assert replace_pads(ids_of([1, 2, 3]), 2, NATIVE) is None
    assert replace_pads(ids_of([1, PAD, 3]), 0, NATIVE) is None


@pytest.mark.parametrize(("pads", "images"), [(1, 2), (3, 2)])
def test_other_counts_are_refused_with_both(pads: int, images: int) -> None:
    with pytest.raises(Rejection) as caught:
        replace_pads(ids_of([1] + [PAD] * pads), images, NATIVE)
    assert caught.value.reason is Reason.EXPANSION_MISMATCH
    assert caught.value.message == (
        f"prompt carries {pads} <|media_pad|> token(s) but {images} image(s) were supplied; refusing to expand"
    )


WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD2: 4, 0xD3: 8}


@given(
    st.lists(
        st.tuples(
            st.one_of(st.just(PAD), st.integers(0, 2**31 - 1), st.sampled_from([0xCE, 0x027F15, 0x7F15, 0x15, 0x02])),
            st.sampled_from([0, 0xCE, 0xCF, 0xD2, 0xD3]),
        ),
        max_size=200,
    )
)
def test_every_pad_is_found_in_whatever_encoding_and_nothing_else(elements: list[tuple[int, int]]) -> None:
    encoded = [
        msgpack.packb(value) if not lead else bytes([lead]) + value.to_bytes(WIDTHS[lead], "big")
        for value, lead in elements
    ]
    ids = list_of(encoded, len(encoded))
    starts = [ids.body + sum(map(len, encoded[:i])) for i in range(len(encoded) + 1)]
    expected = [(i, starts[i], starts[i + 1]) for i, (value, _) in enumerate(elements) if value == PAD]
    assert find_all(ids, PAD) == expected


def test_bytes_that_look_like_a_pad_across_two_ids_are_none() -> None:
    # 0xce02 and 0x7f15.. hold the pad's bytes 02 7f 15 where no element begins.
    ids = [0x1202, 0x7F15, 7]
    packed = b"\x93\xcd\x12\x02\x7f\x15"
    tricky = find_ids(packed, 0, len(packed))
    assert tricky is not None
    assert tricky.tolist() == [0x1202, 0x7F, 0x15]
    assert replace_pads(tricky, 1, NATIVE) is None
    assert ids != tricky.tolist()


def test_sglang_only_counts(models: dict[str, ModelSpec]) -> None:
    spec = models["kimi_k3"]
    assert convert_raw(ids_of([1, 265, 2]), 1, "sglang", None, spec) is None
    assert convert_raw(ids_of([1, 2]), 1, "sglang", None, spec) is None
    with pytest.raises(Rejection, match=r"carries 1 <\|media_pad\|>"):
        convert_raw(ids_of([1, 265, 2]), 2, "sglang", None, spec)
    with pytest.raises(Rejection):
        check_count(1, 2, "x")


def test_every_kind_of_engine_has_a_form() -> None:
    kinds = Settings.model_fields["engine"].annotation.model_fields["kind"].annotation.__args__  # type: ignore[union-attr]
    assert set(kinds) == set(FORMS)


@pytest.mark.parametrize(
    ("field", "value"),
    [("media_placeholder_token_id", True), ("image_placeholder", ""), ("image_placeholder", None)],
)
def test_unusable_metadata_stops_a_k3_for_vllm_and_nobody_else(
    field: str, value: object, models: dict[str, ModelSpec]
) -> None:
    config = {**models["kimi_k3"].config, "image_placeholder": "<|kimi_image_placeholder|>", field: value}
    spec = dataclasses.replace(models["kimi_k3"], config=config)
    with pytest.raises(ConfigError, match=field):
        native_placeholder(spec, "vllm", load_encoder(models["kimi_k3"], "tokenspeed"))
    assert native_placeholder(spec, "tokenspeed", None) is None
    assert native_placeholder(dataclasses.replace(spec, model_type="kimi_k25"), "vllm", None) is None


def test_the_native_text_is_encoded_once_or_given(models: dict[str, ModelSpec]) -> None:
    text = "<|kimi_image_placeholder|>"
    spec = dataclasses.replace(
        models["kimi_k3"], config={**models["kimi_k3"].config, "image_placeholder": text}, image_placeholder=text
    )
    encoder = load_encoder(spec, "vllm")
    native = native_placeholder(spec, "vllm", encoder)
    assert native is not None
    assert native.pad_id == 265
    assert len(native.ids) == len(text)  # a byte-level tokenizer: the text is not in the vocabulary
    given = dataclasses.replace(spec, image_placeholder_ids=(5, 6))
    assert load_encoder(given, "vllm") is None
    assert native_placeholder(given, "vllm", None) == NativePlaceholder(265, (5, 6))
    with pytest.raises(ConfigError, match="image_placeholder_ids"):
        native_placeholder(spec, "vllm", None)


def k3_for_vllm() -> Context:
    spec = dataclasses.replace(build.KIMI, model_type="kimi_k3")
    return build.context_of(spec, build.policy(engine_kind="vllm"), native=NATIVE, contents=ContentMemory(0))


def raw_image(**changes: Any) -> list[Any]:
    return build.item(**{"feature": None, "data": {}, "offsets": None, **changes})


def test_vllm_gets_the_native_text_for_raw_media() -> None:
    outcome = run(build.frames(build.request(ids=[1, PAD, 2], mm=build.media(raw_image()))), k3_for_vllm())
    fields = build.decoded(build.sent(outcome))
    assert fields[4] == [1, *NATIVE.ids, 2]
    assert fields[21] is None


@pytest.mark.parametrize(
    "processed",
    [
        raw_image(feature=build.tensor(np.zeros((4, 3, 2, 2), np.float32)), offsets=((1, 1),)),
        raw_image(hash=5, offsets=((1, 1),)),
        raw_image(shm={"shm_name": "psm_x", "shape": [1], "dtype": "uint8"}),
        raw_image(encoded=build.tensor(np.zeros((1, 4), np.float32))),
        raw_image(handshake={"bootstrap_room": 1, "bootstrap_host": "h", "bootstrap_port": 2}),
    ],
    ids=["feature", "hash", "handle", "encoding", "handshake"],
)
def test_media_that_is_processed_already_is_left_alone(processed: list[Any]) -> None:
    message = build.frames(build.request(ids=[1, PAD, 2], mm=build.media(processed)))
    outcome = run(message, k3_for_vllm())
    assert outcome.result is Result.FORWARDED, outcome.message
    assert build.sent(outcome) == message


def test_vllm_with_only_videos_or_with_no_media_is_left_alone() -> None:
    for media in (build.media(raw_image(modality=2)), build.media(), None):
        message = build.frames(build.request(ids=[1, PAD, 2], mm=media))
        assert build.sent(run(message, k3_for_vllm())) == message


def test_other_models_are_never_rewritten() -> None:
    message = build.frames(build.request(ids=[1, PAD, 2], mm=build.media(raw_image())))
    context = build.context(build.KIMI, engine_kind="vllm")
    assert build.sent(run(message, context)) == message


def test_a_count_that_is_off_is_refused_in_the_array_dialect() -> None:
    message = build.frames(build.request(ids=[1, PAD, 2], mm=build.media(raw_image(), raw_image())))
    outcome = run(message, k3_for_vllm())
    assert outcome.reason is Reason.EXPANSION_MISMATCH
    assert build.decoded(build.sent(outcome))[23].endswith("refusing to expand")
