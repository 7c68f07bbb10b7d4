"""The compose file, read by a compose implementation."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from tests.ops.__main__ import TOOLS
from tests.ops.conftest import ROOT


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, object]]:
    done = subprocess.run(
        [TOOLS / "podman-compose", "config"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, object]] = yaml.safe_load(done.stdout)["services"]
    return found


def test_the_services_are_there(services):
    assert services.keys() == {"sidecar", "scheduler", "frontend", "prometheus", "grafana"}


def test_our_own_run_unprivileged_on_a_read_only_root(services):
    for name in ("sidecar", "scheduler", "frontend"):
        service = services[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["volumes"] == ["sockets:/run/sidecar"]


def test_all_images_are_pinned_and_ports_are_for_this_host_only(services):
    for service in services.values():
        assert ":" in str(service["image"]).rpartition("/")[2]
        assert not str(service["image"]).endswith(":latest")
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", ()))
