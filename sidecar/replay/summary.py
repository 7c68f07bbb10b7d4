"""What a run amounts to: percentiles, throughput over time, and both by modality and outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.replay.histogram import Histogram
from sidecar.replay.results import Results

PERCENTILES: Final = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
_NS: Final = 1_000_000_000

MEASURES: Final[Mapping[str, str]] = {
    "handover": "due to handed over",
    "first": "due to first seen",
    "done": "due to done",
}
"""Name of a latency and what it spans. The first is known of every run, the others of observed ones."""


@dataclass(frozen=True, slots=True)
class Series:
    """A run cut into equal intervals of `interval_s`; a value an interval.

    `p50` and `p99` are of the requests due in it, in ns; nan where there are none.
    """

    interval_s: float
    sent: NDArray[np.int64]
    done: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    p50: NDArray[np.float64]
    p99: NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """A run, summed up. `latency` has a histogram (ns) for each measure that was seen; `headline` names
    the one that thresholds and charts mean: done, where there is one, else handover."""

    facts: Mapping[str, Any]
    requests: int
    nbytes: int
    latency: Mapping[str, Histogram]
    headline: str
    by_modality: Mapping[str, Histogram]
    by_outcome: Mapping[str, Histogram]
    series: Series

    @property
    def headline_latency(self) -> Histogram:
        """The histogram of the headline measure."""
        return self.latency[self.headline]


def summarize(results: Results, intervals: int = 60) -> Summary:
    """The summary of a run. A request that was not seen counts in no latency but the handover's."""
    due = results.times("due")
    taken = {"handover": results.times("sent"), "first": results.times("first"), "done": results.times("done")}
    latency = {}
    for name, times in taken.items():
        seen = times >= 0
        if name == "handover" or seen.any():
            latency[name] = _histogram(times[seen] - due[seen])
    if "first" in latency and (taken["first"] == taken["done"]).all():
        del latency["first"]  # what is seen once is done
    headline = "done" if "done" in latency else "handover"
    spent = np.where(taken[headline] >= 0, taken[headline] - due, -1)
    return Summary(
        results.facts,
        len(results),
        sum(about.nbytes for about in results.about),
        latency,
        headline,
        _grouped([about.modality for about in results.about], spent),
        _grouped(results.outcome, spent),
        _series(results, due, taken, spent, intervals),
    )


def _histogram(values: NDArray[np.int64]) -> Histogram:
    histogram = Histogram()
    histogram.add_many(values)
    return histogram


def _grouped(names: list[str], spent: NDArray[np.int64]) -> dict[str, Histogram]:
    if not names:
        return {}
    kinds, inverse = np.unique(np.array(names), return_inverse=True)
    groups = {}
    for number, kind in enumerate(kinds):
        values = spent[inverse == number]
        groups[str(kind) or "unknown"] = _histogram(values[values >= 0])
    return groups


def _series(
    results: Results,
    due: NDArray[np.int64],
    taken: Mapping[str, NDArray[np.int64]],
    spent: NDArray[np.int64],
    intervals: int,
) -> Series:
    end = max((int(times.max()) for times in taken.values() if times.size), default=0) + 1
    seconds = max(end / _NS, 1e-6)
    count = round(seconds) if 10 <= seconds <= intervals else intervals
    interval_s = seconds / count
    edge = interval_s * _NS

    def bins(times: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.minimum((times / edge).astype(np.int64), count - 1)

    seen = taken["done"][taken["done"] >= 0]
    p50, p99 = np.full(count, np.nan), np.full(count, np.nan)
    known = spent >= 0
    place = bins(due[known])
    order = np.argsort(place, kind="stable")
    values, starts = spent[known][order], np.searchsorted(place[order], np.arange(count + 1))
    for number in range(count):
        part = values[starts[number] : starts[number + 1]]
        if part.size:
            p50[number], p99[number] = np.percentile(part, [50, 99])
    return Series(
        interval_s,
        np.bincount(bins(taken["handover"]), minlength=count),
        np.bincount(bins(seen), minlength=count),
        np.bincount(bins(taken["handover"]), [about.nbytes for about in results.about], count).astype(np.int64),
        p50,
        p99,
    )
