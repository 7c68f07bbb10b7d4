"""`Metrics` in Prometheus' text format, rendered by the thread that answers a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from sidecar.observability.catalog import BUILD, BUILD_INFO, CATALOG, Metric
from sidecar.observability.metrics import Histogram, Metrics, Number, Source

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


class MetricsCollector(Collector):
    """All metrics of the catalog, with every series of every label set, counted or not."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        """One family a metric."""
        metrics = self._metrics.snapshot()
        for metric in CATALOG:
            held = getattr(metrics, metric.attribute)
            match metric.type:
                case "histogram":
                    yield _histogram(metric, held)
                case "counter":
                    yield _fill(CounterMetricFamily(metric.name, metric.help, labels=tuple(metric.labels)), held)
                case "gauge":
                    yield _fill(GaugeMetricFamily(metric.name, metric.help, labels=tuple(metric.labels)), held)
        build = GaugeMetricFamily(BUILD_INFO.name, BUILD_INFO.help, labels=BUILD)
        build.add_metric([self._metrics.build[name] for name in BUILD], 1)
        yield build

    def describe(self) -> Iterable[Family]:
        """Nothing, which tells the registry not to collect while it registers."""
        return ()


def make_registry(metrics: Metrics) -> CollectorRegistry:
    """A registry with the metrics of the sidecar and those of its process."""
    registry = CollectorRegistry()
    registry.register(MetricsCollector(metrics))
    ProcessCollector(registry=registry)
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """The registry's metrics as the text that Prometheus scrapes."""
    return generate_latest(registry)


def value_of(source: Source) -> Number:
    """The number that a source holds or gives."""
    return source() if callable(source) else source


def _fill(family: CounterMetricFamily | GaugeMetricFamily, held: Any) -> Family:
    if isinstance(held, dict):
        for labels, count in held.items():
            family.add_metric(labels if isinstance(labels, tuple) else (labels,), count)
    else:
        family.add_metric((), value_of(held))
    return family


def _histogram(metric: Metric, held: Histogram | dict[str, Histogram]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=tuple(metric.labels))
    if isinstance(held, Histogram):
        held = {"": held}
    for label, histogram in held.items():
        # The sum is read first, so that it never holds an observation which the counts lack.
        total, counts = histogram.sum, accumulate(list(histogram.counts))
        buckets = list(zip((*map(str, histogram.bounds), "+Inf"), counts, strict=True))
        family.add_metric((label,) if metric.labels else (), buckets, total)
    return family
