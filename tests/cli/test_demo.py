"""`sidecar demo` as a whole: real processes and sockets, and that none of them stays behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sidecar.cli import main
from sidecar.demo import cases

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_everything_is_as_it_must_be(tmp_path: Path, capsys: Capture) -> None:
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "✓ everything was as it must be" in out
    assert "✗" not in out
    assert "7 received = 5 forwarded + 1 rejected + 1 dropped + 0 in flight" in out
    assert "positions int64 [3, 160], delta -108" in out
    assert "text-only" in out
    assert list(tmp_path.iterdir()) == []


def test_a_difference_is_told_and_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    text = [case for case in cases.load_cases() if case.model == "text_only"]
    wrong = [cases.Case(case.model, case.title, "identical", case.record, None) for case in text]
    monkeypatch.setattr(cases, "load_cases", lambda: wrong)
    assert main(["demo"]) == 1
    out = capsys.readouterr().out
    assert "✗ text_only, image for a text model: it was to leave byte for byte" in out
    assert "✗ text_only: accounting: 1 rejected; expected 1 forwarded" in out
    assert "everything" not in out


def test_a_sidecar_that_does_not_start_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    empty = tmp_path / "model"
    empty.mkdir()
    monkeypatch.setattr(cases, "model_folder", lambda name: empty)
    assert main(["demo"]) == 4
    out = capsys.readouterr().out
    assert "ended with exit code 3" in out
    assert "has no config.json" in out


def test_a_signal_leaves_no_process_and_no_folder_behind(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "sidecar", "demo"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 30
        while len(children := children_of(demo.pid)) < 6 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(children) == 6
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30) == 128 + signal.SIGTERM
    finally:
        demo.kill()
        demo.wait()
    assert not any(map(is_running, children))
    assert list(tmp_path.iterdir()) == []
