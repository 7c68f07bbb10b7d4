"""A run as one HTML page that opens without a network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

import numpy as np

from sidecar.replay.charts import Line, bar_chart, line_chart, nice_ticks
from sidecar.replay.histogram import Histogram
from sidecar.replay.pacing import format_duration
from sidecar.replay.render import default_edges, percentile_name
from sidecar.replay.summary import MEASURES, PERCENTILES, Summary

_STYLE: Final = """
:root { --ink: #1c2430; --soft: #5d6b7c; --rule: #e3e8ee; --paper: #fff;
        --s0: #2463c9; --s1: #d2591b; --s2: #23845a }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf2; --soft: #9aa8b8; --rule: #2b3542; --paper: #131920;
          --s0: #6fa4ff; --s1: #ff9457; --s2: #5fd0a0 } }
body { margin: 2rem auto; max-width: 56rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif;
       color: var(--ink); background: var(--paper) }
h1 { font-size: 1.3rem; margin: 0 0 .2rem } h2 { font-size: 1rem; margin: 2rem 0 .5rem }
p { margin: .2rem 0; color: var(--soft) }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .5rem; text-align: right; border-bottom: 1px solid var(--rule) }
th { color: var(--soft); font-weight: 500 } th:first-child, td:first-child { text-align: left }
figure { margin: 1.6rem 0 } figcaption { font-weight: 600; margin-bottom: .3rem }
svg { width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: var(--soft) }
.grid { stroke: var(--rule) } .tick { stroke: var(--soft) }
.line { fill: none; stroke-width: 1.8 } .line.s0 { stroke: var(--s0) } .line.s1 { stroke: var(--s1) }
rect.s0 { fill: var(--s0) }
.key { font-weight: 400; color: var(--soft); margin-left: 1rem }
.key i { display: inline-block; width: .9rem; height: .2rem; margin-right: .3rem; vertical-align: middle }
.key .s0 { background: var(--s0) } .key .s1 { background: var(--s1) }
.met { color: var(--s2) } .missed { color: var(--s1); font-weight: 600 }
"""
_NINES: Final = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)
_CURVE_POINTS: Final = 240


def as_html(summary: Summary, edges: Sequence[float] | None = None, thresholds: Iterable[tuple[bool, str]] = ()) -> str:
    """The page. Everything in it is inline; text that came from outside is escaped."""
    facts = summary.facts
    title = f"Replay of {facts.get('recording', 'a recording')}"
    requested = facts.get("requested_rate")
    rate = f"{facts.get('achieved_rate', 0):,.1f}/s achieved" + (f", {requested:g}/s requested" if requested else "")
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>to {escape(str(facts.get('target', '-')))}: {facts.get('messages', summary.requests):,} messages "
        f"({summary.nbytes:,} bytes of requests) in {facts.get('sending_s', 0):.3f} s, {rate}</p>",
        *(f"<p>{escape(str(note))}</p>" for note in facts.get("notes", ())),
        *(f'<p class="{"met" if met else "missed"}">{escape(line)}</p>' for met, line in thresholds),
        _table("Latency", {MEASURES[name]: histogram for name, histogram in summary.latency.items()}),
        _throughput(summary),
        _over_time(summary),
        _curve(summary),
        _histogram(summary, edges),
        _table("By modality", summary.by_modality),
        _table("By outcome", summary.by_outcome),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _table(title: str, groups: Mapping[str, Histogram]) -> str:
    names = ["count", "min", "mean", *map(percentile_name, PERCENTILES), "max"]
    rows = []
    for name, histogram in groups.items():
        values = [histogram.minimum, histogram.mean, *map(histogram.percentile, PERCENTILES), histogram.maximum]
        cells = [f"{histogram.count:,}", *(format_duration(v) if histogram.count else "-" for v in values)]
        rows.append(f"<tr><td>{escape(name)}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<h2>{escape(title)}</h2><table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _time_axis(summary: Summary) -> tuple[list[float], float, list[tuple[float, str]]]:
    series = summary.series
    n = len(series.sent)
    end = n * series.interval_s
    places = [(i + 0.5) * series.interval_s for i in range(n)]
    return places, end, [(tick, _time(tick * 1e9)) for tick in nice_ticks(end) if tick <= end]


def _time(ns: float) -> str:
    return format_duration(ns) if ns else "0"


def _throughput(summary: Summary) -> str:
    places, end, ticks = _time_axis(summary)
    series = summary.series
    lines = [Line("sent", places, series.sent / series.interval_s)]
    if series.done.any():
        lines.append(Line("done", places, series.done / series.interval_s))
    return line_chart("Requests per second", lines, ticks, end, lambda y: f"{y:,.0f}")


def _over_time(summary: Summary) -> str:
    places, end, ticks = _time_axis(summary)
    lines = [Line("p50", places, summary.series.p50), Line("p99", places, summary.series.p99)]
    title = f"Latency over time ({MEASURES[summary.headline]})"
    return line_chart(title, lines, ticks, end, _time)


def _curve(summary: Summary) -> str:
    """Latency by percentile, the x axis in nines, as HdrHistogram plots it."""
    histogram = summary.headline_latency
    nines = math.log10(max(histogram.count, 10))
    places = np.linspace(0, nines, _CURVE_POINTS)
    percents = 100 * (1 - 10.0**-places)
    ticks = [(-math.log10(1 - p / 100), f"{p:g}%") for p in _NINES if -math.log10(1 - p / 100) <= nines]
    line = Line("latency", places, [histogram.percentile(p) for p in percents])
    return line_chart(f"Latency by percentile ({MEASURES[summary.headline]})", [line], ticks, nines, _time)


def _histogram(summary: Summary, edges: Sequence[float] | None) -> str:
    histogram = summary.headline_latency
    edges = default_edges(histogram, 10) if edges is None else edges
    marks = [format_duration(edge) for edge in edges]
    labels = [*(f"<{mark}" for mark in marks), f"≥{marks[-1]}" if marks else "all"]
    return bar_chart(f"Histogram ({MEASURES[summary.headline]})", labels, histogram.rebinned(edges))
