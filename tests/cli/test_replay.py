"""`sidecar replay` against a stand-in scheduler, a running sidecar, and as a gateway."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from sidecar.cli import main
from sidecar.recording import Framing, Reader, Record, Writer
from sidecar.replay.decode import MessageKind, peek
from tests.build import QWEN_CONFIG, frames, image_request, request
from tests.e2e.harness import Sidecar
from tests.replay.test_sockets import Engine

COUNT = 40


class Peer(threading.Thread):
    """A PULL that takes everything until it is stopped."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.messages: list[list[bytes]] = []
        self.stop = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.bind(address)

    def run(self) -> None:
        while not self.stop.is_set() or self._socket.poll(200):
            if self._socket.poll(20):
                self.messages.append(self._socket.recv_multipart())
        self._context.destroy(linger=0)

    def rids(self, framing: Framing = Framing.NATIVE) -> list[str]:
        self.stop.set()
        self.join()
        return [peek(message, framing).rid for message in self.messages]


@pytest.fixture
def recording(tmp_path: Path) -> str:
    path = tmp_path / "some.rec"
    with Writer(path) as writer:
        for i in range(COUNT):
            message = image_request(f"r{i}") if i % 4 == 0 else request(f"r{i}")
            writer.write(Record(frames(message), mono_ns=i * 1_000_000))
    return str(path)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    peer = Peer(f"ipc://{tmp_path}/peer.sock")
    peer.start()
    yield peer
    peer.stop.set()
    peer.join()


def run(tmp_path: Path, *arguments: str) -> int:
    return main(["replay", *arguments, "--to", f"ipc://{tmp_path}/peer.sock", "--settle", "10ms"])


RIDS = [f"r{i}" for i in range(COUNT)]


def test_everything_arrives_in_order(
    recording: str, peer: Peer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, recording) == 0
    text = capsys.readouterr().out
    assert "40 messages, 40 requests measured" in text
    assert "p99.9" in text
    assert peer.rids() == RIDS
    with Reader(recording) as reader:
        assert [list(record.frames) for record in reader] == peer.messages


@pytest.mark.parametrize(
    ("arguments", "rids"),
    [
        (["--limit", "7"], RIDS[:7]),
        (["--loop", "2"], [*RIDS, *(rid + ".2" for rid in RIDS)]),
        (["--loop", "2", "--rids", "keep"], RIDS * 2),
        (["--loop", "--limit", "41"], [*RIDS, "r0.2"]),
        (["--speed", "10x"], RIDS),
        (["--speed", "0.01x", "--max-gap", "1ms", "--limit", "3"], RIDS[:3]),
        (["--rate", "5000", "--poisson", "--seed", "3"], RIDS),
        (["--warmup", "5", "--preload"], RIDS),
        (["--warmup", "5ms"], RIDS),
    ],
)
def test_what_is_sent(recording: str, peer: Peer, tmp_path: Path, arguments: list[str], rids: list[str]) -> None:
    assert run(tmp_path, recording, *arguments, "--quiet") == 0
    assert peer.rids() == rids


def test_fresh_rids(recording: str, peer: Peer, tmp_path: Path) -> None:
    for _ in range(2):
        assert run(tmp_path, recording, "--rids", "fresh", "--limit", "3", "--quiet") == 0
    rids = peer.rids()
    assert len(set(rids)) == 6
    assert [rid.partition(".")[0] for rid in rids] == RIDS[:3] * 2


def test_another_framing(recording: str, peer: Peer, tmp_path: Path) -> None:
    assert run(tmp_path, recording, "--framing", "typed", "--abort-rate", "1", "--abort-after", "1ms", "--quiet") == 0
    peer.rids()
    kinds = [peek(message, Framing.TYPED).kind for message in peer.messages]
    assert kinds.count(MessageKind.GENERATE) == kinds.count(MessageKind.ABORT) == COUNT


def test_json_and_results(recording: str, peer: Peer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, recording, "--rate", "2000", "--json", "--results", str(tmp_path / "run.jsonl")) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["requested_rate"] == 2000
    assert summary["achieved_rate"] == pytest.approx(2000, rel=0.2)
    assert summary["by_modality"]["image"]["count"] == COUNT // 4
    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    assert len(lines) == COUNT + 1
    assert json.loads(lines[0])["target"].endswith("peer.sock")
    assert main(["report", str(tmp_path / "run.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["latency"] == summary["latency"]


def test_results_on_standard_output(
    recording: str, peer: Peer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, recording, "--results", "-") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[0])["format"] == "sidecar-results"
    assert "requests measured" in printed.err


def test_thresholds_decide(recording: str, peer: Peer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, recording, "--threshold", "max<1h", "--quiet") == 0
    assert run(tmp_path, recording, "--threshold", "max<1h", "--threshold", "p50<1ns", "--quiet") == 2
    assert "missed p50<1ns" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["--rate", "0"], 3, "--rate"),
        (["--poisson"], 3, "--poisson needs --rate"),
        (["--rate", "5", "--speed", "1x"], 3, "not allowed with"),
        (["--max-gap", "1s"], 3, "--max-gap needs --speed"),
        (["--concurrency", "5"], 3, "--concurrency needs to see requests end"),
        (["--abort-rate", "2"], 3, "--abort-rate"),
        (["--abort-rate", "0.5"], 3, "--abort-rate needs --framing"),
        (["--threshold", "fast"], 3, "threshold 'fast'"),
        (["--as", "gateway", "--framing", "native"], 3, "typed messages only"),
        (["--warmup", "soon"], 3, "--warmup"),
        (["--timeout", "50ms"], 4, "nobody is at"),
        (["--timeout", "50ms", "--as", "gateway"], 4, "0 of 1 ranks have registered"),
    ],
)
def test_errors(
    recording: str, tmp_path: Path, arguments: list[str], code: int, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", recording, "--to", f"ipc://{tmp_path}/nobody", *arguments]) == code
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("name", ["captured.pkl", "notes.txt", "nothing.rec"])
def test_what_is_no_recording(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name != "nothing.rec":
        (tmp_path / name).write_bytes(b"\x80\x04.")
    assert run(tmp_path, str(tmp_path / name)) == 3
    assert name in capsys.readouterr().err


def test_an_empty_recording_is_nothing_to_send(peer: Peer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Writer(tmp_path / "empty.rec").close()
    assert run(tmp_path, str(tmp_path / "empty.rec")) == 0
    assert "nothing to send" in capsys.readouterr().err


def test_a_terminal_sees_progress(recording: str, peer: Peer, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    command = ["replay", recording, "--to", f"ipc://{tmp_path}/peer.sock", "--rate", "100", "--settle", "10ms"]
    environment = {**os.environ, "TERM": "xterm"}
    subprocess.run(
        [sys.executable, "-m", "sidecar", *command],
        stdout=subprocess.DEVNULL,
        stderr=slave,
        check=True,
        env=environment,
    )
    assert b"sending" in os.read(master, 1 << 16)
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize(
    ("arguments", "rids"),
    [(["--rid", "r1*"], ["r1", *(f"r{i}" for i in range(10, 20))]), (["--modality", "image"], RIDS[::4])],
)
def test_a_choice_is_sent(recording: str, peer: Peer, tmp_path: Path, arguments: list[str], rids: list[str]) -> None:
    assert run(tmp_path, recording, *arguments, "--quiet") == 0
    assert peer.rids() == rids


def test_an_interrupted_run_keeps_its_results(recording: str, peer: Peer, tmp_path: Path) -> None:
    results = tmp_path / "run.jsonl"
    address = f"ipc://{tmp_path}/peer.sock"
    command = ["replay", recording, "--to", address, "--rate", "10", "--results", str(results)]
    process = subprocess.Popen([sys.executable, "-m", "sidecar", *command], stdout=subprocess.DEVNULL)
    while not peer.messages:
        assert process.poll() is None
        peer.stop.wait(0.02)
    process.terminate()
    assert process.wait(10) == 130
    assert 0 < len(results.read_text().splitlines()) - 1 < COUNT


def test_through_a_sidecar(recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s").mkdir()
    with Sidecar(tmp_path / "s") as sidecar:
        sidecar.wait_until_up()
        arguments = ["--to", sidecar.ingress, "--from", sidecar.egress, "--concurrency", "8", "--rids", "fresh"]
        assert main(["replay", recording, *arguments, "--json"]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert summary["latency"]["done"]["count"] == COUNT
        assert summary["by_outcome"]["forwarded"]["count"] == COUNT
        out = tmp_path / "live.rec"
        command = ["record", "--tap", sidecar.url, "--out", str(out), "--count", str(2 * COUNT)]
        tap = subprocess.Popen([sys.executable, "-m", "sidecar", *command], stderr=subprocess.DEVNULL)
        while not out.exists():  # it is made once the tap is open
            assert tap.poll() is None
        assert main(["replay", recording, *arguments, "--quiet"]) == 0
        assert tap.wait(10) == 0
    with Reader(out) as reader:
        records = list(reader)
    assert [record.direction for record in records].count("ingress") == COUNT
    assert {record.metadata.get("outcome") for record in records if record.direction == "egress"} == {"forwarded"}


def test_as_a_gateway_before_a_sidecar(recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_CONFIG))
    worker = f"ipc://{tmp_path}/worker"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        handshake = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    values = {
        "mode": "relay",
        "model.path": tmp_path / "config.json",
        "relay.frontend_handshake": worker,
        "relay.engine_handshake": handshake,
        "relay.socket_dir": tmp_path,
        "admin.bind": "127.0.0.1:0",
    }
    sets = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    with (tmp_path / "log").open("w") as log:
        relay = subprocess.Popen([sys.executable, "-m", "sidecar", "serve", *sets], stderr=log)
    engine = Engine(handshake, 0)
    engine.start()
    try:
        code = main(
            ["replay", recording, "--to", worker, "--as", "gateway", "--limit", "20", "--concurrency", "4", "--json"]
        )
        assert code == 0, (tmp_path / "log").read_text()
    finally:
        engine.leave.set()
        relay.kill()
        relay.wait()
    summary = json.loads(capsys.readouterr().out)
    assert summary["by_outcome"]["stop"]["count"] == 20
    assert summary["latency"]["first"]["count"] == summary["latency"]["done"]["count"] == 20
    engine.join()
    assert engine.served == RIDS[:20]
