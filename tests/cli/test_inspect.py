"""`sidecar inspect` from the command line: what it prints, and what it refuses."""

from __future__ import annotations

import json
import pickle
from importlib.resources import as_file, files
from pathlib import Path

import msgpack
import pytest

from sidecar.cli import main
from sidecar.inspection.values import TIMES
from sidecar.recording import Direction, Framing, Record, Writer
from tests.build import QWEN_CONFIG, frames, image_request, item, media, request

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN_CONFIG))
    return str(folder)


@pytest.fixture
def recording(tmp_path: Path) -> str:
    path = tmp_path / "some.rec"
    with Writer(path) as writer:
        writer.write(Record(frames(request("text-1")), wall_ns=1_700_000_000_000_000_000))
        writer.write(Record(frames(image_request("image-1")), metadata={"note": "an image"}))
        writer.write(Record(frames(request("bad-1", mm=media(item(offsets=((5, 2),)))))))
        writer.write(Record([msgpack.packb(["BatchTokenIDOutSlim", ["text-1"], [[7]]])], Direction.OUTPUT))
    return str(path)


def run(*arguments: str) -> int:
    return main(["inspect", *arguments])


def test_pages_of_a_recording(recording: str, model: str, capsys: Capture) -> None:
    assert run(recording, "--model", model) == 0
    out = capsys.readouterr().out
    assert out.startswith("rules of qwen3_5 (")
    assert "2023-11-14 22:13:20.000 UTC" in out
    assert "an image" in out
    assert "✓ forward it as it came, byte for byte" in out
    assert "multimodal_inputs.mrope_positions" in out
    assert "✗ offsets_invalid" in out
    assert "the span [5, 2] does not lie in the prompt of 8 ids" in out
    assert "output of the scheduler" in out
    assert not any(line.endswith(" ") for line in out.splitlines())


def test_one_line_a_message(recording: str, model: str, capsys: Capture) -> None:
    assert run(recording, "--model", model, "--list") == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert len(lines) == 4
    assert "offsets_invalid" in lines[2]
    assert "bad-1" in lines[2]


def test_json(recording: str, model: str, capsys: Capture) -> None:
    assert run(recording, "--model", model, "--json", "--positions") == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["rids"] for document in documents] == [["text-1"], ["image-1"], ["bad-1"], []]
    assert [document["verdict"] and document["verdict"]["action"] for document in documents] == [
        "forward",
        "forward",
        "refuse",
        None,
    ]
    names = [field["name"] for field in documents[1]["fields"]]
    assert names[:6] == ["tag", "rid", "http_worker_ipc", "input_text", "input_ids", "sampling_params"]
    assert documents[1]["spans"] == [
        {"start": 2, "end": 5, "item": 0, "modality": "image", "content": f"4{TIMES}[248056]"}
    ]
    assert documents[1]["verdict"]["positions"][0] == [0, 1, 2, 2, 2, 2, 4, 5]
    assert documents[1]["verdict"]["delta"] == -2


def test_the_chart(recording: str, model: str, capsys: Capture) -> None:
    assert run(recording, "--model", model, "--number", "2", "--positions") == 0
    out = capsys.readouterr().out
    assert "M-RoPE positions of 8 tokens" in out
    assert "prompt │··████··" in out
    assert "delta -2: the first decoded token is at position 6" in out


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        (["--number", "3"], [3]),
        (["--rid", "image-1"], [2]),
        (["--direction", "output"], [4]),
        (["--count", "2"], [1, 2]),
        ([], [1, 2, 3, 4]),
    ],
)
def test_which_messages(recording: str, capsys: Capture, arguments: list[str], numbers: list[int]) -> None:
    assert run(recording, "--no-rules", "--json", *arguments) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["number"] for document in documents] == numbers
    assert all(document["verdict"] is None for document in documents)


def test_a_folder_of_frames(tmp_path: Path, model: str, capsys: Capture) -> None:
    for name, message in (("one", request("a")), ("two", image_request("a"))):
        folder = tmp_path / "cases" / name / "in_frames"
        folder.mkdir(parents=True)
        (folder / "0.bin").write_bytes(msgpack.packb(message))
    assert run(str(tmp_path / "cases"), "--model", model) == 0
    out = capsys.readouterr().out
    assert "cases/one/in_frames" in out
    assert "duplicate" not in out  # a folder is a collection: its messages do not know of each other


def test_a_recording_is_a_stream(tmp_path: Path, model: str, capsys: Capture) -> None:
    path = tmp_path / "twice.rec"
    with Writer(path) as writer:
        for second in range(2):
            writer.write(Record(frames(request("same")), wall_ns=10**18 + second))
    assert run(str(path), "--model", model, "--list") == 0
    assert "duplicate_rid" in capsys.readouterr().out


def test_a_single_message(tmp_path: Path, model: str, capsys: Capture) -> None:
    path = tmp_path / "0.bin"
    path.write_bytes(msgpack.packb(image_request("alone")))
    (tmp_path / "1.bin").write_bytes(b"aux")
    assert run(str(path), "--model", model) == 0
    out = capsys.readouterr().out
    assert "alone" in out
    assert "0.bin alone; the folder holds 1 more frames" in out


def test_the_verdict_alone(recording: str, model: str, capsys: Capture) -> None:
    assert run(recording, "--model", model, "--verdict", "--number", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("sidecar  ✗ offsets_invalid")
    assert len(lines) == 5


def test_what_would_leave(recording: str, model: str, capsys: Capture) -> None:
    assert run(recording, "--model", model, "--sent", "--json") == 0
    text, image, bad = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert {document["direction"] for document in (text, image, bad)} == {"egress"}
    fields = {field["name"]: field.get("value") for field in bad["fields"]}
    assert fields["input_ids"] == []
    assert "[5, 2]" in fields["validation_error"]
    assert [frame["role"] for frame in image["frames"]] == ["payload"]


def test_byte_by_byte(recording: str, capsys: Capture) -> None:
    assert run(recording, "--no-rules", "--number", "2", "--bytes") == 0
    out = capsys.readouterr().out
    assert "+3  dc 00 19 " in out
    assert "the key image_grid_thw" in out


def test_all_fields(recording: str, capsys: Capture) -> None:
    run(recording, "--no-rules", "--number", "1")
    assert "are nil or at their defaults" in (out := capsys.readouterr().out)
    assert "http_worker_ipc" not in out
    run(recording, "--no-rules", "--number", "1", "--all")
    assert "http_worker_ipc" in capsys.readouterr().out


def test_without_the_default_model_no_rules_are_run(
    recording: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sidecar.model_resolver._BESIDE_THE_PACKAGE", tmp_path)
    assert run(recording) == 0
    captured = capsys.readouterr()
    assert "name one with --model" in captured.err
    assert "sidecar  ✓" not in captured.out


def test_a_model_that_is_not_there_is_an_error(recording: str, capsys: Capture) -> None:
    assert run(recording, "--model", "/nowhere/at/all") == 3
    assert "model.path" in capsys.readouterr().err


def test_a_cut_recording_is_shown_and_the_cut_is_told(recording: str, tmp_path: Path, capsys: Capture) -> None:
    whole = Path(recording).read_bytes()
    end = whole.rindex(b"BatchTokenIDOutSlim") + 5
    path = tmp_path / "cut.rec"
    path.write_bytes(whole[:end])
    assert run(str(path), "--no-rules", "--list") == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3
    assert "cut short" in captured.err


HOSTILE = {
    "nothing": b"",
    "text": b"[package]\nname = 'x'\n",
    "pickle": pickle.dumps({"a": 1}),
    "a claim of 4 billion": b"\xdd\xff\xff\xff\xff\xa1a",
    "a map that claims 4 billion": b"\xdf\xff\xff\xff\xff\xa1a",
    "deep": b"\x91" * 100_000,
    "a header alone": b"\x89SCREC\r\n",
    "a damaged header": b"\x89SCREC\r\n" + bytes(40),
    "a type byte": b"\x00",
    "zeros": bytes(1000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_none_is_an_error_in_words(name: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "hostile"
    path.write_bytes(HOSTILE[name])
    assert run(str(path), "--no-rules") == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"sidecar: {path}: ")


def test_a_file_that_is_not_there(tmp_path: Path, capsys: Capture) -> None:
    assert run(str(tmp_path / "none"), "--no-rules") == 3
    assert "No such file" in capsys.readouterr().err


def test_escape_sequences_in_a_message_do_not_reach_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "evil.rec"
    with Writer(path) as writer:
        rid = "\x1b[2J\x1b]0;owned\x07[bold]"
        writer.write(Record(frames(request(rid, ids=[1], input_text=rid)), metadata={"source": rid}))
        writer.write(Record([b"\x01", msgpack.packb([rid])], framing=Framing.TYPED))
    for form in ([], ["--list"], ["--json"]):
        assert run(str(path), "--no-rules", *form) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\x07" not in out
        assert "[bold]" in out


def test_the_bundled_requests(model: str, capsys: Capture) -> None:
    with as_file(files("sidecar.demo").joinpath("requests.rec")) as path:
        assert run(str(path), "--model", model, "--list") == 0
    assert len(capsys.readouterr().out.splitlines()) > 15


def test_a_pipe(recording: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(recording) as file:
        monkeypatch.setattr("sys.stdin", file)
        assert run("-", "--no-rules", "--list") == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
