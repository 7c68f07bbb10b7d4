"""`sidecar sink` as a process: it checks, records and ends cleanly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgpack
import pytest
import zmq

from sidecar.cli import main
from sidecar.recording import Direction, Framing, Reader
from sidecar.replay.rewrite import abort_frames
from tests.build import NORMALIZED, frames, request

SOUND = [frames(request(f"r{i}", sampling=NORMALIZED)) for i in range(5)]
UNSOUND = [msgpack.packb(["TokenizedGenerateReqInput", "bad", None, None, [1 << 31], [32]])]


class Sink:
    """A sink and a socket that sends to it."""

    def __init__(self, folder: Path, *arguments: str, bind: bool = True) -> None:
        address = f"ipc://{folder}/sink.sock"
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.push = self.context.socket(zmq.PUSH)
        self.push.set(zmq.IMMEDIATE, 1)
        if not bind:
            self.push.bind(address)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sidecar", "sink", "--bind" if bind else "--connect", address, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        if bind:
            self.push.connect(address)
        assert self.push.poll(15_000, zmq.POLLOUT)

    def send(self, messages: Sequence[Sequence[bytes]]) -> None:
        for message in messages:
            self.push.send_multipart(message)

    def wait(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err


@pytest.fixture
def sinks() -> Iterator[list[Sink]]:
    started: list[Sink] = []
    yield started
    for sink in started:
        sink.context.destroy(linger=0)
        sink.process.kill()
        sink.process.communicate()


@pytest.mark.parametrize("bind", [True, False])
def test_it_prints_a_line_a_message_and_records(sinks: list[Sink], tmp_path: Path, bind: bool) -> None:
    sink = Sink(tmp_path, "--count", "6", "--record", str(tmp_path / "out.rec"), bind=bind)
    sinks.append(sink)
    messages = [*SOUND, abort_frames("r0", Framing.NATIVE)]
    sink.send(messages)
    code, out, err = sink.wait()
    assert code == 0
    assert [line.split()[1:3] for line in out.splitlines()] == [
        *(["forwarded", f"r{i}"] for i in range(5)),
        ["abort", "r0"],
    ]
    assert err == "6 messages: 1 abort, 5 forwarded\n"
    with Reader(tmp_path / "out.rec") as reader:
        records = list(reader)
    assert [list(record.frames) for record in records] == [[bytes(f) for f in message] for message in messages]
    assert {record.direction for record in records} == {Direction.EGRESS}
    assert records[0].metadata == {"outcome": "forwarded"}
    assert records[0].wall_ns > 0


def test_a_faulty_message_is_exit_code_1(sinks: list[Sink], tmp_path: Path) -> None:
    sink = Sink(tmp_path, "--count", "3", "--json")
    sinks.append(sink)
    sink.send([SOUND[0], UNSOUND, SOUND[0]])
    code, out, err = sink.wait()
    assert code == 1
    found = [json.loads(line) for line in out.splitlines()]
    assert [entry["problems"] for entry in found[::2]] == [[], ["the rid is live already"]]
    assert any("input_ids[0]" in problem for problem in found[1]["problems"])
    assert "2 that a scheduler would stumble over" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_nothing_that_arrived_is_lost(sinks: list[Sink], tmp_path: Path, number: int) -> None:
    sink = Sink(tmp_path, "--quiet", "--framing", "typed", "--record", str(tmp_path / "out.rec"))
    sinks.append(sink)
    sink.send([[b"\x00", *message] for message in SOUND])
    deadline = time.monotonic() + 10
    while (
        not (tmp_path / "out.rec").exists() or (tmp_path / "out.rec").stat().st_size < 100
    ) and time.monotonic() < deadline:
        time.sleep(0.01)
    sink.process.send_signal(number)
    code, out, err = sink.wait()
    assert (code, out, err) == (0, "", "5 messages: 5 forwarded\n")
    with Reader(tmp_path / "out.rec") as reader:
        assert reader.count() == 5
        assert {record.framing for record in reader} == {Framing.TYPED}


def test_silence_ends_it_if_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sink", "--bind", f"ipc://{tmp_path}/x.sock", "--idle-timeout", "0.05", "--no-check"]) == 0
    assert capsys.readouterr().err == "0 messages\n"


def test_an_address_in_use_is_exit_code_4(
    sinks: list[Sink], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sinks.append(Sink(tmp_path, "--quiet"))
    assert main(["sink", "--bind", f"ipc://{tmp_path}/sink.sock"]) == 4
    assert "another process listens there" in capsys.readouterr().err
