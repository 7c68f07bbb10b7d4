from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

from sidecar.materialize.mrope import (
    ARCHITECTURES,
    FAMILIES,
    MODEL_TYPES,
    NO_MROPE_MODEL_TYPES,
    MediaItem,
    bind,
    fill_numpy,
)
from sidecar.materialize.mrope import families as module
from sidecar.materialize.mrope.qwen_vl import _clock
from sidecar.wire.tokenspeed import Modality

from .goldens import DATA
from .layouts import random_prompt


def test_every_name_has_a_family() -> None:
    assert set(MODEL_TYPES.values()) == set(FAMILIES)
    assert set(ARCHITECTURES.values()) == set(FAMILIES)
    assert not NO_MROPE_MODEL_TYPES & set(MODEL_TYPES)


def test_constants_need_nothing_but_the_standard_library() -> None:
    path = Path(module.__file__)
    code = f"import runpy, sys; runpy.run_path({str(path)!r}); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_5_moe", "qwen4_exp"])
def test_references_of_qwen3_5_agree_on_images_of_one_frame_and_on_videos(model_type: str) -> None:
    for seed in range(100):
        rng = Random(f"references/{model_type}/{seed}")
        prompt = random_prompt(model_type, rng)
        items = prompt.items(rng)
        plans = [
            bind(prompt.family, prompt.config, reference).plan(len(prompt.ids), items, lambda: np.empty(0, np.int64))
            for reference in ("engine", "transformers")
        ]
        assert np.array_equal(fill_numpy(plans[0]), fill_numpy(plans[1]))
        assert plans[0].delta == plans[1].delta


def test_references_of_qwen3_omni_differ_in_fractions_and_dtype() -> None:
    config = {"thinker_config": {"vision_config": {"spatial_merge_size": 2}, "position_id_per_seconds": 13}}
    item = MediaItem(0, Modality.VIDEO, ((2, 5),), ((4, 2, 2),), (0.7,), "float32")
    made = {}
    for reference in ("engine", "transformers"):
        plan = bind("qwen3_omni_moe", config, reference).plan(8, [item], lambda: np.empty(0, np.int64))
        made[reference] = (fill_numpy(plan), plan.delta)
    positions, delta = made["engine"]
    assert positions.dtype == np.int64
    assert positions[0].tolist() == [0, 1, 2, 11, 20, 29, 30, 31]
    assert (delta, type(delta)) == (24, int)
    positions, delta = made["transformers"]
    assert positions.dtype == np.float32
    assert np.allclose(positions[0], [0, 1, 2, 11.1, 20.2, 29.3, 30.3, 31.3])
    assert type(delta) is np.float32


def test_engine_clock_of_qwen3_omni() -> None:
    rows = [json.loads(line) for line in (DATA / "omni_temporal.jsonl").read_text().splitlines()]
    assert len(rows) == 225
    for row in rows:
        pps, seconds, t = row["position_id_per_seconds"], row["seconds"], row["T"]
        thinker = {"vision_config": {"spatial_merge_size": 1}, "position_id_per_seconds": pps}
        item = MediaItem(0, Modality.VIDEO, ((0, t - 1),), ((t, 1, 1),), (seconds,), "float64")
        planner = bind("qwen3_omni_moe", {"thinker_config": thinker})
        plan = planner.plan(t, [item], lambda: np.empty(0, np.int64))
        assert fill_numpy(plan)[0].tolist() == row["t_axis"], (pps, seconds, t)


@pytest.mark.parametrize(
    ("rate", "seconds", "frame", "by_dtype"),
    [
        (25, 1 / 3, 3, {None: 25, "float32": 25, "float64": 24}),
        (25, 1.17, 4, {None: 117, "float32": 116, "float64": 117}),
        (13, 1 / 11, 11, {None: 12, "float32": 13, "float64": 13}),
        (13, 1.9, 10, {None: 247, "float32": 246, "float64": 247}),
    ],
)
def test_clock_of_qwen2_5_vl_rounds_by_dtype(
    rate: int, seconds: float, frame: int, by_dtype: dict[str | None, int]
) -> None:
    for dtype, tick in by_dtype.items():
        assert _clock(frame + 1, rate, seconds, dtype)[frame] == tick


def test_whole_seconds_stay_integers() -> None:
    assert _clock(3, 2, 1 << 20, "int64").tolist() == [0, 1 << 21, 1 << 22]
    assert _clock(3, 2, 0, None).tolist() == [0, 0, 0]
