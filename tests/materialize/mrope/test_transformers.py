"""Random prompts of every model type against transformers: by offsets, by ids, and by both fills."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from sidecar.materialize.mrope import bind, fill_numpy, items_from_ids

from .layouts import Prompt, interleave, random_prompt
from .reference import CLASSES, reference

CASES = 300


def check(prompt: Prompt, rng: Random, positions: np.ndarray, delta: float, label: str) -> None:
    ids = np.array(prompt.ids)
    planner = bind(prompt.family, prompt.config, "transformers")
    stated = planner.plan(len(ids), prompt.items(rng), lambda: ids)
    found = items_from_ids(prompt.family, prompt.config, ids, prompt.media_only())
    scanned = planner.plan(len(ids), found, lambda: ids)
    for plan in (stated, scanned):
        filled = fill_numpy(plan)
        assert filled.dtype == positions.dtype, label
        assert np.array_equal(filled, positions), label
        assert plan.delta == positions.dtype.type(delta), label


@pytest.mark.parametrize("model_type", CLASSES)
def test_random_prompts(model_type: str) -> None:
    for seed in range(CASES):
        rng = Random(f"{model_type}/{seed}")
        prompt = random_prompt(model_type, rng)
        positions, delta = reference(prompt)
        check(prompt, rng, positions, delta, f"seed {seed}")
        if prompt.blocks:
            mixed = interleave(prompt, positions)
            positions, delta = reference(mixed)
            check(mixed, rng, positions, delta, f"seed {seed}, interleaved")
