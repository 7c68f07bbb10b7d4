"""A summary as text for people, and as JSON and CSV for machines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from sidecar.replay.histogram import Histogram
from sidecar.replay.pacing import format_duration
from sidecar.replay.results import Results
from sidecar.replay.summary import MEASURES, PERCENTILES, Summary

_NS: Final = 1_000_000_000
_BAR: Final = 40
_DEFAULT_BUCKETS: Final = 14


def percentile_name(percent: float) -> str:
    """`p50`, `p99.9`."""
    return f"p{percent:g}"


def default_edges(histogram: Histogram, limit: int = _DEFAULT_BUCKETS) -> list[float]:
    """Edges (ns) of the form 1, 2, 5 · 10^k inside a histogram; all of them, or as many as fit."""
    steps = [base * 10**power for power in range(13) for base in (1, 2, 5)]
    low, high = histogram.minimum, histogram.maximum
    edges = [float(step) for step in steps if low < step < high]
    while len(edges) > limit:
        edges = edges[-1::-2][::-1]
    return edges


def as_text(summary: Summary, edges: Sequence[float] | None = None) -> str:
    """The report for a terminal: plain text, no colours, so that it reads the same in a file."""
    lines = list(_heading(summary))
    lines += ["", *_table("latency", {MEASURES[name]: h for name, h in summary.latency.items()})]
    for title, groups in (("by modality", summary.by_modality), ("by outcome", summary.by_outcome)):
        if len(groups) > 1 or (groups and next(iter(groups)) not in ("", "sent", "unknown")):
            lines += ["", *_table(title, groups)]
    lines += ["", *_bars(summary, edges)]
    return "\n".join(lines) + "\n"


def _heading(summary: Summary) -> Iterator[str]:
    facts = summary.facts
    yield f"recording   {facts.get('recording', '-')} to {facts.get('target', '-')}"
    sent = f"{facts.get('messages', summary.requests)} messages"
    yield (
        f"sent        {sent}, {summary.requests} requests measured, {_bytes(summary.nbytes)}, "
        f"in {facts.get('sending_s', 0.0):.3f} s"
    )
    rate = f"{facts.get('achieved_rate', 0.0):.1f}/s achieved"
    if requested := facts.get("requested_rate"):
        deviation = 100 * (facts.get("achieved_rate", 0.0) / requested - 1)
        rate += f", {requested:g}/s requested ({deviation:+.2f}%)"
    yield f"rate        {rate}"
    for key, label in (("aborts", "aborts"), ("unseen", "unseen"), ("skipped", "skipped"), ("disconnects", "lost")):
        if facts.get(key):
            yield f"{label:<11} {facts[key]}"
    for note in facts.get("notes", ()):
        yield f"note        {note}"


def _table(title: str, groups: Mapping[str, Histogram]) -> Iterator[str]:
    names = ["count", "min", "mean", *map(percentile_name, PERCENTILES), "max"]
    width = max(len(title), *(len(name) for name in groups)) + 2
    yield f"{title:<{width}}" + "".join(f"{name:>10}" for name in names)
    for name, histogram in groups.items():
        yield f"{name:<{width}}" + "".join(f"{cell:>10}" for cell in _cells(histogram))


def _cells(histogram: Histogram) -> list[str]:
    if not histogram.count:
        return ["0", *["-"] * (len(PERCENTILES) + 3)]
    values = [histogram.minimum, histogram.mean, *map(histogram.percentile, PERCENTILES), histogram.maximum]
    return [str(histogram.count), *map(format_duration, values)]


def _bars(summary: Summary, edges: Sequence[float] | None) -> Iterator[str]:
    histogram = summary.headline_latency
    if not histogram.count:
        return
    edges = default_edges(histogram) if edges is None else edges
    counts = histogram.rebinned(edges)
    yield f"histogram, {MEASURES[summary.headline]}"
    for label, count in zip(bucket_labels(edges), counts, strict=True):
        bar = "#" * round(_BAR * count / max(counts))
        yield f"  {label:>20} {count:>9} {100 * count / histogram.count:6.2f}%  {bar}".rstrip()


def bucket_labels(edges: Sequence[float]) -> list[str]:
    """What stands at the rows of a histogram with these edges."""
    marks = [format_duration(edge) for edge in edges]
    if not marks:
        return ["all"]
    between = [f"{low} - {high}" for low, high in pairwise(marks)]
    return [f"below {marks[0]}", *between, f"from {marks[-1]}"]


def _bytes(n: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def as_json(summary: Summary, edges: Sequence[float] | None = None, thresholds: Iterable[Any] = ()) -> str:
    """The summary as one JSON object; latencies in seconds."""
    edges = default_edges(summary.headline_latency) if edges is None else edges
    series = summary.series
    return json.dumps(
        {
            **summary.facts,
            "requests": summary.requests,
            "bytes": summary.nbytes,
            "latency": {name: _numbers(histogram) for name, histogram in summary.latency.items()},
            "by_modality": {name: _numbers(histogram) for name, histogram in summary.by_modality.items()},
            "by_outcome": {name: _numbers(histogram) for name, histogram in summary.by_outcome.items()},
            "histogram": {
                "measure": summary.headline,
                "edges": [edge / _NS for edge in edges],
                "counts": summary.headline_latency.rebinned(edges),
            },
            "series": {
                "interval_s": series.interval_s,
                "sent": series.sent.tolist(),
                "done": series.done.tolist(),
                "bytes": series.nbytes.tolist(),
                "p50": [_seconds(value) for value in series.p50],
                "p99": [_seconds(value) for value in series.p99],
            },
            "thresholds": list(thresholds),
        },
        indent=2,
    )


def _numbers(histogram: Histogram) -> dict[str, float]:
    numbers: dict[str, float] = {"count": histogram.count}
    if histogram.count:
        numbers |= {"min": histogram.minimum / _NS, "mean": histogram.mean / _NS}
        numbers |= {percentile_name(p): histogram.percentile(p) / _NS for p in PERCENTILES}
        numbers["max"] = histogram.maximum / _NS
    return numbers


def _seconds(ns: float) -> float | None:
    return None if np.isnan(ns) else float(ns) / _NS


def as_csv(results: Results) -> str:
    """A row a request, times in seconds from the start of the run, empty where it was not seen."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["rid", "modality", "outcome", "bytes", "due", "sent", "first", "done"])
    for i in range(len(results)):
        times = (results.due[i], results.sent[i], results.first[i], results.done[i])
        writer.writerow(
            [
                results.about[i].rid,
                results.about[i].modality,
                results.outcome[i],
                results.about[i].nbytes,
                *("" if time < 0 else f"{time / _NS:.9f}" for time in times),
            ]
        )
    return out.getvalue()
