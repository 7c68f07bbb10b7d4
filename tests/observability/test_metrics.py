"""The numbers and the table that names them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import Reason
from sidecar.observability.catalog import CATALOG, LAG_BOUNDS, STAGE_BOUNDS
from sidecar.observability.metrics import Histogram, Metrics


def test_every_attribute_is_in_the_catalog_and_the_reverse():
    attributes = [metric.attribute for metric in CATALOG]
    assert sorted([*attributes, "build"]) == sorted(vars(Metrics()))


def test_names_are_unique_and_follow_the_conventions():
    names = [metric.name for metric in CATALOG]
    assert len(set(names)) == len(names)
    for metric in CATALOG:
        assert metric.name.startswith("sidecar_")
        assert metric.name.endswith("_total") == (metric.type == "counter"), metric.name
        assert (metric.type == "histogram") == bool(metric.bounds)
        assert metric.help.endswith(".")


@pytest.mark.parametrize("metric", [metric for metric in CATALOG if metric.labels], ids=lambda metric: metric.name)
def test_a_labelled_metric_holds_exactly_the_series_of_its_label_sets(metric):
    held = getattr(Metrics(), metric.attribute)
    keys = [key if isinstance(key, tuple) else (key,) for key in held]
    assert keys == list(metric.series())


def test_reasons_are_counted_by_the_enumeration_itself():
    metrics = Metrics()
    for reason in Reason:
        metrics.rejected[reason] += 1
    assert set(metrics.rejected.values()) == {1}


def test_a_label_value_outside_the_closed_set_is_an_error_where_it_is_counted():
    with pytest.raises(KeyError):
        Metrics().received["banana"] += 1


@given(st.lists(st.floats(min_value=0, max_value=10)))
def test_a_histogram_counts_each_duration_at_the_first_bound_that_holds_it(durations):
    histogram = Histogram(STAGE_BOUNDS)
    for duration in durations:
        histogram.observe(duration)
    cumulative = list(itertools.accumulate(histogram.counts))
    assert cumulative == [*(sum(d <= bound for d in durations) for bound in STAGE_BOUNDS), len(durations)]
    assert histogram.sum == pytest.approx(sum(durations))


def test_the_bounds_cover_fifty_microseconds_to_a_second_in_order():
    assert (STAGE_BOUNDS[0], STAGE_BOUNDS[-1]) == (50e-6, 1.0)
    for bounds in (STAGE_BOUNDS, LAG_BOUNDS):
        assert list(bounds) == sorted(set(bounds))


def test_a_snapshot_does_not_move() -> None:
    metrics = Metrics()
    held = 1
    metrics.inflight_requests = lambda: held
    metrics.received["generate"] += 1
    seen = metrics.snapshot()
    metrics.received["generate"] += 1
    metrics.requests["tokenspeed", "forwarded"] += 1
    held = 2
    assert seen.received["generate"] == 1
    assert sum(seen.requests.values()) == 0
    assert seen.inflight_requests == 1


def test_a_snapshot_is_taken_when_whoever_counts_says_so() -> None:
    metrics = Metrics()
    metrics.at_rest = lambda take: (metrics.received.update(abort=7), take())[1]
    assert metrics.snapshot().received["abort"] == 7
