"""What a scrape shows."""

from __future__ import annotations

import random
import string

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.errors import Reason
from sidecar.observability import catalog
from sidecar.observability.collector import make_registry, render
from sidecar.observability.metrics import Metrics

CONTRACT = (
    "sidecar_messages_received_total{kind}",
    "sidecar_requests_total{dialect,outcome}",
    "sidecar_aborts_total{outcome}",
    "sidecar_control_total{outcome}",
    "sidecar_rejected_total{reason}",
    "sidecar_stage_duration_seconds{stage}",
    "sidecar_inflight_requests",
    "sidecar_inflight_bytes",
    "sidecar_received_bytes_total",
    "sidecar_sent_bytes_total",
    "sidecar_media_items_total{modality}",
    "sidecar_media_tokens_total{modality}",
    "sidecar_event_loop_lag_seconds",
    "sidecar_engine_connected",
)
"""The names that dashboards outside this repository use, with their labels."""


def scrape(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Every sample by its name followed by its label values."""
    text = render(make_registry(metrics)).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("form", CONTRACT)
def test_the_promised_names_are_there_with_their_labels(form):
    name, _, labels = form.rstrip("}").partition("{")
    metric = next(metric for metric in catalog.CATALOG if metric.name == name)
    assert ",".join(metric.labels) == labels


def test_every_series_exists_before_anything_was_counted():
    samples = scrape(Metrics())
    for metric in catalog.CATALOG:
        name = f"{metric.name}_count" if metric.type == "histogram" else metric.name
        for labels in metric.series():
            assert samples[name, *labels] == 0
    buckets = [key for key in samples if key[0] == "sidecar_stage_duration_seconds_bucket"]
    assert len(buckets) == len(catalog.STAGES) * (len(catalog.STAGE_BOUNDS) + 1)


def test_the_process_and_the_build_are_there():
    samples = scrape(Metrics())
    assert {metric.name for metric in catalog.PROCESS} == {name for name, *_ in samples if name.startswith("process_")}
    (build,) = (key for key in samples if key[0] == "sidecar_build_info")
    assert samples[build] == 1
    assert len(build) == 1 + len(catalog.BUILD)


def test_numbers_and_sources_come_out_under_their_names():
    metrics = Metrics()
    metrics.received["generate"] += 3
    metrics.requests["tokenspeed", "forwarded"] += 2
    metrics.rejected[Reason.GRID_MISMATCH] += 1
    metrics.inflight_bytes = lambda: 4096
    metrics.backpressure_seconds += 1.5
    metrics.mrope_devices["cuda"] = 1
    metrics.loop_lag.observe(0.004)
    samples = scrape(metrics)
    assert samples["sidecar_messages_received_total", "generate"] == 3
    assert samples["sidecar_requests_total", "tokenspeed", "forwarded"] == 2
    assert samples["sidecar_rejected_total", "grid_mismatch"] == 1
    assert samples["sidecar_inflight_bytes",] == 4096
    assert samples["sidecar_backpressure_seconds_total",] == 1.5
    assert samples["sidecar_mrope_device", "cuda"] == 1
    assert samples["sidecar_event_loop_lag_seconds_bucket", "0.0025"] == 0
    assert samples["sidecar_event_loop_lag_seconds_bucket", "0.005"] == 1
    assert samples["sidecar_event_loop_lag_seconds_count",] == 1


def test_buckets_are_cumulative_and_their_last_one_is_the_count():
    metrics = Metrics()
    for seconds in (20e-6, 50e-6, 0.3, 7.0):
        metrics.stages["hash"].observe(seconds)
    samples = scrape(metrics)
    buckets = [
        value for key, value in samples.items() if key[0] == "sidecar_stage_duration_seconds_bucket" and "hash" in key
    ]
    assert buckets == sorted(buckets)
    assert buckets[0] == 2
    assert buckets[-1] == samples["sidecar_stage_duration_seconds_count", "hash"] == 4
    assert samples["sidecar_stage_duration_seconds_sum", "hash"] == pytest.approx(7.30007)


def test_ten_thousand_counts_of_any_kind_add_no_series():
    metrics, generator = Metrics(), random.Random(7)
    before = scrape(metrics).keys()
    for _ in range(10_000):
        metrics.received[generator.choice(catalog.KINDS)] += 1
        metrics.rejected[generator.choice(list(Reason))] += 1
        metrics.stages[generator.choice(catalog.STAGES)].observe(generator.random())
        with pytest.raises(KeyError):
            metrics.received["".join(generator.choices(string.ascii_letters, k=12))] += 1
    assert scrape(metrics).keys() == before
