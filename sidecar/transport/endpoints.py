"""The syntax of socket addresses and who may reach them. Pure: nothing is opened or resolved.

Checked while the configuration is read, so that a bad address ends the process before any bind.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NamedTuple, Protocol

from sidecar.errors import ConfigError

MAX_IPC_PATH: Final = 107
"""Bytes of a path in `sockaddr_un`, without the terminating zero."""

WORKER_URL_SUFFIX: Final = "-out.sock"
"""The longest of the suffixes that a gateway appends to its worker URL's path."""

SOCKET_NAME_BYTES: Final = 24
"""Room for the name of a socket that the relay binds in its folder."""

_BINDS: Final = ("bind", "engine_handshake")
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_PORT: Final = re.compile(r"[0-9]{1,5}")


class SecurityPolicy(Protocol):
    """What decides about addresses that other hosts can reach. `settings.Security` is one."""

    @property
    def allow_remote(self) -> bool: ...
    @property
    def secret_key_file(self) -> str | None: ...
    @property
    def allowed_client_keys(self) -> tuple[str, ...]: ...
    @property
    def ingress_server_key(self) -> str | None: ...
    @property
    def egress_server_key(self) -> str | None: ...


class TcpAddress(NamedTuple):
    """A TCP address taken apart; the host without brackets."""

    host: str
    port: int


def check_endpoint(key: str, address: str, security: SecurityPolicy) -> None:
    """Refuse an address that no socket could use, or that exposes the sidecar unasked.

    `key` says in the error what to correct, and whether the address is bound: the keys named
    `bind` and `engine_handshake` are. Raises `ConfigError`.
    """
    binds = key.rpartition(".")[2].lstrip("-") in _BINDS
    scheme, separator, rest = address.partition("://")
    if not separator or scheme not in ("ipc", "tcp"):
        raise _error(key, address, 'expected "ipc:///path" or "tcp://host:port"')
    if scheme == "ipc":
        suffix = WORKER_URL_SUFFIX if key == "relay.frontend_handshake" else ""
        _check_ipc(key, address, rest, suffix)
    else:
        _check_tcp(key, address, parse_tcp(key, address), binds, security)


def check_socket_dir(key: str, folder: str) -> None:
    """Refuse a folder whose ipc sockets would have paths beyond the system's limit."""
    length = len(folder.rstrip("/").encode())
    limit = MAX_IPC_PATH - 1 - SOCKET_NAME_BYTES
    if length > limit:
        raise ConfigError(
            f"{key} = {_quote(folder)}: {length} bytes leave no room for a socket's name, because ipc paths "
            f"have at most {MAX_IPC_PATH} bytes; use a folder of at most {limit}"
        )


def is_tcp(address: str) -> bool:
    """Whether an address is a TCP one."""
    return address.startswith("tcp://")


def parse_tcp(key: str, address: str) -> TcpAddress:
    """The host and port of `tcp://host:port` or `tcp://[ipv6]:port`. Raises `ConfigError`."""
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    if not colon or not host:
        raise _error(key, address, 'expected "tcp://host:port"')
    if port in ("*", "0"):
        raise _error(key, address, "a port that the system picks is one that no peer can know; name the port")
    if not _PORT.fullmatch(port) or not 0 < int(port) <= 65535:
        raise _error(key, address, "expected a port from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if _ipv6(host) is None:
            raise _error(key, address, "expected an IPv6 address between the brackets")
    elif ":" in host:
        raise _error(key, address, 'an IPv6 address needs brackets, such as "tcp://[::1]:5555"')
    elif host != "*" and not _HOST.fullmatch(host):
        raise _error(key, address, "expected a host name or an IP address before the port")
    return TcpAddress(host, int(port))


def is_wildcard(host: str) -> bool:
    """Whether a bound host means every interface."""
    if host == "*":
        return True
    ip = _ip(host)
    return ip is not None and ip.is_unspecified


def is_loopback(host: str) -> bool:
    """Whether only this host can reach an address. Names other than `localhost` are not resolved."""
    if host == "localhost":
        return True
    ip = _ip(host)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip is not None and ip.is_loopback


def _check_ipc(key: str, address: str, path: str, suffix: str) -> None:
    if not path or path == "*":
        raise _error(key, address, 'a peer must know the path; name one, such as "ipc:///run/sidecar/x.sock"')
    if path.startswith("@"):
        raise _error(
            key,
            address,
            "an abstract socket has no file permissions to guard it; use a path in the file system",
        )
    if not path.isprintable():
        raise _error(key, address, "the path holds characters that cannot be printed; choose another one")
    if path.endswith("/"):
        raise _error(key, address, "the path is a folder; name the socket in it")
    length = len((path + suffix).encode())
    if length > MAX_IPC_PATH:
        with_suffix = f' with "{suffix}"' if suffix else ""
        raise _error(
            key,
            address,
            f"the path has {length} bytes{with_suffix}, but a socket's path has at most {MAX_IPC_PATH}; "
            "use a shorter one, such as a path below /tmp or /run",
        )


def _check_tcp(key: str, address: str, tcp: TcpAddress, binds: bool, security: SecurityPolicy) -> None:
    if is_loopback(tcp.host):
        return
    if is_wildcard(tcp.host):
        if not binds:
            raise _error(key, address, "a wildcard can be bound, not dialled; name the peer's host")
        exposure = "every interface of this host would accept it"
    else:
        exposure = "other hosts take part in it"
    if key == "relay.frontend_handshake":
        raise _error(
            key,
            address,
            "the gateway's other sockets are ipc, so it runs on this host; use a loopback address",
        )
    missing = [] if security.allow_remote else ["security.allow_remote = true"]
    if security.secret_key_file is None:
        missing.append("security.secret_key_file")
    if binds and not security.allowed_client_keys:
        missing.append("security.allowed_client_keys")
    side = key.partition(".")[0]
    if not binds and getattr(security, f"{side}_server_key", None) is None:
        missing.append(f"security.{side}_server_key")
    if missing:
        raise _error(
            key,
            address,
            f"{exposure}, which needs CURVE and consent; use ipc or 127.0.0.1, or set {', '.join(missing)}",
        )


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return IPv4Address(host)
    except AddressValueError:
        return _ipv6(host)


def _ipv6(host: str) -> IPv6Address | None:
    try:
        return IPv6Address(host)
    except AddressValueError:
        return None


def _quote(text: str) -> str:
    return '"' + text.encode("unicode_escape").decode() + '"' if not text.isprintable() else f'"{text}"'


def _error(key: str, address: str, remedy: str) -> ConfigError:
    return ConfigError(f"{key} = {_quote(address)}: {remedy}")
