"""The arithmetic of the benchmarks."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measure import fit, geometric_mean, interleave, percentiles


def test_functions_take_turns() -> None:
    seen: list[str] = []
    times = interleave([lambda: seen.append("a"), lambda: seen.append("b")], budget_s=0.0, least=4)
    assert len(times) == 2
    assert all(seconds > 0 for seconds in times)
    changes = [one for one, other in pairwise(seen) if one != other]
    assert changes == ["a", "b"] * 4 + ["a"]  # the warm-up of each, then four turns


def test_the_geometric_mean_of_inverse_ratios_is_one() -> None:
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


@given(st.floats(-100, 100), st.floats(-100, 100), st.lists(st.integers(0, 1000), min_size=3, unique=True))
def test_a_straight_line_is_found(slope: float, intercept: float, x: list[int]) -> None:
    line = fit(x, [intercept + slope * value for value in x])
    assert math.isclose(line.slope, slope, abs_tol=1e-6)
    assert math.isclose(line.intercept, intercept, abs_tol=1e-3)
    assert line.r2 == pytest.approx(1.0, abs=1e-6) or abs(slope) < 1e-6


def test_a_curve_is_no_straight_line() -> None:
    x = [1, 2, 4, 8, 16, 32, 64]
    assert fit(x, [value**2 for value in x]).r2 < 0.97
    assert fit(x, [3 + 2 * value for value in x]).r2 > 0.9999


def test_two_points_make_no_fit() -> None:
    with pytest.raises(ValueError, match="2 points"):
        fit([1, 2], [1, 2])


def test_percentiles_are_values_that_occur() -> None:
    assert percentiles([5.0, 1.0, 4.0, 2.0, 3.0], [50, 99, 0]) == [3.0, 5.0, 1.0]
    assert percentiles(range(1, 1001), [99, 99.9]) == [991.0, 1000.0]
