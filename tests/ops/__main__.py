"""`python -m tests.ops`: get the programs that the checks need, then run the checks whose programs are there.

As root on Debian the missing programs are installed; elsewhere, what is missing is said and its checks are left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "out" / "ops"
TOOLS = OUT / "venv" / "bin"
"""A virtual environment for Python programs that the sidecar's own has no use for."""


@dataclass(frozen=True)
class Check:
    """A file of checks, the programs it runs, and the Debian packages or Python tools that bring them."""

    file: str
    programs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """What is not to be found."""
        return [name for name in self.programs if not shutil.which(name)] + [
            name for name in self.tools if not (TOOLS / name).exists()
        ]


CONTAINER_TOOLS = ("buildah", "podman", "runc", "debootstrap")
CONTAINER_PACKAGES = (*CONTAINER_TOOLS, "containernetworking-plugins", "iptables")

CHECKS = (
    Check("check_series.py"),
    Check("check_prometheus.py", ("promtool", "prometheus"), ("prometheus",)),
    Check("check_page.py", ("chromium",), ("chromium",)),
    Check("check_kubernetes.py", tools=("kubernetes-validate",)),
    Check("check_image.py", CONTAINER_TOOLS, CONTAINER_PACKAGES),
    Check("check_compose.py", CONTAINER_TOOLS, CONTAINER_PACKAGES, ("podman-compose",)),
)


def install() -> None:
    """Install what is missing, where that is possible."""
    packages = sorted({name for check in CHECKS if check.missing() for name in check.packages})
    if packages and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            attempt(["apt-get", "-qq", *command], 240, quiet)
    if any(check.tools and check.missing() for check in CHECKS):
        if not (TOOLS / "python").exists():
            venv.create(TOOLS.parent, with_pip=True)
        attempt([str(TOOLS / "python"), "-m", "pip", "install", "-q", "-r", str(HERE / "requirements.txt")], 180, None)


def attempt(command: list[str], seconds: float, env: dict[str, str] | None) -> None:
    """Run a command; where it fails, say so and go on with what is there."""
    try:
        done = subprocess.run(command, env=env, timeout=seconds, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        print(f"gave up after {seconds:g} s: {' '.join(command)}", file=sys.stderr)
        return
    if done.returncode:
        print(f"failed: {' '.join(command)}\n{done.stderr[-2000:]}", file=sys.stderr)


def main() -> int:
    """Install, say what is left out, run the rest."""
    install()
    chosen = sys.argv[1:] or [check.file for check in CHECKS]
    files = []
    for check in CHECKS:
        missing = check.missing()
        if check.file not in chosen:
            continue
        if missing:
            print(f"left out: {check.file} (there is no {', '.join(missing)})", file=sys.stderr)
        else:
            files.append(str(HERE / check.file))
    return int(pytest.main(["-o", "python_files=check_*.py", "-v", "--durations=8", *files]))


if __name__ == "__main__":
    sys.exit(main())
