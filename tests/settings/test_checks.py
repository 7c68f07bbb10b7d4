"""Rules between keys."""

from __future__ import annotations

import pytest

from sidecar.settings import SettingsError, load

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
RELAY = ("mode=relay", "relay.frontend_handshake=ipc:///tmp/w", "relay.engine_handshake=tcp://127.0.0.1:30001")
SECRET = "security.secret_key_file=/etc/key"
ALLOWED = f'security.allowed_client_keys=["{KEY}"]'


def only_problem(*sets: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(None, {}, sets)
    (problem,) = caught.value.problems
    assert str(caught.value) == problem
    return problem


def test_relay_mode_needs_both_addresses():
    with pytest.raises(SettingsError) as caught:
        load(None, {}, ["mode=relay"])
    assert caught.value.problems == (
        'relay.frontend_handshake is not set, but mode = "relay" needs it; '
        "set it to the gateway's handshake address or its worker URL",
        'relay.engine_handshake is not set, but mode = "relay" needs it; set it to the address that the engine dials',
    )
    assert load(None, {}, RELAY).settings.mode == "relay"


def test_only_the_addresses_of_the_mode_are_checked():
    assert load(None, {}, [*RELAY, "ingress.bind=tcp://0.0.0.0:5555"]).settings.ingress.bind
    assert load(None, {}, ["relay.engine_handshake=tcp://0.0.0.0:5555"]).settings.relay.engine_handshake


@pytest.mark.parametrize("key", ["ingress.bind", "ingress.connect", "egress.bind", "egress.connect"])
def test_addresses_are_checked_while_loading(key):
    assert only_problem(f"{key}=udp://x").startswith(f'{key} = "udp://x": expected "ipc:///path"')


def test_one_address_for_two_sockets():
    assert only_problem("ingress.connect=ipc:///tmp/a", "egress.bind=ipc:///tmp/a") == (
        'ingress.connect and egress.bind are both "ipc:///tmp/a"; give each socket its own address'
    )


def test_a_socket_dir_that_leaves_no_room():
    assert only_problem(*RELAY, f"relay.socket_dir=/{'x' * 90}").startswith("relay.socket_dir = ")


def test_remote_addresses_with_everything_set():
    load(None, {}, ["ingress.bind=tcp://*:5555", "security.allow_remote=true", SECRET, ALLOWED])
    load(
        None,
        {},
        [
            "egress.connect=tcp://10.0.0.7:5555",
            "security.allow_remote=true",
            SECRET,
            f"security.egress_server_key={KEY}",
        ],
    )


@pytest.mark.parametrize(
    ("sets", "begins"),
    [
        (
            [SECRET, "ingress.bind=tcp://127.0.0.1:5555"],
            "security.allowed_client_keys is empty, so that nobody could connect to ingress.bind; list ",
        ),
        ([ALLOWED], "security.allowed_client_keys is set, but security.secret_key_file is not"),
        (
            ["egress.connect=tcp://127.0.0.1:5555", f"security.egress_server_key={KEY}"],
            "security.egress_server_key is set, but security.secret_key_file is not",
        ),
        (
            [SECRET, f"security.ingress_server_key={KEY}"],
            "security.ingress_server_key is set, but ingress does not connect over TCP",
        ),
        (
            [SECRET, f"security.egress_server_key={KEY}", "egress.connect=ipc:///tmp/x"],
            "security.egress_server_key is set, but egress does not connect over TCP",
        ),
    ],
)
def test_curve_keys_that_would_guard_nothing(sets, begins):
    assert only_problem(*sets).startswith(begins)


@pytest.mark.parametrize("tag", ["PickleWrapper", "TokenizedGenerateReqInput"])
def test_control_tags_that_never_pass(tag):
    problem = only_problem(f'admission.control_tags=["AbortReq", "{tag}"]')
    assert problem.startswith(f'admission.control_tags names "{tag}": ')
    assert problem.endswith("remove it from the list")
