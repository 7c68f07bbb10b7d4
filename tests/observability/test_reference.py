"""The table of metrics in the manual is the one that the code makes."""

from __future__ import annotations

from pathlib import Path

from sidecar.observability.catalog import CATALOG
from sidecar.observability.reference import metrics_reference

MANUAL = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_manual_holds_the_generated_table():
    written = MANUAL.read_text().partition("<!-- metrics: begin -->\n")[2].partition("<!-- metrics: end -->")[0]
    assert written == metrics_reference(), "put metrics_reference() between the two comments of docs/operations.md"


def test_the_table_has_a_row_a_metric_and_names_every_label_value():
    table = metrics_reference()
    for metric in CATALOG:
        assert table.count(f"| `{metric.name}{'{' if metric.labels else '`'}") == 1
        for values in metric.labels.values():
            assert all(f"`{value}`" in table for value in values)
