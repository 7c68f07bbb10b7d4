"""The image, built and run with buildah and podman on a base that debootstrap makes: no image is pulled."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.ops.__main__ import OUT
from tests.ops.conftest import ROOT

IMAGE: Final = "localhost/ingest-sidecar:0.1.0"
BASE: Final = "localhost/debian-python:bookworm"
STORE: Final = OUT / "containers"

_CONFIGURATION: Final = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
"""
"""For hosts without systemd, and for root without the right to raise limits."""

_OF_THE_HOST: Final = ("/etc/ssl/certs", "/etc/pip.conf")
"""What pip needs of the host's configuration to reach its package index."""


def environment() -> dict[str, str]:
    """The environment for buildah, podman and podman-compose."""
    configuration = STORE / "containers.conf"
    configuration.parent.mkdir(parents=True, exist_ok=True)
    configuration.write_text(_CONFIGURATION)
    return {
        **os.environ,
        "BUILDAH_ISOLATION": "chroot",
        "CONTAINERS_CONF": str(configuration),
        "CONTAINERS_STORAGE_CONF": str(_storage()),
    }


def run(*command: str | Path, seconds: float = 120, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the container tools; its output is in the error if it fails."""
    variables = {**environment(), **env}
    done = subprocess.run(
        command, cwd=ROOT, env=variables, timeout=seconds, capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done


def build() -> None:
    """Build the image, its base first where that is not there yet."""
    if run("buildah", "images", "--quiet", BASE, check=False).returncode:
        _build_base()
    volumes = [word for path in _OF_THE_HOST if Path(path).exists() for word in ("--volume", f"{path}:{path}:ro")]
    run(
        *("buildah", "bud", "--quiet", "--pull-never", "--layers", "--format", "docker", *volumes),
        *("--build-arg", f"BASE={BASE}", "--tag", IMAGE, "."),
        seconds=400,
    )


UNPRIVILEGED: Final = (
    *("--rm", "--pull=never", "--no-healthcheck", "--network=none", "--read-only", "--tmpfs=/tmp"),
    *("--cap-drop=all", "--security-opt=no-new-privileges"),
)
"""The image as it is meant to be run, here also without a network."""


def podman_run(*command: str, options: Sequence[str] = (), seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a command of the image to its end."""
    return run("podman", "run", *UNPRIVILEGED, *options, IMAGE, *command, seconds=seconds, check=False)


def _build_base() -> None:
    folder = STORE / "base"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    packages = "--include=python3,python3-venv,python3-dev,gcc,libc6-dev,ca-certificates"
    run("debootstrap", "--variant=minbase", packages, "bookworm", folder / "root", seconds=300)
    run("tar", "--directory", folder / "root", "--create", "--file", folder / "root.tar", ".")
    (folder / "Dockerfile").write_text("FROM scratch\nADD root.tar /\n")
    run("buildah", "bud", "--quiet", "--tag", BASE, folder)
    shutil.rmtree(folder)


def _storage() -> Path:
    file = STORE / "storage.conf"
    file.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{STORE / "graph"}"\nrunroot = "{STORE / "run"}"\n')
    return file
