"""The dashboard and the alerts name only what the process exports, and every alert is documented."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from sidecar.observability.catalog import BUILD, CATALOG
from sidecar.observability.collector import make_registry, render
from sidecar.observability.metrics import Metrics
from tests.observability.promql import Query, parse

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "config/grafana/dashboards/sidecar.json"
ALERTS = ROOT / "config/prometheus/alerts.yml"
ALERT_TESTS = ROOT / "config/prometheus/alerts_test.yml"

OF_PROMETHEUS = {"up", "ALERTS"}
"""Series that Prometheus makes itself."""

TARGET_LABELS = {"job", "instance", "le", "alertname", "alertstate"}
"""Labels that Prometheus adds, and those of histograms and alerts."""


def exported() -> set[str]:
    text = render(make_registry(Metrics())).decode()
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def walk(node: Any, key: str) -> list[Any]:
    """All values under a key, at any depth."""
    if isinstance(node, list):
        return [found for item in node for found in walk(item, key)]
    if isinstance(node, dict):
        own = [node[key]] if key in node else []
        return own + [found for value in node.values() for found in walk(value, key)]
    return []


def alert_rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def expressions() -> list[tuple[str, str]]:
    dashboard, tests = json.loads(DASHBOARD.read_text()), yaml.safe_load(ALERT_TESTS.read_text())
    variables = [re.sub(r"^label_values\((.*), \w+\)$", r"\1", found) for found in walk(dashboard, "definition")]
    return [
        *(("dashboard", expression) for expression in [*walk(dashboard, "expr"), *variables]),
        *((rule["alert"], rule["expr"]) for rule in alert_rules()),
        *(("test of alerts", series) for series in walk(tests, "series")),
    ]


def check(query: Query) -> list[str]:
    """What an expression names that the process does not export."""
    wrong, known = [], exported()
    labels = {metric.name: metric.labels for metric in CATALOG} | {"sidecar_build_info": dict.fromkeys(BUILD, ())}
    allowed = set(TARGET_LABELS)
    for name, matchers in query.selectors:
        if name not in known | OF_PROMETHEUS:
            wrong.append(f"metric {name}")
        own = labels.get(re.sub("_(bucket|sum|count)$", "", name), {})
        allowed |= own.keys()
        for label, operator, value in matchers:
            if label not in own and label not in TARGET_LABELS:
                wrong.append(f"label {name}.{label}")
            elif label in own and operator in ("=", "!=") and own[label] and value not in own[label]:
                wrong.append(f"value {name}.{label}={value}")
    wrong += [f"label {label}" for label in query.grouped_by - allowed]
    return wrong


@pytest.mark.parametrize(("origin", "expression"), expressions())
def test_an_expression_names_only_what_exists(origin, expression):
    query = parse(expression)
    assert query.selectors, origin
    assert check(query) == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("sidecar_request_total", "metric sidecar_request_total"),
        ("sum by (reasons) (rate(sidecar_rejected_total[5m]))", "label reasons"),
        ('sidecar_rejected_total{raeson="too_large"}', "label sidecar_rejected_total.raeson"),
        ('sidecar_rejected_total{reason="large"}', "value sidecar_rejected_total.reason=large"),
        ("sidecar_stage_duration_seconds", "metric sidecar_stage_duration_seconds"),
        ("vector(1) + sidecar_ready * on (instance) group_left (kind) sidecar_gone", "metric sidecar_gone"),
    ],
)
def test_the_check_finds_what_does_not_exist(expression, problem):
    assert problem in check(parse(expression))


@pytest.mark.parametrize("expression", ["sum(sidecar_ready", "sidecar_ready)", "sidecar_ready # 1", "a{b=}"])
def test_what_is_no_expression_is_an_error(expression):
    with pytest.raises(ValueError):
        parse(expression)


def test_every_metric_is_on_the_dashboard():
    shown = {
        selector.name for origin, text in expressions() if origin == "dashboard" for selector in parse(text).selectors
    }
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in shown}
    assert {metric.name for metric in CATALOG} <= families


def test_panels_do_not_overlap_and_their_ids_are_unique():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not taken & cells, panel["title"]
        taken |= cells


def test_every_alert_has_a_test_and_a_section_in_the_manual():
    tested = set(walk(yaml.safe_load(ALERT_TESTS.read_text()), "alertname"))
    manual = (ROOT / "docs/operations.md").read_text()
    headings = set(re.findall(r"^### (\w+)$", manual, re.MULTILINE))
    names = {rule["alert"] for rule in alert_rules()}
    assert names == tested == {heading for heading in headings if heading.startswith("Sidecar")}
    for rule in alert_rules():
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{rule['alert'].lower()}"
