"""The image builds, and runs as it is meant to: not root, on a read-only root, without a shell."""

from __future__ import annotations

import json
import re

import pytest

from tests.ops.conftest import ROOT, wait_for
from tests.ops.containers import IMAGE, UNPRIVILEGED, build, podman_run, run

PYTHON = "--entrypoint=/opt/sidecar/bin/python"
NO_SHELL = ("--volume=/dev/null:/usr/bin/dash:ro", "--volume=/dev/null:/usr/bin/bash:ro")
"""Hides the base's shells: an image without any behaves like this."""

WRITES = """
import os
print(os.getuid(), os.getgid())
for folder in ("/", "/srv", "/etc/sidecar", "/opt/sidecar", "/run/sidecar", "/tmp"):
    try:
        open(os.path.join(folder, "probe"), "w").close()
        print(folder, "written")
    except OSError as error:
        print(folder, error.strerror)
"""


pytestmark = pytest.mark.usefixtures("image")


@pytest.fixture(scope="module")
def image() -> None:
    build()


def test_it_says_its_version_and_what_it_is():
    assert podman_run("--version").stdout == "sidecar 0.1.0\n"
    configuration = json.loads(run("buildah", "inspect", "--type", "image", IMAGE).stdout)["Docker"]["config"]
    assert configuration["User"] == "65532:65532"
    assert configuration["Labels"]["org.opencontainers.image.version"] == "0.1.0"
    assert configuration["Entrypoint"] == ["/opt/sidecar/bin/sidecar"]


def test_it_is_not_root_and_writes_only_to_its_sockets_and_tmp():
    done = podman_run("-c", WRITES, options=[PYTHON])
    assert done.stdout.splitlines() == [
        "65532 65532",
        "/ Read-only file system",
        "/srv Read-only file system",
        "/etc/sidecar Read-only file system",
        "/opt/sidecar Read-only file system",
        "/run/sidecar written",
        "/tmp written",
    ]


def test_the_demo_runs_in_it_without_a_shell():
    done = podman_run("demo", options=NO_SHELL, seconds=180)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_cpu_variant_goes_without_torch():
    code = "import importlib.util; print(importlib.util.find_spec('torch'))"
    assert podman_run("-c", code, options=[PYTHON]).stdout == "None\n"


def test_the_scans_are_compiled():
    code = "from sidecar.wire.native import scan; print(scan is not None)"
    assert podman_run("-c", code, options=[PYTHON]).stdout == "True\n"


def test_it_serves_and_its_own_health_check_passes():
    started = run("podman", "run", "--detach", *UNPRIVILEGED, *NO_SHELL, IMAGE)
    container = started.stdout.strip()
    found = re.search(r"HEALTHCHECK.*\\\n  CMD (\[.*\])", (ROOT / "Dockerfile").read_text())
    assert found is not None
    check = json.loads(found[1])
    try:
        wait_for(
            "the health check passes",
            lambda: run("podman", "exec", container, *check, check=False).returncode == 0,
            60,
        )
    finally:
        log = run("podman", "logs", container, check=False)
        run("podman", "stop", "--time=15", container)
    assert "/run/sidecar/ingress.sock" in log.stdout + log.stderr
