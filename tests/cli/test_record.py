"""`sidecar record`: sockets, folders, recordings; limits and choices."""

from __future__ import annotations

import io
import json
import shutil
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import zmq

from sidecar.cli import main
from sidecar.cli.record import parse_size
from sidecar.errors import UsageError
from sidecar.recording import Direction, Framing, Reader, Record, Writer
from tests.build import frames, image_request, request

DATA = Path(__file__).parent.parent / "data/recordings"
SMALL = str(DATA / "small.rec")


def read(path: Path) -> list[Record]:
    with Reader(path) as reader:
        return list(reader)


class Sender(threading.Thread):
    """Sends messages to an address from a thread of its own, and stays until it is told to go."""

    def __init__(self, address: str, messages: list[list[bytes]], *, bind: bool = False) -> None:
        super().__init__()
        self._address, self._messages, self._bind = address, messages, bind
        self.leave = threading.Event()

    def run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        push = context.socket(zmq.PUSH)
        push.bind(self._address) if self._bind else push.connect(self._address)
        for message in self._messages:
            push.send_multipart(message)
        self.leave.wait(10)
        context.destroy(linger=0)


@pytest.mark.parametrize("bind", [True, False])
def test_from_a_socket(tmp_path: Path, bind: bool, capsys: pytest.CaptureFixture[str]) -> None:
    messages = [frames(request(f"r{i}")) for i in range(10)]
    sender = Sender(f"ipc://{tmp_path}/x.sock", messages, bind=not bind)
    sender.start()
    out = tmp_path / "out.rec"
    arguments = ["--bind" if bind else "--connect", f"ipc://{tmp_path}/x.sock", "--out", str(out), "--count", "7"]
    assert main(["record", *arguments, "--direction", "egress"]) == 0
    sender.leave.set()
    sender.join()
    records = read(out)
    assert [list(record.frames) for record in records] == messages[:7]
    assert {(r.direction, r.framing) for r in records} == {(Direction.EGRESS, Framing.NATIVE)}
    assert all(a.mono_ns <= b.mono_ns and a.wall_ns > 0 for a, b in pairwise(records))
    assert capsys.readouterr().err.startswith("7 messages, ")


def test_time_limits(tmp_path: Path) -> None:
    for limit in ("--duration", "--idle-timeout"):
        assert (
            main(
                ["record", "--bind", f"ipc://{tmp_path}/x.sock", "--out", str(tmp_path / "o"), limit, "50ms", "--quiet"]
            )
            == 0
        )
        assert read(tmp_path / "o") == []


def test_a_size_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.rec"
    assert main(["record", "--recording", SMALL, "--out", str(out), "--max-bytes", "40KiB"]) == 0
    assert out.stat().st_size < 41 << 10
    assert "stopped at --max-bytes 40KiB" in capsys.readouterr().err
    assert read(out) == read(Path(SMALL))[: len(read(out))]


def test_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "frames/a/in_frames"
    folder.mkdir(parents=True)
    (folder / "0.bin").write_bytes(frames(request("r"))[0])
    assert main(["record", "--folder", str(tmp_path / "frames"), "--out", str(tmp_path / "out.rec"), "--quiet"]) == 0
    (record,) = read(tmp_path / "out.rec")
    assert record.metadata == {"source": "a/in_frames"}


def test_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "all.rec"
    with Writer(source) as writer:
        writer.write(Record(frames(request("text-1"))))
        writer.write(Record(frames(image_request("image-1"))))
        writer.write(Record(frames(image_request("image-2")), Direction.EGRESS, metadata={"outcome": "forwarded"}))

    def kept(*arguments: str) -> int:
        assert main(["record", "--recording", str(source), "--out", str(tmp_path / "o"), "--json", *arguments]) == 0
        summary = json.loads(capsys.readouterr().err)
        assert summary["messages"] == len(read(tmp_path / "o"))
        return int(summary["messages"])

    assert kept() == 3
    assert kept("--rid", "image-*") == 2
    assert kept("--modality", "text") == 1
    assert kept("--modality", "text", "--modality", "image") == 3
    assert kept("--direction", "egress") == 1
    assert kept("--direction", "ingress", "--outcome", "forwarded") == 2
    assert kept("--count", "1") == 1


def test_redacted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "all.rec"
    with Writer(source) as writer:
        writer.write(Record(frames(request("a", ids=list(range(1000, 1100))))))
        writer.write(Record([b"\xc1"]))
    assert main(["record", "--recording", str(source), "--out", str(tmp_path / "o"), "--redact", "--seed", "1"]) == 0
    assert "1 unreadable left out" in capsys.readouterr().err
    (record,) = read(tmp_path / "o")
    assert record.frames != read(source)[0].frames
    assert record.nbytes == read(source)[0].nbytes


def test_append(tmp_path: Path) -> None:
    for _ in range(2):
        assert (
            main(["record", "--recording", SMALL, "--out", str(tmp_path / "o"), "--append", "--count", "3", "--quiet"])
            == 0
        )
    assert read(tmp_path / "o") == read(Path(SMALL))[:3] * 2


def test_standard_input_and_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Path(SMALL).open("rb") as stdin, (tmp_path / "o").open("wb") as stdout:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stdout))
        assert main(["record", "--recording", "-", "--out", "-", "--quiet"]) == 0
    assert read(tmp_path / "o") == read(Path(SMALL))


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["--recording", "captured.pkl"], 3, "pickles are never read"),
        (["--recording", "nothing.rec"], 3, "No such file or directory: nothing.rec"),
        (["--folder", "."], 3, "no frames"),
        (["--tap", "127.0.0.1:1"], 4, "no sidecar's admin server at http://127.0.0.1:1"),
        (["--tap", "nonsense"], 4, "no sidecar's admin server"),
        (["--bind", "nowhere"], 3, "is no address"),
        (["--bind", "ipc:///tmp/x", "--direction", "both"], 3, "--direction both is for a tap"),
        (["--recording", SMALL, "--max-bytes", "much"], 3, "--max-bytes much"),
        (["--recording", SMALL, "--duration", "long"], 3, "--duration long"),
        (["--bind", "ipc:///tmp/x", "--duration", "long"], 3, "--duration long"),
    ],
)
def test_errors(
    arguments: list[str],
    code: int,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["record", *arguments, "--out", "out.rec"]) == code
    assert what in capsys.readouterr().err


def test_a_recording_is_not_read_and_written_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shutil.copy(SMALL, tmp_path / "same.rec")
    assert main(["record", "--recording", str(path), "--out", str(path)]) == 3
    assert "name another file" in capsys.readouterr().err
    assert Path(path).read_bytes() == Path(SMALL).read_bytes()


@pytest.mark.parametrize(("text", "size"), [("7", 7), ("1KiB", 1024), ("2MB", 2_000_000), ("1.5GiB", 3 << 29)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    for wrong in ("", "x", "7XB", "-1", "1e30"):
        with pytest.raises(UsageError):
            parse_size(wrong)
