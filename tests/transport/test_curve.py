"""CURVE: key files that only their owner can read, and who gets in."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import zmq

from sidecar.cli import main
from sidecar.errors import ConfigError, UsageError
from sidecar.settings import Security
from sidecar.transport import curve
from sidecar.transport.monitor import PeerMonitor
from sidecar.transport.sockets import Sockets
from tests.service.loops import Run


def test_a_key_survives_its_file(tmp_path: Path) -> None:
    pair = curve.generate()
    before = os.umask(0)
    try:
        curve.save(pair, tmp_path / "key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert curve.load(tmp_path / "key") == pair
    assert zmq.auth.load_certificate(tmp_path / "key") == (pair.public.encode(), pair.secret.encode())


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    curve.save(curve.generate(), tmp_path / "key")
    before = (tmp_path / "key").read_bytes()
    with pytest.raises(UsageError, match="exists"):
        curve.save(curve.generate(), tmp_path / "key")
    assert (tmp_path / "key").read_bytes() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_key_that_others_reach_is_refused(tmp_path: Path, mode: int) -> None:
    curve.save(curve.generate(), tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(ConfigError, match=f"mode is {mode:04o}.*chmod 600"):
        curve.load(tmp_path / "key")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no secret key"),
        ('public-key = "x"\n', "no secret key"),
        ('public-key = "{public}"\nsecret-key = "short"\n', "no secret key"),
        ('public-key = "{other}"\nsecret-key = "{secret}"\n', "does not belong"),
    ],
)
def test_a_file_without_a_usable_key(tmp_path: Path, text: str, expected: str) -> None:
    pair = curve.generate()
    file = tmp_path / "key"
    filled = text.replace("{public}", pair.public).replace("{secret}", pair.secret)
    file.write_text(filled.replace("{other}", curve.generate().public))
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=expected):
        curve.load(file)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sidecar keygen"):
        curve.load(tmp_path / "none")


def test_keygen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key"
    assert main(["keygen", "--out", str(file)]) == 0
    assert capsys.readouterr().out.strip() == curve.load(file).public
    assert main(["keygen", "--out", str(file)]) == 3


def test_only_the_right_key_delivers(tmp_path: Path, run: Run) -> None:
    own, friend, stranger = curve.generate(), curve.generate(), curve.generate()
    curve.save(own, tmp_path / "key")
    security = Security(secret_key_file=str(tmp_path / "key"), allowed_client_keys=(friend.public,))

    def client(context: zmq.Context[Any], key: curve.KeyPair | None, server: str) -> zmq.Socket[bytes]:
        socket = context.socket(zmq.PUSH)
        socket.linger = 0
        if key is not None:
            curve.use_curve(socket, key, server)
        return socket

    async def body() -> None:
        sockets = Sockets(security)
        others: zmq.Context[Any] = zmq.Context()
        pull = sockets.create(zmq.PULL, hwm=8)
        peers: list[int] = []
        monitor = PeerMonitor(pull, peers.append)
        sockets.bind(pull, "tcp://127.0.0.1:*")
        address = pull.get_string(zmq.LAST_ENDPOINT)
        clients = {
            b"wrong key": client(others, stranger, own.public),
            b"wrong server": client(others, friend, stranger.public),
            b"no key": client(others, None, ""),
        }
        for text, socket in clients.items():
            socket.connect(address)
            socket.send(text)
        await asyncio.sleep(0.2)
        assert monitor.peers == 0
        right = client(others, friend, own.public)
        right.connect(address)
        right.send(b"right key")
        for _ in range(200):
            await asyncio.sleep(0.01)
            if peers and pull.poll(0):
                break
        assert pull.recv(zmq.NOBLOCK) == b"right key"
        await asyncio.sleep(0.05)
        assert not pull.poll(0)
        assert monitor.peers == 1
        assert monitor.connects == 1
        monitor.close()
        pull.close()
        others.destroy(linger=0)
        sockets.close()

    run(body())


def test_connecting_with_curve(tmp_path: Path, run: Run) -> None:
    own, server = curve.generate(), curve.generate()
    curve.save(own, tmp_path / "key")

    async def body() -> None:
        sockets = Sockets(Security(secret_key_file=str(tmp_path / "key")))
        other: zmq.Context[Any] = zmq.Context()
        pull = other.socket(zmq.PULL)
        curve.serve_curve(pull, server)
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        push = sockets.create(zmq.PUSH, hwm=8)
        sockets.attach(push, None, f"tcp://127.0.0.1:{port}", server.public)
        for _ in range(200):
            try:
                push.send(b"x", zmq.NOBLOCK)
                break
            except zmq.Again:
                await asyncio.sleep(0.01)
        assert pull.poll(2000)
        assert pull.recv() == b"x"
        push.close()
        other.destroy(linger=0)
        sockets.close()

    run(body())
