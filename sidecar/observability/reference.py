"""The metrics as a table in Markdown: the section of `docs/operations.md` that a test holds true."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.observability.catalog import BUILD_INFO, CATALOG, PROCESS, Metric


def metrics_reference() -> str:
    """The table of all metrics, and a line for each label set that is too long for a cell."""
    rows = ["| metric | type | meaning |", "| --- | --- | --- |"]
    rows += [_row(metric) for metric in (*CATALOG, BUILD_INFO, *PROCESS)]
    reasons = next(metric for metric in CATALOG if metric.attribute == "rejected").labels["reason"]
    lines = ["", f"Reasons: {_list(reasons)}."]
    for metric in CATALOG:
        if metric.bounds:
            bounds = ", ".join(f"{bound:g}" for bound in metric.bounds)
            lines += ["", f"Buckets of `{metric.name}`, in seconds: {bounds}."]
    return "\n".join(rows + lines) + "\n"


def _row(metric: Metric) -> str:
    return f"| `{metric.name}{_labels(metric)}` | {metric.type} | {metric.help}{_values(metric)} |"


def _labels(metric: Metric) -> str:
    return "{" + ",".join(metric.labels) + "}" if metric.labels else ""


def _values(metric: Metric) -> str:
    shown = [(label, values) for label, values in metric.labels.items() if values and label != "reason"]
    return "".join(f" `{label}`: {_list(values)}." for label, values in shown)


def _list(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)
