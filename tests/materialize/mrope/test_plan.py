from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.materialize.mrope import MODEL_TYPES, MediaItem, Plan, bind, fill_numpy
from sidecar.materialize.mrope.plan import INT64, LINEAR, Segment, grid, stack
from sidecar.wire.tokenspeed import Modality

from .layouts import random_prompt

TYPES = sorted(set(MODEL_TYPES) - {"qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"})


def plan_of(model_type: str, seed: int, more: int = 0) -> Plan:
    rng = Random(f"plan/{model_type}/{seed}")
    prompt = random_prompt(model_type, rng)
    ids = np.array(prompt.ids + [5000] * more)
    return bind(prompt.family, prompt.config, "transformers").plan(len(ids), prompt.items(rng), lambda: ids)


@given(st.sampled_from(TYPES), st.integers(0, 10**6), st.integers(1, 60))
def test_chunks_join_to_the_whole(model_type: str, seed: int, size: int) -> None:
    plan = plan_of(model_type, seed)
    parts = [fill_numpy(plan.chunk(k, min(k + size, plan.n))) for k in range(0, plan.n, size)]
    assert np.array_equal(np.concatenate(parts, axis=1), fill_numpy(plan))


@given(st.sampled_from(TYPES), st.integers(0, 10**6))
def test_segments_cover_the_prompt_in_order(model_type: str, seed: int) -> None:
    plan = plan_of(model_type, seed)
    cursor = 0
    for segment in plan.segments:
        assert segment.start == cursor
        assert segment.length > 0
        assert segment.count > 0
        cursor = segment.stop
    assert cursor == plan.n


@given(st.sampled_from(TYPES), st.integers(0, 10**6))
def test_delta_is_the_highest_position(model_type: str, seed: int) -> None:
    plan = plan_of(model_type, seed)
    if model_type == "glm_image":
        assert plan.delta == 0
        return
    positions = fill_numpy(plan)
    assert plan.delta == positions.max() + positions.dtype.type(1) - positions.dtype.type(plan.n)


@given(st.sampled_from(TYPES), st.integers(0, 10**6), st.integers(1, 40))
def test_text_appended_changes_nothing_before_it(model_type: str, seed: int, more: int) -> None:
    plan, longer = plan_of(model_type, seed), plan_of(model_type, seed, more)
    positions, extended = fill_numpy(plan), fill_numpy(longer)
    assert np.array_equal(extended[:, : plan.n], positions)
    added = extended[:, plan.n :]
    assert (added == added[0]).all()
    assert np.allclose(np.diff(added[0]), 1, atol=1e-3)


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 50), st.integers(1, 8))
def test_equal_neighbours_are_one_segment(height: int, width: int, text: int, count: int) -> None:
    size = height * width
    spans = tuple((k * (text + size) + text, (k + 1) * (text + size) - 1) for k in range(count))
    item = MediaItem(0, Modality.VIDEO, spans, ((count, height, width),))
    planner = bind("qwen3_5", {"vision_config": {"spatial_merge_size": 1}})
    plan = planner.plan(count * (text + size) + 3, [item], lambda: np.empty(0, np.int64))
    assert len(plan.segments) == 2
    apart = [
        Segment(part.start, part.length, part.base, part.pattern, part.skip)
        for segment in plan.segments
        for k in range(segment.count)
        for part in segment.cut(segment.start + k * segment.length, segment.start + (k + 1) * segment.length)
    ]
    assert len(apart) == count + 1
    assert np.array_equal(fill_numpy(Plan(plan.n, 3, INT64, 0, tuple(apart))), fill_numpy(plan))


def test_image_of_two_frames_as_the_engine_has_it() -> None:
    item = MediaItem(0, Modality.IMAGE, ((2, 13),), ((6, 2, 4),))
    config = {"vision_config": {"spatial_merge_size": 2}}
    engine, hf = (bind("qwen3_5", config, reference) for reference in ("engine", "transformers"))
    after = {}
    for planner in (engine, hf):
        positions = fill_numpy(planner.plan(16, [item], lambda: np.empty(0, np.int64)))
        assert positions[0, 2:14].tolist() == [2 + k // 2 for k in range(12)]
        after[planner] = positions[0, 14]
    assert after == {engine: 2 + 6, hf: 2 + 2}


def test_ids_are_not_asked_for_where_offsets_suffice() -> None:
    def ids() -> np.ndarray:
        raise AssertionError("asked")

    for model_type in TYPES:
        if model_type != "minicpmv4_7":
            rng = Random(model_type)
            prompt = random_prompt(model_type, rng)
            bind(prompt.family, prompt.config, "transformers").plan(len(prompt.ids), prompt.items(rng), ids)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 8)])
def test_chunk_outside_the_plan(start: int, stop: int) -> None:
    plan = Plan(7, 3, INT64, 0, (Segment(0, 7, 0, LINEAR),))
    with pytest.raises(ValueError, match="chunk"):
        plan.chunk(start, stop)


def test_patterns_are_the_same_object_for_the_same_shape() -> None:
    assert grid(3, 4) is grid(3, 4)
    assert stack(2, 3, 4) is stack(2, 3, 4)
