"""Rules between keys. Each yields a problem that names the keys and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sidecar.errors import ConfigError
from sidecar.settings.keys import to_toml
from sidecar.settings.schema import Settings
from sidecar.transport.endpoints import check_endpoint, check_socket_dir, is_tcp

NEVER_CONTROL: Final = {
    "PickleWrapper": "it carries a pickle, which is never decoded or passed on",
    "TokenizedGenerateReqInput": "it is a request, not a control message",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and the keys that it is about."""

    keys: frozenset[str]
    text: str


def cross_check(settings: Settings) -> Iterator[Problem]:
    """All contradictions between keys that are valid each by itself."""
    yield from _relay(settings)
    yield from _endpoints(settings)
    yield from _curve(settings)
    yield from _control_tags(settings)


def endpoints(settings: Settings) -> dict[str, str]:
    """The addresses that the mode uses, by key."""
    if settings.mode == "relay":
        candidates = {
            "relay.frontend_handshake": settings.relay.frontend_handshake,
            "relay.engine_handshake": settings.relay.engine_handshake,
        }
    else:
        candidates = {
            "ingress.bind": settings.ingress.bind,
            "ingress.connect": settings.ingress.connect,
            "egress.bind": settings.egress.bind,
            "egress.connect": settings.egress.connect,
        }
    return {key: address for key, address in candidates.items() if address is not None}


def _relay(settings: Settings) -> Iterator[Problem]:
    if settings.mode != "relay":
        return
    for name, remedy in (
        ("frontend_handshake", "the gateway's handshake address or its worker URL"),
        ("engine_handshake", "the address that the engine dials"),
    ):
        if getattr(settings.relay, name) is None:
            yield Problem(
                frozenset({"mode", f"relay.{name}"}),
                f'relay.{name} is not set, but mode = "relay" needs it; set it to {remedy}',
            )


def _endpoints(settings: Settings) -> Iterator[Problem]:
    used = endpoints(settings)
    for key, address in used.items():
        try:
            check_endpoint(key, address, settings.security)
        except ConfigError as error:
            yield Problem(frozenset({key, "security.allow_remote"}), str(error))
    seen: dict[str, str] = {}
    for key, address in used.items():
        if address in seen:
            yield Problem(
                frozenset({key, seen[address]}),
                f"{seen[address]} and {key} are both {to_toml(address)}; give each socket its own address",
            )
        seen.setdefault(address, key)
    if settings.mode == "relay":
        try:
            check_socket_dir("relay.socket_dir", settings.relay.socket_dir)
        except ConfigError as error:
            yield Problem(frozenset({"relay.socket_dir"}), str(error))


def _curve(settings: Settings) -> Iterator[Problem]:
    security = settings.security
    used = endpoints(settings)
    for side in ("ingress", "egress"):
        name = f"security.{side}_server_key"
        if getattr(security, f"{side}_server_key") is None:
            continue
        if not is_tcp(used.get(f"{side}.connect", "")):
            yield Problem(
                frozenset({name, f"{side}.connect", "mode"}),
                f"{name} is set, but {side} does not connect over TCP; set {side}.connect or remove the key",
            )
        if security.secret_key_file is None:
            yield Problem(
                frozenset({name, "security.secret_key_file"}),
                f"{name} is set, but security.secret_key_file is not; "
                "make a key with `sidecar keygen` and name its file",
            )
    bound = [key for key, address in used.items() if key.endswith((".bind", "engine_handshake")) and is_tcp(address)]
    if security.secret_key_file is not None and bound and not security.allowed_client_keys:
        yield Problem(
            frozenset({"security.allowed_client_keys", "security.secret_key_file", *bound}),
            f"security.allowed_client_keys is empty, so that nobody could connect to {bound[0]}; "
            "list the public keys of its peers",
        )
    if security.allowed_client_keys and security.secret_key_file is None:
        yield Problem(
            frozenset({"security.allowed_client_keys", "security.secret_key_file"}),
            "security.allowed_client_keys is set, but security.secret_key_file is not, so that nothing would "
            "check them; make a key with `sidecar keygen` and name it",
        )


def _control_tags(settings: Settings) -> Iterator[Problem]:
    for tag in settings.admission.control_tags:
        if tag in NEVER_CONTROL:
            yield Problem(
                frozenset({"admission.control_tags"}),
                f'admission.control_tags names "{tag}": {NEVER_CONTROL[tag]}; remove it from the list',
            )
