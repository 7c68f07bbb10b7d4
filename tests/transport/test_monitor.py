"""Counting peers: who has shaken hands, who only knocked."""

from __future__ import annotations

import asyncio
import socket as plain
from typing import Any

import pytest
import zmq

from sidecar.transport.monitor import PeerMonitor
from tests.service.loops import Run


async def until(condition: Any) -> None:
    """Wait for a condition, three seconds at most."""
    for _ in range(1500):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize("binds", [True, False])
def test_peers_come_and_go(run: Run, binds: bool) -> None:
    async def body() -> None:
        context: zmq.Context[Any] = zmq.Context()
        push = context.socket(zmq.PUSH)
        changes: list[int] = []
        monitor = PeerMonitor(push, changes.append)
        other = context.socket(zmq.PULL)
        if binds:
            port = push.bind_to_random_port("tcp://127.0.0.1")
            other.connect(f"tcp://127.0.0.1:{port}")
        else:
            port = other.bind_to_random_port("tcp://127.0.0.1")
            push.connect(f"tcp://127.0.0.1:{port}")
        await until(lambda: monitor.peers == 1)
        other.close(linger=0)
        await until(lambda: monitor.peers == 0)
        assert changes == [1, 0]
        assert (monitor.connects, monitor.disconnects) == (1, 1)
        monitor.close()
        monitor.close()
        push.close(linger=0)
        context.term()

    run(body())


def test_who_only_knocks_is_no_peer(run: Run) -> None:
    async def body() -> None:
        context: zmq.Context[Any] = zmq.Context()
        push = context.socket(zmq.PUSH)
        changes: list[int] = []
        monitor = PeerMonitor(push, changes.append)
        port = push.bind_to_random_port("tcp://127.0.0.1")
        knocker = plain.create_connection(("127.0.0.1", port))
        await asyncio.sleep(0.05)
        peer = context.socket(zmq.PULL)
        peer.connect(f"tcp://127.0.0.1:{port}")
        await until(lambda: monitor.peers == 1)
        babbler = plain.create_connection(("127.0.0.1", port))
        babbler.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 4)
        await asyncio.sleep(0.05)
        knocker.close()
        babbler.close()
        await asyncio.sleep(0.1)
        assert changes == [1]
        peer.close(linger=0)
        await until(lambda: monitor.peers == 0)
        monitor.close()
        push.close(linger=0)
        context.term()

    run(body())
