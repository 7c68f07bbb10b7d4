"""The manifests against the schemas that Kubernetes and the Prometheus operator publish."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml

from tests.ops.__main__ import TOOLS
from tests.ops.conftest import ROOT

FOLDER = ROOT / "config" / "kubernetes"
MODELS = """
import json, sys
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule
made = {"PodMonitor": PodMonitor, "PrometheusRule": PrometheusRule}
document = json.load(sys.stdin)
model = made[document["kind"]].model_validate(document)
json.dump(model.model_dump(by_alias=True, exclude_unset=True, mode="json"), sys.stdout)
"""
"""Validates a document by the operator's models and prints what they know of it: an unknown key is lost."""


@pytest.mark.parametrize("version", ["1.29.0", "1.37.0"])
def test_the_deployment_matches_the_schema(version):
    done = subprocess.run(
        [TOOLS / "kubernetes-validate", "--strict", "-k", version, FOLDER / "deployment.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("passed") + done.stdout.count("passed") == 2


def test_the_check_finds_a_wrong_key(tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((FOLDER / "deployment.yaml").read_text().replace("restartPolicy:", "restartsPolicy:"))
    command = [TOOLS / "kubernetes-validate", "--strict", wrong]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def known(document: object) -> object:
    done = subprocess.run(
        [TOOLS / "python", "-c", MODELS], input=json.dumps(document).encode(), capture_output=True, check=True
    )
    return json.loads(done.stdout)


def test_the_pod_monitor_matches_the_operators_model():
    document = yaml.safe_load((FOLDER / "podmonitor.yaml").read_text())
    assert known(document) == document


def test_the_alerts_fit_into_a_prometheus_rule():
    groups = yaml.safe_load((ROOT / "config/prometheus/alerts.yml").read_text())["groups"]
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "ingest-sidecar"},
        "spec": {"groups": groups},
    }
    assert known(document) == document
