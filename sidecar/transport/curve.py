"""CURVE: the sidecar's own key pair, kept in a private file, and who may connect to a bound TCP socket."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, NamedTuple

import zmq
import zmq.auth
from zmq.auth.asyncio import AsyncioAuthenticator

from sidecar.errors import ConfigError, UsageError

_PRIVATE_MODE: Final = 0o600
_KEY_LENGTH: Final = 40

_FILE: Final = """\
# CURVE key of an ingest sidecar. The secret key must stay in this file, mode 0600;
# peers are given the public key.
curve
    public-key = "{public}"
    secret-key = "{secret}"
"""


class KeyPair(NamedTuple):
    """A CURVE key pair, Z85-encoded: 40 characters each."""

    public: str
    secret: str


def generate() -> KeyPair:
    """A new key pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def save(pair: KeyPair, path: Path) -> None:
    """Write a key file with mode 0600, in the format of ZeroMQ certificates.

    Raises `UsageError` if the file is there already: a key that is overwritten is lost.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_MODE)
    except FileExistsError:
        raise UsageError(f"{path} exists; remove it first, or write to another file") from None
    with open(descriptor, "w", encoding="ascii") as file:
        os.fchmod(descriptor, _PRIVATE_MODE)
        file.write(_FILE.format(public=pair.public, secret=pair.secret))


def load(path: Path) -> KeyPair:
    """Read a key file. Raises `ConfigError` if others can read it, or if it holds no pair of keys."""
    key = f'security.secret_key_file = "{path}"'
    try:
        status = path.stat()
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise ConfigError(
                f"{key}: its mode is {stat.S_IMODE(status.st_mode):04o}, so that others may read or replace the key; "
                f"chmod 600 {path}"
            )
        public, secret = zmq.auth.load_certificate(path)
    except OSError as error:
        raise ConfigError(f"{key}: {error.strerror or error}; make a key with `sidecar keygen --out {path}`") from error
    except ValueError:
        public, secret = b"", None
    if secret is None or len(secret) != _KEY_LENGTH:
        raise ConfigError(f"{key}: it holds no secret key of {_KEY_LENGTH} characters; make one with `sidecar keygen`")
    try:
        derived = zmq.curve_public(secret)
    except zmq.ZMQError:
        raise ConfigError(f"{key}: its secret key is not a CURVE key; make one with `sidecar keygen`") from None
    if derived != public:
        raise ConfigError(f"{key}: its public key does not belong to its secret key; make one with `sidecar keygen`")
    return KeyPair(public.decode(), secret.decode())


def serve_curve(socket: zmq.Socket[Any], own: KeyPair) -> None:
    """Make a socket that will be bound demand CURVE. Who may connect is the `Gatekeeper`'s to say."""
    socket.set(zmq.CURVE_SERVER, 1)
    socket.set(zmq.CURVE_SECRETKEY, own.secret.encode())


def use_curve(socket: zmq.Socket[Any], own: KeyPair, server_key: str) -> None:
    """Make a socket that will be connected prove its own key, and demand the server's."""
    socket.set(zmq.CURVE_PUBLICKEY, own.public.encode())
    socket.set(zmq.CURVE_SECRETKEY, own.secret.encode())
    socket.set(zmq.CURVE_SERVERKEY, server_key.encode())


class Gatekeeper:
    """Lets peers with listed CURVE keys connect to the bound sockets of a ZMQ context, and nobody else.

    It must be started before the sockets are bound, inside a running event loop, and serves there.
    """

    def __init__(self, context: zmq.Context[Any], allowed: Collection[str]) -> None:
        self._allowed = frozenset(key.encode() for key in allowed)
        self._authenticator = AsyncioAuthenticator(context)
        self._authenticator.configure_curve_callback("*", self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the peer with this Z85 key may connect."""
        return key in self._allowed

    def start(self) -> None:
        """Answer from now on."""
        self._authenticator.start()

    def stop(self) -> None:
        """Stop answering; nobody new can connect then."""
        self._authenticator.stop()
