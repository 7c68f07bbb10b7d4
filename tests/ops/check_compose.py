"""The compose file, read by a compose implementation."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from tests.ops.__main__ import TOOLS
from tests.ops.conftest import ROOT, fetch, free_port, wait_for
from tests.ops.containers import IMAGE, build, run


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


@pytest.fixture
def project() -> Iterator[str]:
    """The services that need no image from elsewhere, running. Yields the address of the admin server."""
    build()
    run("podman", "tag", IMAGE, "docker.io/library/" + IMAGE.rpartition("/")[2])
    port = str(free_port())
    compose = (TOOLS / "podman-compose", "--podman-run-args=--no-healthcheck --pull=never")
    try:
        run(*compose, "up", "--detach", "--no-build", "sidecar", "scheduler", "frontend", ADMIN_PORT=port)
        yield f"http://127.0.0.1:{port}"
    finally:
        run(*compose, "down", "--volumes", "--timeout", "5", ADMIN_PORT=port)


def test_sidecar_scheduler_and_frontend_come_up_and_traffic_flows(project):
    wait_for("the sidecar is ready", lambda: fetch(f"{project}/readyz")[0] == 200, 60)
    wait_for("requests flow", lambda: json.loads(fetch(f"{project}/status.json")[1])["outcomes"]["forwarded"] > 100, 60)
    series = fetch(f"{project}/metrics")[1].decode()
    assert re.search(r'^sidecar_stage_duration_seconds_count\{stage="send"\} [1-9]', series, re.MULTILINE)
