"""Thresholds such as `p99<5ms`: what a run must reach, and whether it did."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.errors import UsageError
from sidecar.replay.histogram import Histogram
from sidecar.replay.pacing import format_duration, parse_duration
from sidecar.replay.summary import Summary

_FORM: Final = re.compile(r"\s*(?:([a-z_]+)\.)?([a-z]+\d*(?:\.\d+)?)\s*(<=|>=|<|>)\s*(\S+)\s*")
_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COUNTS: Final = ("rate", "requests", "unseen", "rejected")
_HELP: Final = "give e.g. 'p99<5ms', 'image.p50<20ms', 'handover.max<1s', 'rate>=4950' or 'unseen<1'"


@dataclass(frozen=True, slots=True)
class Threshold:
    """A parsed threshold: of which group, which metric, how compared, and with what (ns or a number)."""

    text: str
    group: str
    metric: str
    compare: str
    limit: float

    def check(self, summary: Summary) -> tuple[bool, str]:
        """Whether a run meets it, and a line that says so. Raises `UsageError` for an unknown group."""
        if self.metric in _COUNTS:
            value = _count(self.metric, summary)
            shown = f"{value:g}"
        else:
            value = _latency(self.metric, self._histogram(summary))
            shown = format_duration(value)
        met = _COMPARE[self.compare](value, self.limit)
        return met, f"{'met   ' if met else 'missed'} {self.text}: {self.metric} is {shown}"

    def _histogram(self, summary: Summary) -> Histogram:
        if not self.group:
            return summary.headline_latency
        for groups in (summary.latency, summary.by_modality, summary.by_outcome):
            if self.group in groups:
                return groups[self.group]
        known = sorted({*summary.latency, *summary.by_modality, *summary.by_outcome})
        raise UsageError(f"threshold {self.text!r}: this run has no {self.group}; it has {', '.join(known)}")


def parse_threshold(text: str) -> Threshold:
    """`[group.]metric<limit`. A group is a measure, a modality or an outcome. Raises `UsageError`."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"threshold {text!r}: {_HELP}")
    group, metric, compare, limit = match.groups()
    if metric in _COUNTS:
        try:
            return Threshold(text.strip(), group or "", metric, compare, float(limit))
        except ValueError:
            raise UsageError(f"threshold {text!r}: {limit!r} is no number; {_HELP}") from None
    percent = metric.removeprefix("p")
    if metric not in ("min", "mean", "max") and not (
        metric.startswith("p") and _is_number(percent) and 0 < float(percent) <= 100
    ):
        raise UsageError(f"threshold {text!r}: no metric {metric!r}; {_HELP}")
    return Threshold(text.strip(), group or "", metric, compare, parse_duration(limit, f"threshold {text!r}:"))


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(?:\.\d+)?", text) is not None


def _count(metric: str, summary: Summary) -> float:
    if metric == "rate":
        return float(summary.facts.get("achieved_rate", 0.0))
    if metric == "requests":
        return summary.requests
    if metric == "unseen":
        return float(summary.facts.get("unseen", 0))
    rejected = summary.by_outcome.get("rejected")
    return rejected.count if rejected is not None else 0


def _latency(metric: str, histogram: Histogram) -> float:
    if metric == "min":
        return histogram.minimum
    if metric == "mean":
        return histogram.mean
    if metric == "max":
        return histogram.maximum
    return histogram.percentile(float(metric.removeprefix("p")))
