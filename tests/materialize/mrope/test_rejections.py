"""What a planner refuses, and that its message names the item, the numbers and what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.errors import ConfigError, Reason, Rejection
from sidecar.materialize.mrope import FAMILIES, MediaItem, bind, fill_numpy
from sidecar.wire.tokenspeed import Modality

IMAGE, VIDEO, AUDIO = Modality.IMAGE, Modality.VIDEO, Modality.AUDIO
VISION = {"vision_config": {"spatial_merge_size": 2}, "image_token_id": 1, "video_token_id": 2}
MARKERS = ("slice_start_id", "slice_end_id", "image_start_id", "image_end_id", "newline_id")
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "hunyuan_vl": {**VISION, "text_config": {"rope_parameters": {"mrope_section": [24, 20, 20]}}},
    "minicpmv4_7": {key: 10 + k for k, key in enumerate(MARKERS)},
    "qwen3_omni_moe": {"thinker_config": VISION},
    "qwen2_5_omni": {"thinker_config": VISION},
}
GRID_FAMILIES = sorted(set(FAMILIES) - {"minicpmv4_7"})


def refuse(family: str, *items: MediaItem, n: int = 100, reference: Any = "engine") -> Rejection:
    planner = bind(family, CONFIGS.get(family, VISION), reference)
    with pytest.raises(Rejection) as caught:
        planner.plan(n, items, lambda: np.zeros(n, np.int64))
    return caught.value


def image(*spans: tuple[int, int], grids: Any = ((1, 4, 4),), index: int = 0, **more: Any) -> MediaItem:
    return MediaItem(index, IMAGE, spans, grids, **more)


def video(*spans: tuple[int, int], grids: Any = ((2, 4, 4),), index: int = 0, **more: Any) -> MediaItem:
    return MediaItem(index, VIDEO, spans, grids, **more)


@pytest.mark.parametrize("family", GRID_FAMILIES)
@pytest.mark.parametrize("reference", ["engine", "transformers"])
@pytest.mark.parametrize(
    "row",
    [
        (0, 4, 4),
        (1, -4, 4),
        (1, 4, 0),
        (1, 4),
        (1, 4, 4, 4),
        (),
        (1.0, 4, 4),
        (True, 4, 4),
        ("1", 4, 4),
        (1 << 40, 4, 4),
        (1, 1 << 40, 1 << 40),
        (1 << 62, 1 << 62, 1 << 62),
    ],
)
def test_rows_that_are_no_grid(family: str, reference: str, row: Any) -> None:
    error = refuse(family, image((5, 8), grids=(row,), index=3), reference=reference)
    assert error.reason is Reason.GRID_INVALID
    assert error.message.startswith("item 3: ")
    assert str(row) in error.message


@pytest.mark.parametrize("family", sorted(set(GRID_FAMILIES) - {"glm_image"}))
@pytest.mark.parametrize("row", [(1, 3, 4), (1, 4, 5)])
def test_sides_that_do_not_merge(family: str, row: Any) -> None:
    error = refuse(family, image((5, 8), grids=(row,)))
    assert error.reason is Reason.GRID_INVALID
    assert "merge size 2" in error.message


def test_frames_that_do_not_merge() -> None:
    error = refuse("ernie4_5_vl_moe", video((5, 8), grids=((3, 4, 4),)))
    assert error.reason is Reason.GRID_INVALID
    assert "temporal merge size 2" in error.message


def test_video_of_absurd_length_allocates_nothing() -> None:
    for family in ("qwen2_vl", "qwen3_5", "qwen2_5_vl", "qwen3_omni_moe", "qwen2_5_omni", "hy_v4_vl"):
        error = refuse(family, video((5, 8), grids=((1 << 28, 2, 2),)))
        assert error.reason is Reason.GRID_MISMATCH


@pytest.mark.parametrize("family", GRID_FAMILIES)
@pytest.mark.parametrize("reference", ["engine", "transformers"])
def test_grid_that_is_missing(family: str, reference: str) -> None:
    error = refuse(family, image((5, 8), grids=(), index=1), reference=reference)
    assert error.reason is Reason.GRID_MISMATCH
    assert error.message.startswith("item 1: image with 1 spans")


@pytest.mark.parametrize("family", GRID_FAMILIES)
@pytest.mark.parametrize("reference", ["engine", "transformers"])
def test_rows_and_spans_that_differ_in_number(family: str, reference: str) -> None:
    for spans, grids in [(((5, 8),), ((1, 4, 4),) * 2), (((5, 8), (10, 13)), ((1, 4, 4),)), ((), ((1, 4, 4),))]:
        error = refuse(family, image(*spans, grids=grids), reference=reference)
        assert error.reason is Reason.GRID_MISMATCH
        assert f"{len(spans)} spans for {len(grids)} grid rows" in error.message


@pytest.mark.parametrize("family", GRID_FAMILIES)
@pytest.mark.parametrize("reference", ["engine", "transformers"])
def test_span_of_another_length(family: str, reference: str) -> None:
    error = refuse(family, image((5, 30), index=2), reference=reference)
    assert error.reason is Reason.GRID_MISMATCH
    assert error.message.startswith("item 2: span [5, 30] has 26 tokens, grid (1, 4, 4) makes ")


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_5", "qwen3_omni_moe"])
def test_swapped_grids_of_equal_total(family: str) -> None:
    error = refuse(family, image((5, 8), (20, 25), grids=((1, 4, 6), (1, 4, 4))))
    assert error.reason is Reason.GRID_MISMATCH
    assert "span [5, 8] has 4 tokens, grid (1, 4, 6) makes 6" in error.message


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5", "glm4v"])
def test_video_in_one_run_where_frames_stand_apart(family: str) -> None:
    error = refuse(family, video((5, 12)))
    assert error.reason is Reason.GRID_MISMATCH
    assert "1 spans for 2 frames" in error.message
    error = refuse(family, video((5, 8), (10, 14)))
    assert "span [10, 14] has 5 tokens, grid (2, 4, 4) makes 4 a frame" in error.message


@pytest.mark.parametrize("family", GRID_FAMILIES)
@pytest.mark.parametrize("reference", ["engine", "transformers"])
def test_spans_that_overlap_or_leave_the_prompt(family: str, reference: str) -> None:
    size = {"hunyuan_vl": 6, "hy_v4_vl": 6, "glm_image": 16}.get(family, 4)
    first = image((5, 4 + size))
    for item in (
        image((3 + size, 2 + 2 * size), index=1),
        image((5, 4 + size), index=1),
        image((97, 96 + size), index=1),
        image((-3, size - 4), index=1),
    ):
        error = refuse(family, first, item, reference=reference)
        assert error.reason is Reason.OFFSETS_INVALID
        assert error.message.startswith(("item 1: ", "item 0: "))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen2_5_omni", "qwen3_omni_moe"])
@pytest.mark.parametrize("reference", ["engine", "transformers"])
@pytest.mark.parametrize(
    "seconds", [(-1.0,), (float("nan"),), (float("inf"),), (1.0, 1.0, 1.0), (), (1e30,), (1 << 70,)]
)
def test_seconds_that_are_none(family: str, reference: str, seconds: Any) -> None:
    item = video((5, 12), (20, 27), grids=((2, 4, 4),) * 2, seconds=seconds)
    error = refuse(family, item, reference=reference)
    assert error.reason is Reason.METADATA_INVALID
    assert error.message.startswith("item 0: ")


def test_audio_in_video_for_the_engine() -> None:
    error = refuse("qwen3_omni_moe", video((5, 12), use_audio_in_video=True))
    assert error.reason is Reason.METADATA_INVALID
    assert "use_audio_in_video is true" in error.message


@pytest.mark.parametrize("lengths", [(40, 40), (0,), (-1,), (3,)])
def test_audio_lengths_for_the_engine(lengths: Any) -> None:
    error = refuse("qwen3_omni_moe", MediaItem(0, AUDIO, ((5, 9),), audio_lengths=lengths))
    assert error.reason is Reason.METADATA_INVALID


@pytest.mark.parametrize("family", ["qwen2_5_omni", "qwen3_omni_moe"])
@pytest.mark.parametrize("lengths", [(400,), (0,), (-7,), (40, 40), ()])
def test_audio_lengths_for_transformers(family: str, lengths: Any) -> None:
    audio = MediaItem(0, AUDIO, ((5, 9),), audio_lengths=lengths)
    error = refuse(family, audio, reference="transformers")
    assert error.reason is Reason.METADATA_INVALID


@pytest.mark.parametrize("family", ["qwen2_5_omni", "qwen3_omni_moe"])
def test_interleaved_video_without_its_audio(family: str) -> None:
    alone = video((5, 12), use_audio_in_video=True)
    assert refuse(family, alone, reference="transformers").reason is Reason.METADATA_INVALID
    audio = MediaItem(1, AUDIO, ((40, 44),))
    error = refuse(family, alone, audio, reference="transformers")
    assert error.reason is Reason.GRID_MISMATCH
    assert "interleaved" in error.message


def test_audio_in_runs_without_a_video() -> None:
    audio = MediaItem(0, AUDIO, ((5, 7), (9, 10)), audio_lengths=(40,))
    error = refuse("qwen3_omni_moe", audio, reference="transformers")
    assert error.reason is Reason.GRID_MISMATCH


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"minicpmv4_7"}))
def test_audio_with_a_grid(family: str) -> None:
    error = refuse(family, MediaItem(0, AUDIO, ((5, 8),), ((1, 4, 4),)))
    assert error.reason is Reason.GRID_MISMATCH


@pytest.mark.parametrize("family", ["glm_image", "hunyuan_vl"])
def test_video_on_a_model_of_images(family: str) -> None:
    assert refuse(family, video((5, 12))).reason is Reason.MODALITY_UNSUPPORTED


def test_hunyuan_images_have_one_frame() -> None:
    assert refuse("hunyuan_vl", image((5, 16), grids=((2, 4, 4),))).reason is Reason.GRID_INVALID


def crops(*spans: tuple[int, int], sizes: Any) -> MediaItem:
    return MediaItem(0, IMAGE, spans, target_sizes=sizes)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (crops((5, 8), sizes=None), Reason.GRID_MISMATCH),
        (crops((5, 8), sizes=((8, 8), (8, 8))), Reason.GRID_MISMATCH),
        (crops((5, 9), sizes=((8, 8),)), Reason.GRID_MISMATCH),
        (crops((5, 8), sizes=((8, 9),)), Reason.GRID_INVALID),
        (crops((5, 8), sizes=((8,),)), Reason.GRID_INVALID),
        (crops((5, 8), sizes=((8, 0),)), Reason.GRID_INVALID),
        (crops((5, 8), sizes=((1 << 40, 1 << 40),)), Reason.GRID_INVALID),
        (crops((0, 3), sizes=((8, 8),)), Reason.OFFSETS_INVALID),
        (crops((97, 100), sizes=((8, 8),)), Reason.OFFSETS_INVALID),
        (crops((5, 8), (9, 12), sizes=((8, 8), (8, 8))), Reason.OFFSETS_INVALID),
        (crops((5, 8), (7, 10), sizes=((8, 8), (8, 8))), Reason.OFFSETS_INVALID),
    ],
)
def test_minicpm_crops(item: MediaItem, reason: Reason) -> None:
    error = refuse("minicpmv4_7", item)
    assert error.reason is reason
    assert error.message.startswith("item 0: ")


SIDES = st.sampled_from([-1, 0, 1, 2, 4, 6, 1 << 31, 1 << 63, (1 << 64) - 1, 2.0, None])
PLACES = st.integers(-3, 24)


@st.composite
def hostile_items(draw: st.DrawFn, index: int) -> MediaItem:
    return MediaItem(
        index,
        draw(st.sampled_from(Modality)),
        tuple(draw(st.lists(st.tuples(PLACES, PLACES), max_size=3))),
        tuple(draw(st.lists(st.tuples(SIDES, SIDES, SIDES), max_size=3))),
        draw(st.none() | st.lists(st.floats() | st.integers(-2, 1 << 64), max_size=2).map(tuple)),
        draw(st.sampled_from([None, "float32", "float64", "bfloat16", "int64"])),
        draw(st.none() | st.lists(st.integers(-1, 1 << 63), max_size=2).map(tuple)),
        draw(st.booleans()),
        draw(st.none() | st.lists(st.tuples(SIDES, SIDES), max_size=3).map(tuple)),
    )


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("reference", ["engine", "transformers"])
@settings(max_examples=60)
@given(data=st.data())
def test_hostile_items_are_planned_or_rejected(family: str, reference: Any, data: st.DataObject) -> None:
    items = [data.draw(hostile_items(k)) for k in range(data.draw(st.integers(1, 3)))]
    planner = bind(family, CONFIGS.get(family, VISION), reference)
    try:
        plan = planner.plan(20, items, lambda: np.full(20, 10, np.int64))
    except Rejection as error:
        assert error.message.startswith("item ")  # noqa: PT017 - either outcome is fine
    else:
        assert fill_numpy(plan).min() >= 0
        assert [s.start for s in plan.segments] + [20] == [0] + [s.stop for s in plan.segments]


def test_family_that_is_unknown() -> None:
    with pytest.raises(ConfigError, match="no M-RoPE family 'qwen9'"):
        bind("qwen9", {})


@pytest.mark.parametrize("family", ["hunyuan_vl", "minicpmv4_7"])
def test_config_that_lacks_what_the_family_needs(family: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.path"):
        bind(family, VISION)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("reference", ["engine", "transformers"])
def test_prompt_without_media_is_linear(family: str, reference: Any) -> None:
    planner = bind(family, CONFIGS.get(family, VISION), reference)
    plan = planner.plan(7, (), lambda: np.zeros(7, np.int64))
    assert plan.delta == 0
    assert len(plan.segments) == 1
    assert planner.plan(0, (), lambda: np.zeros(0, np.int64)).segments == ()
