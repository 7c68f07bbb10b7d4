"""The handshake's maps: what is read, what is replaced, and that nothing else changes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.wire import handshake
from sidecar.wire.handshake import Addresses, HandshakeError

# As gateway 1.13.0 sends it for the worker URL ipc:///tmp/ipkn4bvmlf/gw.
INIT = bytes.fromhex(
    "82a961646472657373657385a6696e7075747391d9206970633a2f2f2f746d702f69706b6e3462766d6c662f67772d696e2e736f636b"
    "a76f75747075747391d9216970633a2f2f2f746d702f69706b6e3462766d6c662f67772d6f75742e736f636bb1636f6f7264696e6174"
    "6f725f696e707574c0b2636f6f7264696e61746f725f6f7574707574c0be66726f6e74656e645f73746174735f7075626c6973685f61"
    "646472657373c0af706172616c6c656c5f636f6e66696780"
)
OURS = Addresses("ipc:///run/sidecar/in-0.sock", "ipc:///run/sidecar/out-0.sock")

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
maps = st.dictionaries(st.text(max_size=20), values, max_size=18)


def pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def test_the_port_is_computed_from_the_worker_urls_path() -> None:
    assert handshake.fnv1a_64(b"") == 0xCBF29CE484222325
    assert handshake.fnv1a_64(b"foobar") == 0x85944171F73967E8
    assert handshake.handshake_address("ipc:///tmp/e0") == "tcp://127.0.0.1:24721"


def test_a_handshake_address_stays_as_it_is() -> None:
    assert handshake.handshake_address("tcp://127.0.0.1:5000") == "tcp://127.0.0.1:5000"


def test_the_worker_urls_sockets() -> None:
    assert handshake.worker_addresses("ipc:///tmp/gw") == ("ipc:///tmp/gw-in.sock", "ipc:///tmp/gw-out.sock")
    assert handshake.worker_addresses("tcp://127.0.0.1:1") is None


@pytest.mark.parametrize(("index", "identity"), [(0, b"\0\0"), (1, b"\1\0"), (256, b"\0\1"), (65535, b"\xff\xff")])
def test_identities(index: int, identity: bytes) -> None:
    assert handshake.identity_of(index) == identity
    assert handshake.index_of(identity) == index


@pytest.mark.parametrize("identity", [b"", b"\0", b"\0\0\0", b"engine-0"])
def test_foreign_identities(identity: bytes) -> None:
    assert handshake.index_of(identity) is None


@pytest.mark.parametrize("status", ["HELLO", "READY"])
def test_status(status: str) -> None:
    message = pack({"status": status, "local": True, "headless": True, "parallel_config_hash": None, "new": [1]})
    assert handshake.read_status(message) == status


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        b"\x80",
        pack([]),
        pack("HELLO"),
        pack({"status": None}),
        pack({"status": "BYE"}),
        pack({"status": 1}),
        pack({"state": "HELLO"}),
        pack({"status": "HELLO"}) + b"\0",
        pack({"status": "HELLO"})[:-1],
        pack({1: "HELLO"}),
        b"\x82\xa6status\xa5HELLO\xa6status\xa5READY",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa6status\xd9\xff",
    ],
)
def test_no_status(message: bytes) -> None:
    with pytest.raises(HandshakeError):
        handshake.read_status(message)


def test_the_addresses_of_a_gateways_init() -> None:
    assert handshake.read_addresses(INIT) == ("ipc:///tmp/ipkn4bvmlf/gw-in.sock", "ipc:///tmp/ipkn4bvmlf/gw-out.sock")


def test_replaced_addresses_are_the_only_change() -> None:
    changed = handshake.replace_addresses(INIT, OURS)
    assert handshake.read_addresses(changed) == OURS
    before, after = msgpack.unpackb(INIT), msgpack.unpackb(changed)
    assert after["addresses"].pop("inputs") == [OURS.input]
    assert after["addresses"].pop("outputs") == [OURS.output]
    del before["addresses"]["inputs"], before["addresses"]["outputs"]
    assert after == before


@settings(max_examples=40)
@given(addresses=maps, others=maps)
def test_replacing_addresses_back_gives_the_same_bytes(addresses: dict[str, Any], others: dict[str, Any]) -> None:
    theirs = {"inputs": ["ipc:///a"], "outputs": ["ipc:///b"]}
    init = pack({**others, "addresses": {**addresses, **theirs}})
    changed = handshake.replace_addresses(init, OURS)
    assert handshake.read_addresses(changed) == OURS
    assert handshake.replace_addresses(changed, Addresses("ipc:///a", "ipc:///b")) == init


@pytest.mark.parametrize(
    "init",
    [
        {},
        {"addresses": None},
        {"addresses": []},
        {"addresses": {}},
        {"addresses": {"inputs": ["a"]}},
        {"addresses": {"inputs": [], "outputs": ["b"]}},
        {"addresses": {"inputs": "a", "outputs": ["b"]}},
        {"addresses": {"inputs": [1], "outputs": ["b"]}},
    ],
)
def test_an_init_without_addresses(init: dict[str, Any]) -> None:
    with pytest.raises(HandshakeError):
        handshake.read_addresses(pack(init))


@settings(max_examples=40)
@given(ready=maps, overrides=maps)
def test_merging_keeps_every_other_key(ready: dict[str, Any], overrides: dict[str, Any]) -> None:
    merged = msgpack.unpackb(handshake.merge(pack(ready), overrides))
    assert merged == {**ready, **overrides}
    assert list(merged) == list({**ready, **overrides})


def test_merging_nothing_keeps_the_bytes() -> None:
    # A map header and integers longer than they need be: a re-encoding would shorten them.
    ready = b"\xde\x00\x02" + b"\xd9\x03dim" + b"\xcf" + bytes(7) + b"\x05" + b"\xa1x\xcb" + bytes(8)
    assert handshake.merge(ready, {}) == ready
    merged = handshake.merge(ready, {"mrope_positions": False})
    assert merged == b"\x83" + ready[3:] + b"\xafmrope_positions\xc2"


def test_has_key() -> None:
    assert handshake.has_key(pack({"mrope_positions": None}), "mrope_positions")
    assert not handshake.has_key(pack({"dtype": "bfloat16"}), "mrope_positions")


@pytest.mark.parametrize(
    ("ready", "length"),
    [
        ({"max_model_len": 32768}, 32768),
        ({"max_model_len": 0}, None),
        ({"max_model_len": -1}, None),
        ({"max_model_len": "32768"}, None),
        ({"max_model_len": None}, None),
        ({"max_model_len": True}, None),
        ({}, None),
    ],
)
def test_max_model_len(ready: dict[str, Any], length: int | None) -> None:
    assert handshake.read_max_model_len(pack(ready)) == length


@given(st.binary(max_size=60))
def test_any_bytes_are_answered_by_handshake_errors_alone(data: bytes) -> None:
    for read in (handshake.read_status, handshake.read_addresses, handshake.read_max_model_len):
        with suppress(HandshakeError):
            read(data)
