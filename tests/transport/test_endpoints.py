"""Addresses: syntax, the length of ipc paths, and what other hosts may reach."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import ConfigError
from sidecar.transport.endpoints import (
    TcpAddress,
    check_endpoint,
    check_socket_dir,
    is_loopback,
    is_tcp,
    is_wildcard,
    parse_tcp,
)

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


@dataclass(frozen=True)
class Policy:
    allow_remote: bool = False
    secret_key_file: str | None = None
    allowed_client_keys: tuple[str, ...] = ()
    ingress_server_key: str | None = None
    egress_server_key: str | None = None


CLOSED = Policy()
OPEN = Policy(True, "/etc/key", (KEY,), KEY, KEY)


def refusal(key: str, address: str, policy: Policy = CLOSED) -> str:
    with pytest.raises(ConfigError) as caught:
        check_endpoint(key, address, policy)
    text = str(caught.value)
    assert text.startswith(f"{key} = ")
    return text


@pytest.mark.parametrize(
    "address",
    [
        "ipc:///tmp/sidecar/ingress.sock",
        "ipc://relative.sock",
        "ipc:///tmp/with space",
        "ipc:///tmp/grüße.sock",
        "tcp://127.0.0.1:5555",
        "tcp://127.8.9.10:1",
        "tcp://localhost:65535",
        "tcp://[::1]:5555",
        "tcp://[::ffff:127.0.0.1]:5555",
    ],
)
@pytest.mark.parametrize("key", ["ingress.bind", "egress.connect", "relay.engine_handshake", "--bind"])
def test_local_addresses_pass(key, address):
    check_endpoint(key, address, CLOSED)


@pytest.mark.parametrize(
    ("address", "part"),
    [
        ("", 'expected "ipc:///path" or "tcp://host:port"'),
        ("/tmp/x.sock", 'expected "ipc:///path" or "tcp://host:port"'),
        ("ipc:/tmp/x", 'expected "ipc:///path" or "tcp://host:port"'),
        ("IPC:///tmp/x", 'expected "ipc:///path" or "tcp://host:port"'),
        (" tcp://127.0.0.1:1", 'expected "ipc:///path" or "tcp://host:port"'),
        ("inproc://x", 'expected "ipc:///path" or "tcp://host:port"'),
        ("udp://127.0.0.1:5", 'expected "ipc:///path" or "tcp://host:port"'),
        ("ipc://", "a peer must know the path"),
        ("ipc://*", "a peer must know the path"),
        ("ipc://@abstract", "an abstract socket has no file permissions"),
        ("ipc:///tmp/a\0b", "characters that cannot be printed"),
        ("ipc:///tmp/a\nb", "characters that cannot be printed"),
        ("ipc:///tmp/", "the path is a folder"),
        ("tcp://", 'expected "tcp://host:port"'),
        ("tcp://:5555", 'expected "tcp://host:port"'),
        ("tcp://127.0.0.1", 'expected "tcp://host:port"'),
        ("tcp://127.0.0.1:*", "a port that the system picks"),
        ("tcp://127.0.0.1:0", "a port that the system picks"),
        ("tcp://127.0.0.1:", "expected a port from 1 to 65535"),
        ("tcp://127.0.0.1:65536", "expected a port from 1 to 65535"),
        ("tcp://127.0.0.1:-1", "expected a port from 1 to 65535"),
        ("tcp://127.0.0.1:٣", "expected a port from 1 to 65535"),
        ("tcp://127.0.0.1:80/x", "expected a port from 1 to 65535"),
        ("tcp://::1:5555", "an IPv6 address needs brackets"),
        ("tcp://[::g]:5555", "expected an IPv6 address between the brackets"),
        ("tcp://a b:5555", "expected a host name or an IP address"),
        ("tcp://127.0.0.1:1;127.0.0.1:2", "an IPv6 address needs brackets"),
        ("tcp://user@host:1", "expected a host name or an IP address"),
    ],
)
def test_addresses_that_no_socket_could_use(address, part):
    assert part in refusal("ingress.bind", address, OPEN)


@pytest.mark.parametrize(("text", "width"), [("x", 1), ("ü", 2), ("漢", 3), ("🦆", 4)])
def test_the_limit_of_an_ipc_path_counts_bytes(text, width):
    fits = "/tmp/" + text * (102 // width)
    fits += "y" * (107 - len(fits.encode()))
    check_endpoint("ingress.bind", f"ipc://{fits}", CLOSED)
    problem = refusal("ingress.bind", f"ipc://{fits}y")
    assert "the path has 108 bytes, but a socket's path has at most 107; use a shorter one" in problem


def test_a_worker_url_needs_room_for_the_gateways_suffix():
    check_endpoint("relay.frontend_handshake", f"ipc:///{'x' * 97}", CLOSED)
    problem = refusal("relay.frontend_handshake", f"ipc:///{'x' * 98}")
    assert 'the path has 108 bytes with "-out.sock"' in problem


def test_a_folder_of_sockets_needs_room_for_their_names():
    check_socket_dir("relay.socket_dir", "/" + "x" * 81 + "/")
    with pytest.raises(ConfigError, match=r"^relay.socket_dir = .*83 bytes leave no room .* at most 82$"):
        check_socket_dir("relay.socket_dir", "/" + "x" * 82)


@pytest.mark.parametrize(
    "address",
    [
        "tcp://*:5555",
        "tcp://0.0.0.0:5555",
        "tcp://[::]:5555",
        "tcp://10.0.0.1:5555",
        "tcp://eth0:1",
        "tcp://2130706433:1",
    ],
)
def test_addresses_that_others_reach_need_consent_and_curve(address):
    problem = refusal("ingress.bind", address)
    for name in ("security.allow_remote = true", "security.secret_key_file", "security.allowed_client_keys"):
        assert name in problem
    assert "use ipc or 127.0.0.1" in problem
    check_endpoint("ingress.bind", address, OPEN)


@pytest.mark.parametrize(
    ("policy", "missing"),
    [
        (Policy(True), "set security.secret_key_file, security.allowed_client_keys"),
        (Policy(False, "/etc/key", (KEY,)), "set security.allow_remote = true"),
        (Policy(True, "/etc/key"), "set security.allowed_client_keys"),
    ],
)
def test_what_is_missing_is_named(policy, missing):
    assert refusal("egress.bind", "tcp://0.0.0.0:5555", policy).endswith(missing)


def test_a_dialled_peer_needs_its_public_key():
    mine = Policy(True, "/etc/key", (), KEY, None)
    check_endpoint("ingress.connect", "tcp://frontend.example:5555", mine)
    assert refusal("egress.connect", "tcp://engine.example:5555", mine).endswith("set security.egress_server_key")


@pytest.mark.parametrize("address", ["tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://[::]:5555"])
def test_a_wildcard_is_never_dialled(address):
    assert "a wildcard can be bound, not dialled" in refusal("egress.connect", address, OPEN)


def test_the_gateway_is_on_this_host():
    assert "use a loopback address" in refusal("relay.frontend_handshake", "tcp://10.0.0.1:23456", OPEN)
    check_endpoint("relay.frontend_handshake", "tcp://127.0.0.1:23456", CLOSED)


def test_parts_of_a_tcp_address():
    assert parse_tcp("x", "tcp://[::1]:5555") == TcpAddress("::1", 5555)
    assert parse_tcp("x", "tcp://a-b.example:1") == TcpAddress("a-b.example", 1)
    assert is_tcp("tcp://x:1")
    assert not is_tcp("ipc:///tcp://")


def test_hosts():
    assert all(map(is_wildcard, ("*", "0.0.0.0", "::")))
    assert not any(map(is_wildcard, ("127.0.0.1", "localhost", "eth0")))
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.255.0.1", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("localhost.example", "128.0.0.1", "::2", "*", "0.0.0.0", "127.1")))


@given(st.text())
def test_any_text_passes_or_is_a_config_error(text):
    for address in (text, f"tcp://{text}", f"ipc://{text}"):
        with contextlib.suppress(ConfigError):
            check_endpoint("ingress.bind", address, CLOSED)
