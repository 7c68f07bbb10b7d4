from __future__ import annotations

import numpy as np
import pytest

from sidecar.materialize.mrope import bind, fill_numpy

from .goldens import Golden, tokenspeed, tokenspeed_items

CASES = [g for g in tokenspeed() if g.case["config"]["model_type"] != "qwen3_omni_moe"]


@pytest.mark.parametrize("golden", CASES, ids=lambda g: g.name)
def test_tokenspeed_golden(golden: Golden) -> None:
    planner = bind("qwen3_5", golden.case["config"])
    plan = planner.plan(golden.case["n"], tokenspeed_items(golden.case), lambda: np.empty(0, np.int64))
    positions = fill_numpy(plan)
    assert positions.dtype == np.int64
    assert np.array_equal(positions, golden.positions)
    assert plan.delta == golden.case["delta"]
    assert type(plan.delta) is int
