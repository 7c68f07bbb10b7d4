"""`sidecar print-config`: values, origins, and forms that can be read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.cli import main
from sidecar.settings import load, render_toml

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("SIDECAR_ADMISSION__DUPLICATE_WINDOW_S", "7")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sidecar.toml"
    path.write_text('[ingress]\nconnect = "ipc:///tmp/frontend.sock"\n[limits]\ninflight_bytes = "4 GiB"\n')
    return path


def test_a_table_with_values_and_origins(file: Path, capsys: Capture) -> None:
    assert main(["print-config", "--config", str(file), "--set", "ingress.hwm=64"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "--set" in lines["ingress.hwm"]
    assert "environment SIDECAR_ADMISSION__DUPLICATE_WINDOW_S" in lines["admission.duplicate_window_s"]
    assert f"file {file}" in lines["ingress.connect"]
    assert lines["ingress.bind"].split()[1:] == ["-", "default"]
    assert load(None, {}, []).origins.keys() <= lines.keys()


def test_only_what_was_changed(file: Path, capsys: Capture) -> None:
    assert main(["print-config", "--config", str(file), "--changed", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert set(rows) == {"ingress.connect", "limits.inflight_bytes", "admission.duplicate_window_s"}
    assert rows["limits.inflight_bytes"]["value"] == 4 << 30
    assert rows["limits.inflight_bytes"]["doc"]


def test_toml_reads_back_as_the_same_settings(file: Path, tmp_path: Path, capsys: Capture) -> None:
    sets = ["--set", "ingress.hwm=64", "--set", 'relay.ready_overrides={mrope_positions = false, "a b" = "c"}']
    assert main(["print-config", "--config", str(file), *sets, "--toml"]) == 0
    again = tmp_path / "again.toml"
    again.write_text(capsys.readouterr().out)
    wanted = load(file, {"SIDECAR_ADMISSION__DUPLICATE_WINDOW_S": "7"}, [sets[1], sets[3]]).settings
    assert load(again, {}, []).settings == wanted


def test_the_commented_file(capsys: Capture) -> None:
    assert main(["print-config", "--defaults"]) == 0
    assert capsys.readouterr().out == render_toml()


def test_json_of_everything(capsys: Capture) -> None:
    assert main(["print-config", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(load(None, {}, []).origins)


def test_an_error_is_an_error(capsys: Capture) -> None:
    assert main(["print-config", "--set", "ingress.hwn=3"]) == 3
    assert "ingress.hwm" in capsys.readouterr().err
