"""Sockets of the tools: opened with one call, errors in words, nothing left behind."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import zmq

from sidecar.errors import TransportError, UsageError

IPC_MAX_BYTES: Final = 107
"""The longest path of a Unix-domain socket on Linux."""

_HWM: Final = 1000


def check_address(address: str) -> str:
    """The address, if it has a form that ZMQ takes. Raises `UsageError` with the remedy."""
    scheme, separator, rest = address.partition("://")
    if not separator or scheme not in ("ipc", "tcp") or not rest:
        raise UsageError(f"{address!r} is no address; give ipc:///path/to.sock or tcp://host:port")
    if scheme == "ipc" and len(os.fsencode(rest)) > IPC_MAX_BYTES:
        raise UsageError(
            f"{address}: the path has {len(os.fsencode(rest))} bytes, a socket's has at most {IPC_MAX_BYTES}; "
            "choose a shorter one"
        )
    if scheme == "tcp" and ":" not in rest:
        raise UsageError(f"{address}: the port is missing; give tcp://host:port")
    return address


def open_socket(
    context: zmq.Context[zmq.Socket[bytes]],
    kind: int,
    *,
    bind: str | None = None,
    connect: str | None = None,
    hwm: int = _HWM,
) -> zmq.Socket[bytes]:
    """A new socket, attached as `attach` does it; closed again where that fails."""
    socket = new_socket(context, kind, hwm=hwm)
    try:
        attach(socket, bind=bind, connect=connect)
    except BaseException:
        socket.close()
        raise
    return socket


def new_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, *, hwm: int = _HWM) -> zmq.Socket[bytes]:
    """A socket with room for `hwm` messages on either side, that does not queue for a peer who is not there."""
    socket = context.socket(kind)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, hwm)
    socket.set(zmq.RCVHWM, hwm)
    socket.set(zmq.IMMEDIATE, 1)
    return socket


def attach(socket: zmq.Socket[bytes], *, bind: str | None = None, connect: str | None = None) -> None:
    """Bind or connect a socket.

    Raises `TransportError` where the address is taken or cannot be used, `UsageError` where it is none.
    """
    address = check_address(bind or connect or "")
    try:
        if bind:
            _prepare_ipc(address)
            socket.bind(address)
        else:
            socket.connect(address)
    except zmq.ZMQError as error:
        action = "bind" if bind else "connect to"
        raise TransportError(f"cannot {action} {address}: {error.strerror or error}") from None


def _prepare_ipc(address: str) -> None:
    """Make the folder of an ipc socket; refuse a path where something else lies or somebody listens.

    libzmq would delete a regular file there, and take a live socket's traffic without a word.
    """
    if not address.startswith("ipc://") or address.startswith("ipc://@"):
        return
    path = Path(address.removeprefix("ipc://"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        status = path.stat() if path.exists() else None
    except OSError as error:
        raise TransportError(f"cannot bind {address}: {error.strerror}") from None
    if status is None:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise TransportError(f"cannot bind {address}: a file that is no socket lies there")
    if _answers(path):
        raise TransportError(f"cannot bind {address}: another process listens there")


def _answers(path: Path) -> bool:
    import socket as plain

    with plain.socket(plain.AF_UNIX, plain.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
