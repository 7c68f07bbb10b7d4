from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

from sidecar.errors import ConfigError
from sidecar.materialize.mrope import MODEL_TYPES, MediaItem, Plan, bind, fill_numpy, fill_torch, items_from_ids, submit
from sidecar.materialize.mrope import torch_fill as module
from sidecar.materialize.mrope.torch_fill import Table, resolve_device
from sidecar.wire.tokenspeed import Modality

from .goldens import media_of, transformers
from .layouts import random_prompt

REPOSITORY = Path(__file__).parents[3]


def golden_plans() -> list[tuple[str, Plan, np.ndarray]]:
    plans = []
    for golden in transformers():
        family = MODEL_TYPES[golden.case["model_type"]]
        items = items_from_ids(family, golden.case["config"], golden.ids, media_of(golden.case))
        planner = bind(family, golden.case["config"], "transformers")
        plans.append((golden.name, planner.plan(len(golden.ids), items, lambda g=golden: g.ids), golden.positions))
    return plans


def random_plan(model_type: str, seed: int) -> Plan:
    rng = Random(f"torch/{model_type}/{seed}")
    prompt = random_prompt(model_type, rng)
    ids = np.array(prompt.ids)
    return bind(prompt.family, prompt.config, "transformers").plan(len(ids), prompt.items(rng), lambda: ids)


def many_images(count: int) -> Plan:
    """A qwen3_5 prompt of `count` images of different sizes: as many segments."""
    items, cursor = [], 1
    for k in range(count):
        height, width = k % 7 + 1, k % 5 + 2
        span = (cursor, cursor + height * width - 1)
        items.append(MediaItem(k, Modality.IMAGE, (span,), ((1, height * 2, width * 2),)))
        cursor = span[1] + 3
    config = {"vision_config": {"spatial_merge_size": 2}}
    return bind("qwen3_5", config).plan(cursor + 10, items, lambda: np.empty(0, np.int64))


def check_goldens(device: str) -> None:
    for name, plan, positions in golden_plans():
        filled = fill_torch(plan, device)
        assert filled.dtype == positions.dtype, name
        assert np.array_equal(filled, positions), name


def check_random(device: str) -> None:
    for model_type in MODEL_TYPES:
        if model_type.endswith("_thinker"):
            continue
        for seed in range(25):
            plan = random_plan(model_type, seed)
            assert np.array_equal(fill_torch(plan, device), fill_numpy(plan)), (model_type, seed)


def kernels(plan: Plan, device: str) -> int:
    """How many operators (on CUDA: kernels and copies) one fill starts."""
    from torch.profiler import ProfilerActivity, profile

    activity = ProfilerActivity.CUDA if device.startswith("cuda") else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        fill_torch(plan, device)
    return sum(event.count for event in profiler.key_averages())


def test_goldens_on_cpu() -> None:
    check_goldens("cpu")


def test_random_plans_on_cpu() -> None:
    check_random("cpu")


def test_launches_do_not_grow_with_segments() -> None:
    few, many = many_images(3), many_images(300)
    assert len(many.segments) > 50 * len(few.segments)
    assert kernels(many, "cpu") == kernels(few, "cpu")


def test_table_grows_with_segments_only() -> None:
    plan = many_images(10)
    assert Table(plan).columns.shape == (4 + 4 * 3, len(plan.segments))
    assert len(Table(plan).values) == 0


def test_chunks_of_a_plan() -> None:
    plan = many_images(20)
    whole = fill_torch(plan, "cpu")
    parts = [fill_torch(plan.chunk(k, min(k + 37, plan.n)), "cpu") for k in range(0, plan.n, 37)]
    assert np.array_equal(np.concatenate(parts, axis=1), whole)


def test_submit_on_cpu_is_done_at_once() -> None:
    pending = submit(many_images(2), "cpu")
    assert pending.done()
    assert pending.result().shape == (3, many_images(2).n)


def test_torch_is_not_imported_before_the_first_fill() -> None:
    code = (
        "import sys, sidecar.materialize.mrope as m; m.resolve_device('cpu'); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0


def test_auto_without_a_driver_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEVICE_NODES", ())
    assert resolve_device("auto") is None


@pytest.mark.parametrize("setting", ["cuda:97", "gpu", "cuda:x", "mps"])
def test_devices_that_are_not_there(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"materialize\.device"):
        resolve_device(setting)


@pytest.mark.cuda
def test_goldens_on_cuda() -> None:
    check_goldens("cuda")


@pytest.mark.cuda
def test_random_plans_on_cuda() -> None:
    check_random("cuda")


@pytest.mark.cuda
def test_launches_on_cuda_do_not_grow_with_segments() -> None:
    few, many = many_images(3), many_images(300)
    fill_torch(few, "cuda")
    assert kernels(many, "cuda") == kernels(few, "cuda")


@pytest.mark.cuda
def test_results_on_cuda_outlive_later_fills() -> None:
    plans = [many_images(k) for k in range(1, 40)]
    pending = [submit(plan, "cuda") for plan in plans]
    for plan, waiting in zip(plans, pending, strict=True):
        assert np.array_equal(waiting.result(), fill_numpy(plan))


@pytest.mark.cuda
def test_auto_is_cuda_where_there_is_one() -> None:
    assert resolve_device("auto") == "cuda"
    assert resolve_device("cuda:0") == "cuda:0"
