"""docs/replay.md, run: its shell blocks in their order, in one folder, with real processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BLOCKS = re.compile(r"(?:<!-- exit (\d+) -->\n)?```sh\n(.*?)```\n", re.DOTALL)
TIMEOUT_S = 120


def script() -> str:
    """All blocks as one script, so that background processes and variables live on from block to block."""
    lines = ["set -eu"]
    for number, (code, block) in enumerate(BLOCKS.findall((ROOT / "docs/replay.md").read_text())):
        lines.append(f"echo '## block {number}'")
        if code:
            lines.append(f"set +e\n{block}\ncode=$?; set -e\ntest $code -eq {code}")
        else:
            lines.append(block)
    return "\n".join(lines)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the document's commands have run."""
    folder = tmp_path_factory.mktemp("d")
    (folder / "config").symlink_to(ROOT / "config")
    tools = folder / "bin"
    tools.mkdir()
    (tools / "sidecar").write_text(f'#!/bin/sh\nexec {sys.executable} -m sidecar "$@"\n')
    (tools / "sidecar").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PORT": str(free_port()),
        "PYTHONPATH": str(ROOT),
    }
    bash = shutil.which("bash")
    assert bash is not None
    with (folder / "out").open("w") as out:
        process = subprocess.Popen(
            [bash, "-c", script()], cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:
            code = process.wait(TIMEOUT_S)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the sidecar that the document leaves running
    assert code == 0, (folder / "out").read_text() + (folder / "serve.log").read_text()
    return folder


def test_the_commands_do_what_the_document_says(folder: Path) -> None:
    said = (folder / "out").read_text()
    assert "200 compared, 200 equal, 0 differ" in said
    assert "nobody is at" in said
    assert "missed p99<1ns" in said
    assert "first difference: generate synth-" in said


def test_every_file_was_made(folder: Path) -> None:
    made = {path.name for path in folder.iterdir() if path.is_file() and path.stat().st_size}
    assert made >= {
        "traffic.rec", "before.rec", "again.rec", "live.rec", "images.rec", "harmless.rec", "refused.rec",
        "run.jsonl", "run.html", "run.json", "run.csv", "harmless.txt",
    }  # fmt: skip
