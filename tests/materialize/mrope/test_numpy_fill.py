from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.materialize.mrope import Plan, fill_numpy
from sidecar.materialize.mrope import numpy_fill as module
from sidecar.materialize.mrope.numpy_fill import LEAD, Templates
from sidecar.materialize.mrope.plan import (
    CONSTANT,
    FLOAT32,
    INT64,
    LINEAR,
    OPEN,
    Axis,
    Pattern,
    Segment,
    frames,
    grid,
    stack,
)


def slow(plan: Plan) -> np.ndarray:
    """The formula of plan.py, token by token."""
    out = np.empty((plan.axes, plan.n), plan.dtype)
    for segment in plan.segments:
        axes = segment.pattern.axes if len(segment.pattern.axes) == plan.axes else segment.pattern.axes * plan.axes
        bases = segment.base if isinstance(segment.base, tuple) else (segment.base,) * plan.axes
        for i in range(segment.start, segment.stop):
            unit, offset = divmod(i - segment.start, segment.length)
            k = offset + segment.skip
            for axis, ((run, period, values), base) in enumerate(zip(axes, bases, strict=True)):
                q = (k // run) % period
                value = k if k < 0 else q if values is None else values[q]
                low = plan.dtype.type(base + unit * segment.rise)
                out[axis, i] = plan.dtype.type(value) + low
    return out


PATTERNS = st.one_of(
    st.builds(grid, st.integers(1, 6), st.integers(1, 6)),
    st.builds(stack, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    st.builds(
        lambda times, h, w: frames(np.array(times), h, w),
        st.lists(st.integers(0, 10**6), min_size=1, max_size=4),
        st.integers(1, 4),
        st.integers(1, 4),
    ),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    floating = draw(st.booleans())
    segments, cursor = [], 0
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["text", "constant", "grid", "cut", "units", "own bases"]))
        base = draw(st.integers(0, 10**6) if not floating else st.floats(0, 1000, width=32))
        pattern = draw(PATTERNS)
        if kind == "text":
            segment = Segment(cursor, draw(st.integers(1, 90)), base, LINEAR, draw(st.integers(0, 9)))
        elif kind == "constant":
            segment = Segment(cursor, draw(st.integers(1, 5)), base, CONSTANT)
        elif kind == "grid":
            lead = draw(st.sampled_from([0, 1, LEAD - 1, LEAD, LEAD + 1, 70]))
            whole = int(base) + lead
            segment = Segment(cursor, lead + pattern.size, whole, pattern, -lead)
        elif kind == "cut":
            skip = draw(st.integers(0, pattern.size - 1))
            segment = Segment(cursor, draw(st.integers(1, pattern.size - skip)), base, pattern, skip)
        elif kind == "units":
            lead, rise = draw(st.sampled_from([0, 3, LEAD, LEAD + 9])), draw(st.integers(0, 99))
            count = draw(st.integers(2, 5))
            segment = Segment(cursor, lead + pattern.size, int(base) + lead, pattern, -lead, count, rise)
        else:
            segment = Segment(cursor, pattern.size, (base, base + 1, base + 5), pattern)
        segments.append(segment)
        cursor = segment.stop
    return Plan(cursor, 3, FLOAT32 if floating else INT64, 0, tuple(segments))


@given(plans())
def test_fill_is_the_formula(plan: Plan) -> None:
    filled = fill_numpy(plan)
    assert filled.dtype == plan.dtype
    assert filled.flags.c_contiguous
    assert np.array_equal(filled, slow(plan))


@given(plans())
def test_torch_fill_is_the_formula(plan: Plan) -> None:
    from sidecar.materialize.mrope import fill_torch

    filled = fill_torch(plan, "cpu")
    assert filled.dtype == plan.dtype
    assert np.array_equal(filled, slow(plan))


def test_text_beyond_the_ramp() -> None:
    far = 1 << 21
    plan = Plan(5, 3, INT64, 0, (Segment(0, 5, far, LINEAR),))
    assert fill_numpy(plan)[2].tolist() == [far + k for k in range(5)]


def test_long_text_of_floats() -> None:
    n = 70_000
    plan = Plan(n, 3, FLOAT32, 0, (Segment(0, n, 0.5, LINEAR),))
    assert np.array_equal(fill_numpy(plan)[0], np.arange(n, dtype=np.float32) + np.float32(0.5))


def test_a_chunk_of_floats_rounds_as_the_whole_does() -> None:
    base = np.float32(0.0011200001)
    whole = Plan(40, 3, FLOAT32, 0, (Segment(0, 40, base, LINEAR),))
    positions = fill_numpy(whole)
    assert np.array_equal(positions[0], np.arange(40, dtype=np.float32) + base)
    for start in range(40):
        assert np.array_equal(fill_numpy(whole.chunk(start, 40)), positions[:, start:])


def test_four_axes() -> None:
    pattern = Pattern((Axis(1, 6), Axis(1, 3), Axis(3, 2), Axis(6, 1)), 6)
    plan = Plan(8, 4, INT64, 0, (Segment(0, 2, 0, LINEAR), Segment(2, 6, (2, 0, 0, 7), pattern)))
    assert fill_numpy(plan)[:, 2:].tolist() == [
        [2, 3, 4, 5, 6, 7],
        [0, 1, 2, 0, 1, 2],
        [0, 0, 0, 1, 1, 1],
        [7] * 6,
    ]


def test_open_axis_never_starts_again() -> None:
    assert LINEAR.axes == (Axis(1, OPEN),)
    assert LINEAR.size == 0


def test_templates_stay_inside_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TEMPLATE_BYTES", 20_000)
    templates = Templates(INT64)
    for side in range(1, 12):
        templates.make(grid(side, 2))
        held = sum(template.nbytes for template in templates.kept.values())
        assert held <= 20_000
    large = grid(200, 7)
    assert templates.make(large).shape == (3, LEAD + 1400)
    assert large not in templates.kept
