"""promtool on all files; a real Prometheus scrapes a running sidecar and answers every query of the dashboard."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from sidecar.observability.catalog import CATALOG, STAGES
from sidecar.observability.collector import make_registry, render
from sidecar.observability.metrics import Metrics
from tests.ops.conftest import ROOT, Processes, Stack, fetch, free_port, wait_for

CONFIG = ROOT / "config" / "prometheus"
DASHBOARD = ROOT / "config" / "grafana" / "dashboards" / "sidecar.json"
WINDOW_S = 20
"""How long Prometheus scrapes before the queries are asked; their rates look back 15 s."""


def promtool(*arguments: str, text: bytes | None = None) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=CONFIG, input=text, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert not (text and done.stderr), done.stderr.decode()


def test_promtool_accepts_the_configuration_the_rules_and_their_tests():
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "alerts.yml")
    promtool("test", "rules", "alerts_test.yml")


def test_promtool_finds_no_fault_with_the_metrics_of_a_new_process():
    promtool("check", "metrics", text=render(make_registry(Metrics())))


def test_promtool_finds_no_fault_with_the_metrics_under_traffic(stack):
    promtool("check", "metrics", text=fetch(f"{stack.url}/metrics")[1])


class Prometheus:
    """A Prometheus that scrapes the stack."""

    def __init__(self, processes: Processes, stack: Stack) -> None:
        folder = processes.folder / "prometheus"
        folder.mkdir()
        shutil.copy(CONFIG / "alerts.yml", folder)
        config = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{stack.port}"]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        port = free_port()
        self.site = f"http://127.0.0.1:{port}"
        processes.start(
            "prometheus",
            *("prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"),
            f"--web.listen-address=127.0.0.1:{port}",
        )

    def get(self, path: str, **query: str) -> Any:
        status, body = fetch(f"{self.site}/api/v1/{path}?{urlencode(query)}")
        assert status == 200, body
        return json.loads(body)["data"]

    def query(self, expression: str) -> list[Any]:
        result: list[Any] = self.get("query", query=expression)["result"]
        return result


@pytest.fixture(scope="module")
def prometheus(processes: Processes, stack: Stack) -> Prometheus:
    running = Prometheus(processes, stack)
    wait_for("Prometheus is ready", lambda: fetch(f"{running.site}/-/ready")[0] == 200)
    wait_for("Prometheus scrapes the sidecar", lambda: running.query("sidecar_build_info"))
    time.sleep(WINDOW_S)
    processes.check()
    return running


def queries() -> list[tuple[str, str]]:
    """Title and expression of every query of the dashboard, its variables filled in as for all instances."""
    found = []
    for panel in json.loads(Path(DASHBOARD).read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "15s").replace("$instance", ".*")
            found.append((f"{panel['title']}, {target['refId']}", expression.replace("$job", "sidecar")))
    return found


@pytest.mark.parametrize(("title", "expression"), queries(), ids=[title for title, _ in queries()])
def test_a_panel_of_the_dashboard_has_data(prometheus, title, expression):
    result = prometheus.query(expression)
    assert result, title
    assert any(series["value"][1] != "NaN" for series in result), title


def test_the_traffic_shows_in_what_prometheus_stored(prometheus):
    (received,) = prometheus.query('sum(rate(sidecar_messages_received_total{kind="generate"}[15s]))')
    (forwarded,) = prometheus.query('sum(rate(sidecar_requests_total{outcome="forwarded"}[15s]))')
    assert float(received["value"][1]) > 10
    assert float(forwarded["value"][1]) > 10


QUIET = {
    # what one healthy sidecar in push-pull mode between two living peers has no occasion for
    *("sidecar_engine_disconnects_total", "sidecar_egress_stalled_seconds", "sidecar_backpressure_seconds_total"),
    *("sidecar_relayed_outputs_total", "sidecar_relayed_output_bytes_total", "sidecar_shared_memory_unlinked_total"),
    *("sidecar_spilled_messages_total", "sidecar_spilled_bytes_total", "sidecar_spill_recordings"),
    *("sidecar_taps", "sidecar_tap_dropped_messages_total", "sidecar_mrope_delta_without_positions_total"),
    "sidecar_quarantine_skipped_total",
    # what may be zero at the moment of a scrape
    *("sidecar_inflight_requests", "sidecar_inflight_bytes", "sidecar_pool_active_tasks", "sidecar_pool_queued_tasks"),
}


def test_every_other_metric_moves_with_the_traffic(prometheus):
    still = set()
    for metric in CATALOG:
        name = f"{metric.name}_count" if metric.type == "histogram" else metric.name
        (total,) = prometheus.query(f"sum({name})")
        if float(total["value"][1]) == 0:
            still.add(metric.name)
    assert still <= QUIET
    stages = prometheus.query("sidecar_stage_duration_seconds_count > 0")
    assert {series["metric"]["stage"] for series in stages} == set(STAGES)


def test_the_rules_are_evaluated_and_find_what_is_wrong_with_the_traffic(prometheus):
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(re.findall(r"- alert:", (CONFIG / "alerts.yml").read_text()))
    assert {rule["health"] for rule in rules} == {"ok"}
    states = {rule["name"]: rule["state"] for rule in rules if rule["state"] != "inactive"}
    assert states == {"SidecarUnreadableMessages": "firing", "SidecarRefusalsHigh": "pending"}
