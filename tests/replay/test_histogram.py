"""The histogram against exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.replay.histogram import Histogram, bounds_of, bucket_of

VALUES = st.integers(0, (1 << 53) - 1)


@given(VALUES)
def test_a_value_lies_in_its_bucket(value: int) -> None:
    low, high = bounds_of(bucket_of(value))
    assert low <= value < high
    assert (high - low) * 64 <= max(low, 64)


def test_buckets_join_without_a_gap() -> None:
    edge = 0
    for bucket in range(2000):
        low, high = bounds_of(bucket)
        assert low == edge
        edge = high


@given(st.lists(VALUES, min_size=1, max_size=300), st.floats(0.1, 100))
def test_percentiles_are_within_one_percent(values: list[int], percent: float) -> None:
    histogram = Histogram(values)
    exact = float(np.percentile(values, percent, method="inverted_cdf"))
    assert histogram.percentile(percent) == pytest.approx(exact, rel=0.01, abs=0.5)
    assert histogram.percentile(100) == max(values)
    assert histogram.minimum == min(values)
    assert histogram.maximum == max(values)
    assert histogram.mean == pytest.approx(sum(values) / len(values))


@given(st.lists(VALUES, max_size=50), st.lists(VALUES, max_size=50))
def test_merging_is_counting_both(a: list[int], b: list[int]) -> None:
    merged, both = Histogram(a), Histogram(a + b)
    merged.merge(Histogram(b))
    assert list(merged.buckets()) == list(both.buckets())
    assert (merged.count, merged.minimum, merged.maximum, merged.total) == (
        both.count, both.minimum, both.maximum, both.total,
    )  # fmt: skip


def test_one_at_a_time() -> None:
    histogram = Histogram()
    for value in (5, 100_000, 3, -7):
        histogram.add(value)
    assert list(histogram.buckets()) == list(Histogram([5, 100_000, 3, 0]).buckets())


def test_chosen_buckets() -> None:
    histogram = Histogram([5, 10, 99, 1000, 1_000_000])
    assert histogram.rebinned([10, 100]) == [1, 2, 2]
    assert histogram.rebinned([]) == [5]


def test_nothing_counted() -> None:
    histogram = Histogram()
    assert (histogram.count, histogram.percentile(99), histogram.mean) == (0, 0.0, 0.0)
    assert list(histogram.buckets()) == []
