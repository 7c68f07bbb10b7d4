"""`sidecar diff`, `report` and `synth` from the command line, and all three on hostile files."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from sidecar.cli import main
from sidecar.errors import Reason
from sidecar.recording import Reader
from tests.recording.test_mutations import mutate

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests/data/recordings"
A, B = str(DATA / "canonical.rec"), str(DATA / "tokenspeed.rec")
MODEL = str(ROOT / "config/models/qwen3_5")
SMALL = ["--size", "32x32", "--prompt", "10-20", "--frames", "2", "--items", "1"]
Capture = pytest.CaptureFixture[str]


def test_no_difference(capsys: Capture) -> None:
    assert main(["diff", A, A]) == 0
    assert capsys.readouterr().out == f"6 compared, 6 equal, 0 differ; 0 only in {A}, 0 only in {A}\n"


def test_a_difference(capsys: Capture) -> None:
    assert main(["diff", A, B, "--limit", "1"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("first difference: generate synth-")
    assert "        5  multimodal_inputs.mm_items[].hash\n" in text
    assert main(["diff", A, B, "--quiet"]) == 1
    assert capsys.readouterr().out == ""
    assert main(["diff", A, B, "--ignore", "hash", "--ignore", "pad_value", "--ignore", "input_ids"]) == 0


def test_a_difference_for_machines(capsys: Capture) -> None:
    assert main(["diff", A, B, "--json", "--limit", "2"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["same"], found["compared"], found["differ"], len(found["requests"])) == (False, 6, 5, 2)
    assert found["fields"]["multimodal_inputs.mm_items[].pad_value"] == 5
    assert set(found["requests"][0]["differences"][0]) == {"path", "what"}


def test_only_in_one(capsys: Capture, tmp_path: Path) -> None:
    short = tmp_path / "short.rec"
    assert main(["record", "--recording", A, "--out", str(short), "--count", "4", "--quiet"]) == 0
    assert main(["diff", A, str(short)]) == 1
    assert f"only in {A}: generate synth-" in capsys.readouterr().out
    os.truncate(short, short.stat().st_size // 2)
    main(["diff", A, str(short)])
    assert f"{short}: cut short" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["-", "-"], [A, "x.pkl"], [A, A, "--rid-map", "("], [A, A, "--rid-map", "=x"], [A, A, "--rid-map", "(=x"]],
)
def test_what_cannot_be_compared(arguments: list[str], capsys: Capture) -> None:
    assert main(["diff", *arguments]) == 3
    assert capsys.readouterr().err.startswith("sidecar: ")


def results(tmp_path: Path) -> str:
    path = tmp_path / "run.jsonl"
    lines = ['{"format": "sidecar-results", "version": 1, "recording": "a.rec", "achieved_rate": 500.0}']
    lines += [
        f'[{i * 1000000}, {i * 1000000 + 5000}, null, {i * 1000000 + 2000000 + i}, 100, "text", "forwarded", "r{i}"]'
        for i in range(50)
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_report_in_every_form(tmp_path: Path, capsys: Capture) -> None:
    run = results(tmp_path)
    assert main(["report", run]) == 0
    assert "due to done" in capsys.readouterr().out
    assert main(["report", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 50
    assert main(["report", run, "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 51
    for name in ("a.html", "b.html"):
        assert main(["report", run, "--format", "html", "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.html").read_text() == (tmp_path / "b.html").read_text()
    assert "<svg" in (tmp_path / "a.html").read_text()
    assert main(["report", run, "--buckets", "1ms,2ms,3ms"]) == 0
    assert "2ms - 3ms" in capsys.readouterr().out


def test_thresholds_of_a_report(tmp_path: Path, capsys: Capture) -> None:
    run = results(tmp_path)
    assert main(["report", run, "--threshold", "p99<5ms", "--threshold", "text.max<5ms"]) == 0
    assert "met    p99<5ms: p99 is 2ms" in capsys.readouterr().out
    assert main(["report", run, "--threshold", "p99<1ms", "--quiet"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "missed p99<1ms: p99 is 2ms\n")
    assert main(["report", run, "--threshold", "p99<1ms", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["thresholds"] == [{"threshold": "p99<1ms", "met": False}]


@pytest.mark.parametrize(
    "arguments",
    [["--threshold", "x"], ["--buckets", "2ms,1ms"], ["--buckets", "soon"], ["--threshold", "video.p99<1s"]],
)
def test_what_a_report_refuses(arguments: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert main(["report", results(tmp_path), *arguments]) == 3
    assert capsys.readouterr().err.startswith("sidecar: ")
    assert main(["report", A]) == 3
    assert main(["report", str(tmp_path / "nothing")]) == 3


def test_a_synthetic_recording(tmp_path: Path, capsys: Capture) -> None:
    one, two = tmp_path / "1.rec", tmp_path / "2.rec"
    for path in (one, two):
        assert main(["synth", "--model", MODEL, "--count", "10", "--seed", "4", "--out", str(path), *SMALL]) == 0
    assert one.read_bytes() == two.read_bytes()
    assert capsys.readouterr().err.startswith("10 messages, ")
    with Reader(one) as reader:
        assert len(list(reader)) == 10
        assert reader.info == {"model": "qwen3_5", "seed": 4, "source": "synth"}


def test_broken_ones(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "o"
    arguments = ["synth", "--model", MODEL, "--out", str(out), *SMALL, "--quiet"]
    assert main([*arguments, "--count", "6", "--broken", "grid_mismatch", "--broken", "duplicate_rid"]) == 0
    with Reader(out) as reader:
        reasons = [record.metadata.get("reason") for record in reader]
    assert reasons == ["grid_mismatch", None, "duplicate_rid"] * 3
    assert main(["synth", "--list-broken"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(Reason)
    assert main([*arguments, "--count", str(len(Reason)), "--broken", "all"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--model", MODEL],
        ["--model", "no/such/model", "--out", "x"],
        ["--model", MODEL, "--out", "x", "--broken", "nonsense"],
        ["--model", MODEL, "--out", "x", "--mix", "audio"],
        ["--model", MODEL, "--out", "x", "--size", "small"],
        ["--model", MODEL, "--out", "x", "--missing-hashes", "2"],
        ["--model", MODEL, "--out", "x", "--missing-hashes", "1", "--materialized", "1"],
        ["--model", MODEL, "--out", "x", "--rate", "0"],
    ],
)
def test_what_synth_refuses(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["synth", *arguments]) == 3
    assert capsys.readouterr().err.startswith("sidecar: ")
    assert not (tmp_path / "x").exists()


def test_hostile_files_are_exit_code_3_and_a_line(capsys: Capture) -> None:
    original = (DATA / "small.rec").read_bytes()
    rng = random.Random(5)
    codes = set()
    with os.fdopen(os.memfd_create("mutant"), "wb") as file:
        for _ in range(100):
            file.seek(0)
            file.truncate()
            file.write(mutate(rng, original))
            file.flush()
            code = main(["diff", f"/proc/self/fd/{file.fileno()}", str(DATA / "small.rec"), "--quiet"])
            said = capsys.readouterr().err
            assert code in (0, 1, 3)
            assert said.count("\n") == (1 if code == 3 else 0)
            codes.add(code)
    assert codes == {1, 3} or codes == {0, 1, 3}
