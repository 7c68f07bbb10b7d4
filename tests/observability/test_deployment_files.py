"""The container and Kubernetes files agree with the code and with each other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from sidecar import __version__
from sidecar.settings import load

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
UID = 65532


def manifests() -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((ROOT / "config/kubernetes/deployment.yaml").read_text())
    return {document["kind"]: document for document in documents}


def pod() -> dict[str, Any]:
    return manifests()["Deployment"]["spec"]["template"]["spec"]


def sidecar_container() -> dict[str, Any]:
    (container,) = pod()["initContainers"]
    return container


def test_the_configuration_of_the_image_is_valid(tmp_path):
    settings = load(ROOT / "config/container/sidecar.toml", {}, []).settings
    assert settings.admin.bind == "0.0.0.0:9464"
    for address in (settings.ingress.bind, settings.egress.bind):
        assert str(address).startswith("ipc:///run/sidecar/")


def test_the_configuration_in_kubernetes_is_valid_and_fits_its_memory(tmp_path):
    file = tmp_path / "sidecar.toml"
    file.write_text(manifests()["ConfigMap"]["data"]["sidecar.toml"])
    settings = load(file, {}, []).settings
    limit = sidecar_container()["resources"]["limits"]["memory"]
    assert limit == "2Gi"
    assert settings.limits.inflight_bytes <= 2**30
    assert settings.limits.message_bytes <= settings.limits.inflight_bytes
    assert pod()["terminationGracePeriodSeconds"] > settings.shutdown.grace_s
    folders = {mount["mountPath"] for mount in sidecar_container()["volumeMounts"]}
    for path in (
        settings.quarantine.dir,
        settings.shutdown.spill_dir,
        str(settings.ingress.bind).removeprefix("ipc://"),
    ):
        assert any(str(path).startswith(folder) for folder in folders), path


def test_the_image_runs_unprivileged_and_without_a_shell():
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    assert f"\nUSER {UID}:{UID}\n" in final
    assert "\nRUN " not in final
    for instruction in ("ENTRYPOINT", "CMD", r"HEALTHCHECK[^\n]*\\\n  CMD"):
        found = re.search(rf"^{instruction} (\[.*\])$", final, re.MULTILINE)
        assert found is not None, instruction
        assert all(isinstance(word, str) for word in json.loads(found[1]))


def test_the_image_states_what_it_is():
    version = re.search(r"^ARG VERSION=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert version is not None
    assert version[1] == __version__
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in DOCKERFILE


def test_the_sidecar_is_a_native_sidecar_that_shares_sockets_and_shared_memory():
    container = sidecar_container()
    assert container["restartPolicy"] == "Always"
    assert container["image"].endswith(f":{__version__}")
    for other in pod()["containers"]:
        mounts = {mount["name"]: mount["mountPath"] for mount in other["volumeMounts"]}
        assert mounts["sockets"] == "/run/sidecar"
        assert mounts["shm"] == "/dev/shm"
        assert other["securityContext"]["runAsGroup"] == UID
    assert container["startupProbe"]["httpGet"]["path"] == "/healthz", "/readyz waits for the engine"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_the_sidecar_in_kubernetes_is_unprivileged_on_a_read_only_root():
    security = sidecar_container()["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["runAsUser"] == UID


def test_the_pod_monitor_selects_the_deployment_and_its_port():
    monitor = yaml.safe_load((ROOT / "config/kubernetes/podmonitor.yaml").read_text())["spec"]
    assert monitor["selector"]["matchLabels"] == manifests()["Deployment"]["spec"]["selector"]["matchLabels"]
    ports = {port["name"] for port in sidecar_container()["ports"]}
    assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} == ports
