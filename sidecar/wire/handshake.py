"""The handshake between a gateway and its engine: named maps, edited in place.

    engine                      gateway
    HELLO  ──────────────────►
           ◄────────────────── INIT   the addresses of the gateway's sockets
    READY  ──────────────────►
    ready message ───────────►        on the input socket: what the engine is

The maps grow with every release, so none is decoded into a type and written again: an entry is given
new bytes where it stands, and every other byte leaves as it came.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgpack

from sidecar.errors import Rejection
from sidecar.wire.msgpack import Buffer, read_int, read_str
from sidecar.wire.spans import MapView, array_view, map_view, set_entries, splice

HELLO: Final = "HELLO"
READY: Final = "READY"

FIRST_PORT: Final = 20000
PORTS: Final = 10000
INPUT_SUFFIX: Final = "-in.sock"
OUTPUT_SUFFIX: Final = "-out.sock"

MROPE_POSITIONS: Final = "mrope_positions"
"""The key of the ready message that makes a gateway send M-RoPE models' images without positions."""

MAX_INDEX: Final = 0xFFFF

_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_IPC: Final = "ipc://"


class HandshakeError(Exception):
    """A handshake message that cannot be used; says what is wrong with it."""


class Addresses(NamedTuple):
    """Where a gateway takes its engine's traffic: the input socket and the output socket."""

    input: str
    output: str


def handshake_address(address: str) -> str:
    """The address of the gateway's handshake socket, from itself or from the worker URL `ipc:///path`.

    A gateway listens on the loopback port 20000 + FNV-1a-64(path) mod 10000.
    """
    if not address.startswith(_IPC):
        return address
    return f"tcp://127.0.0.1:{FIRST_PORT + fnv1a_64(address.removeprefix(_IPC).encode()) % PORTS}"


def worker_addresses(address: str) -> Addresses | None:
    """The sockets that a gateway binds for the worker URL `ipc:///path`; None for another address."""
    if not address.startswith(_IPC):
        return None
    return Addresses(address + INPUT_SUFFIX, address + OUTPUT_SUFFIX)


def fnv1a_64(data: bytes) -> int:
    """The 64-bit FNV-1a hash (http://www.isthe.com/chongo/tech/comp/fnv/)."""
    value = _FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return value


def identity_of(index: int) -> bytes:
    """The ZMQ identity of an engine's rank: its index as two little-endian bytes."""
    return struct.pack("<H", index)


def index_of(identity: Buffer) -> int | None:
    """The rank that a ZMQ identity names; None if it is not one of an engine."""
    if len(identity) != 2:
        return None
    index: int = struct.unpack("<H", identity)[0]
    return index


def read_status(message: Buffer) -> str:
    """The status of a HELLO or READY. Raises `HandshakeError` for anything else."""
    view = _map(message, "handshake")
    status = _string(message, view, "status")
    if status not in (HELLO, READY):
        raise HandshakeError(f"a handshake message with the status {status!r:.40}; expected HELLO or READY")
    return status


def read_addresses(init: Buffer) -> Addresses:
    """The first input and the first output address of an INIT, which are those that an engine dials.

    Raises `HandshakeError` if one is missing.
    """
    addresses = _addresses(init)
    return Addresses(_first_address(init, addresses, "inputs"), _first_address(init, addresses, "outputs"))


def replace_addresses(init: Buffer, replacement: Addresses) -> bytes:
    """An INIT that names one other input and output address; all else is the gateway's.

    Raises `HandshakeError` if it is no INIT.
    """
    entries = {"inputs": _pack([replacement.input]), "outputs": _pack([replacement.output])}
    return splice(init, set_entries(_addresses(init), entries))


def merge(ready: Buffer, overrides: Mapping[str, Any]) -> bytes:
    """A ready message with some keys set; all others are the engine's. Raises `HandshakeError`."""
    view = _map(ready, "ready")
    return splice(ready, set_entries(view, {key: _pack(value) for key, value in overrides.items()}))


def has_key(ready: Buffer, key: str) -> bool:
    """Whether a ready message carries a key, with whatever value. Raises `HandshakeError`."""
    return key in _map(ready, "ready").entries


def read_max_model_len(ready: Buffer) -> int | None:
    """The longest sequence that the engine serves, in tokens; None if it does not say or says 0.

    Raises `HandshakeError` if the ready message is no map.
    """
    place = _map(ready, "ready").entries.get("max_model_len")
    length = read_int(ready, place[1]) if place is not None else None
    return length if length is not None and length > 0 else None


def _map(message: Buffer, name: str) -> MapView:
    try:
        view = map_view(message, 0, len(message))
    except Rejection as rejection:
        raise HandshakeError(f"the {name} message cannot be read: {rejection.message}") from None
    if view is None:
        raise HandshakeError(f"the {name} message is no map")
    if view.end != len(message):
        raise HandshakeError(f"the {name} message has {len(message) - view.end} bytes too many")
    return view


def _addresses(init: Buffer) -> MapView:
    place = _map(init, "INIT").entries.get("addresses")
    if place is None:
        raise HandshakeError("the INIT message has no addresses")
    view = map_view(init, place[1], place[2])
    if view is None:
        raise HandshakeError("the addresses of the INIT message are no map")
    return view


def _first_address(init: Buffer, addresses: MapView, key: str) -> str:
    place = addresses.entries.get(key)
    view = array_view(init, place[1], place[2]) if place is not None else None
    address = read_str(init, view.bounds[0], view.bounds[1]) if view is not None and len(view) else None
    if address is None:
        raise HandshakeError(f"the INIT message names no address in {key}")
    return address


def _string(message: Buffer, view: MapView, key: str) -> str | None:
    place = view.entries.get(key)
    return read_str(message, place[1], place[2]) if place is not None else None


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed
