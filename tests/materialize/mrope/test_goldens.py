"""Every recorded case of both references, bit-equal with its dtype, by offsets found in the ids."""

from __future__ import annotations

import numpy as np
import pytest

from sidecar.materialize.mrope import MODEL_TYPES, bind, fill_numpy, items_from_ids

from .goldens import Golden, media_of, tokenspeed, tokenspeed_items, transformers


@pytest.mark.parametrize("golden", list(transformers()), ids=lambda g: g.name)
def test_transformers(golden: Golden) -> None:
    case = golden.case
    family = MODEL_TYPES[case["model_type"]]
    items = items_from_ids(family, case["config"], golden.ids, media_of(case))
    plan = bind(family, case["config"], "transformers").plan(len(golden.ids), items, lambda: golden.ids)
    positions = fill_numpy(plan)
    assert positions.dtype == golden.positions.dtype
    assert np.array_equal(positions, golden.positions)
    assert plan.delta == golden.positions.dtype.type(case["delta"])


@pytest.mark.parametrize("golden", list(tokenspeed()), ids=lambda g: g.name)
def test_tokenspeed(golden: Golden) -> None:
    family = MODEL_TYPES[golden.case["config"]["model_type"]]
    planner = bind(family, golden.case["config"])
    plan = planner.plan(golden.case["n"], tokenspeed_items(golden.case), lambda: np.empty(0, np.int64))
    positions = fill_numpy(plan)
    assert positions.dtype == np.int64
    assert np.array_equal(positions, golden.positions)
    assert plan.delta == golden.case["delta"]
    assert type(plan.delta) is int
