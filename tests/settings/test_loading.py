"""Precedence, pairs, validation, and the one error that holds all problems."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from sidecar.errors import ConfigError
from sidecar.settings import Egress, Ingress, Loaded, Settings, SettingsError, load

RELAY = ["mode=relay", "relay.frontend_handshake=ipc:///tmp/w", "relay.engine_handshake=tcp://127.0.0.1:30001"]


def loads(text: str, tmp_path: Path, *sets: str, **env: str) -> Loaded:
    file = tmp_path / "sidecar.toml"
    file.write_text(text)
    return load(file, env, sets)


def problems(*sets: str, env: dict[str, str] | None = None, file: Path | None = None) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load(file, env or {}, sets)
    assert isinstance(caught.value, ConfigError)
    assert caught.value.exit_code == 3
    return caught.value.problems


def test_defaults_are_those_of_the_contract():
    settings = load(None, {}, []).settings
    assert settings == Settings()
    assert settings.mode == "push-pull"
    assert settings.ingress.bind == "ipc:///tmp/sidecar/ingress.sock"
    assert settings.egress.bind == "ipc:///tmp/sidecar/scheduler.sock"
    assert settings.ingress.connect is settings.egress.connect is None
    assert (settings.ingress.hwm, settings.egress.hwm) == (8, 8)
    assert (settings.ingress.framing, settings.egress.framing) == ("native", "native")
    assert settings.egress.stall_timeout_s == 10
    relay = settings.relay
    assert (relay.frontend_handshake, relay.engine_handshake) == (None, None)
    assert (relay.socket_dir, relay.ready_overrides, relay.observe_outputs) == ("/tmp/sidecar", "auto", True)
    model = settings.model
    assert (model.path, model.image_placeholder_ids, model.trust_remote_code) == (
        "config/models/qwen3_5",
        None,
        False,
    )
    engine = settings.engine
    assert (engine.kind, engine.role, engine.language_model_only) == ("tokenspeed", "colocated", False)
    assert (engine.max_model_len, engine.output_logprobs, engine.finalize_sampling) == (None, False, "auto")
    fill = settings.materialize
    assert (fill.upstream, fill.mrope_ownership, fill.mrope_reference) == ("complete", "any-field", "engine")
    assert (fill.device, fill.hash, fill.trust_client_hash) == ("auto", "canonical", True)
    assert (fill.hoist_bytes, fill.expand_placeholders) == (32768, True)
    admission = settings.admission
    assert (admission.text_requests, admission.token_ids, admission.duplicate_window_s) == ("forward", "strict", 30)
    assert admission.control_tags == (
        "AbortReq",
        "FlushCacheReqInput",
        "PauseSchedulerReqInput",
        "ResumeSchedulerReqInput",
        "IsSchedulerPausedReqInput",
        "IsSleepingReqInput",
        "GetInternalStateReq",
        "ProfileReq",
    )
    assert (admission.shared_memory, admission.unlink_refused) == ("check", True)
    assert admission.shared_memory_pattern == "^(psm|smg|tokenspeed)[A-Za-z0-9_.-]*$"
    limits = settings.limits
    assert (limits.message_bytes, limits.frames, limits.items, limits.nesting) == (2**30, 4096, 1024, 32)
    assert (limits.inflight_bytes, limits.inflight_requests) == (2**31, 4096)
    assert (settings.shutdown.grace_s, settings.shutdown.spill_dir, settings.quarantine.dir) == (10, None, None)
    assert settings.security.allow_remote is False
    assert settings.admin.bind == "127.0.0.1:9464"
    assert (settings.log.level, settings.log.format) == ("info", "text")


def test_settings_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        Settings().ingress.hwm = 9  # type: ignore[misc]


def test_precedence_and_origins(tmp_path):
    text = '[ingress]\nhwm = 1\n[egress]\nhwm = 1\n[limits]\nframes = 1\n[log]\nlevel = "debug"\n'
    loaded = loads(
        text,
        tmp_path,
        "limits.frames=3",
        SIDECAR_EGRESS__HWM="2",
        SIDECAR_LIMITS__FRAMES="2",
        SIDECAR_MODE="push-pull",
        HOME="/root",
    )
    settings, origins = loaded.settings, loaded.origins
    assert (settings.ingress.hwm, settings.egress.hwm, settings.limits.frames) == (1, 2, 3)
    assert origins["ingress.hwm"] == f"file {tmp_path / 'sidecar.toml'}"
    assert origins["egress.hwm"] == "environment SIDECAR_EGRESS__HWM"
    assert origins["mode"] == "environment SIDECAR_MODE"
    assert origins["limits.frames"] == "--set"
    assert origins["limits.items"] == "default"
    assert loaded.value("limits.frames") == 3
    assert loaded.value("mode") == "push-pull"


def test_the_last_of_two_sets_counts():
    assert load(None, {}, ["ingress.hwm=1", "ingress.hwm=2"]).settings.ingress.hwm == 2


@pytest.mark.parametrize("side", ["ingress", "egress"])
def test_one_of_a_pair_drops_the_default_of_the_other(side):
    connected = getattr(load(None, {}, [f"{side}.connect=ipc:///tmp/x.sock"]).settings, side)
    assert (connected.bind, connected.connect, connected.address) == (None, "ipc:///tmp/x.sock", "ipc:///tmp/x.sock")
    bound = getattr(load(None, {}, [f"{side}.bind=ipc:///tmp/y.sock"]).settings, side)
    assert (bound.bind, bound.connect, bound.address) == ("ipc:///tmp/y.sock", None, "ipc:///tmp/y.sock")


def test_a_stronger_source_overrides_the_whole_pair(tmp_path):
    loaded = loads('[egress]\nbind = "ipc:///tmp/a"\n', tmp_path, SIDECAR_EGRESS__CONNECT="ipc:///tmp/b")
    assert (loaded.settings.egress.bind, loaded.settings.egress.connect) == (None, "ipc:///tmp/b")
    assert loaded.origins["egress.connect"] == "environment SIDECAR_EGRESS__CONNECT"
    assert loaded.origins["egress.bind"] == "default"
    again = loads('[egress]\nconnect = "ipc:///tmp/a"\n', tmp_path, "egress.bind=ipc:///tmp/b")
    assert (again.settings.egress.bind, again.settings.egress.connect) == ("ipc:///tmp/b", None)


@pytest.mark.parametrize("side", ["ingress", "egress"])
def test_both_of_a_pair_in_one_source_is_an_error(side):
    (problem,) = problems(f"{side}.bind=ipc:///tmp/a", f"{side}.connect=ipc:///tmp/b")
    assert problem == (
        f'{side}.bind = "ipc:///tmp/a" and {side}.connect = "ipc:///tmp/b" (--set): '
        "a socket either binds or connects; remove one of the two"
    )


def test_a_pair_is_kept_by_sections_that_are_made_by_hand():
    assert Ingress(connect="ipc:///tmp/x").bind is None
    assert Egress(bind="ipc:///tmp/x").connect is None
    with pytest.raises(ValueError, match="neither bind nor connect"):
        _ = Ingress(bind=None).address


def test_egress_framing_follows_ingress_framing():
    loaded = load(None, {}, ["ingress.framing=typed"])
    assert loaded.settings.egress.framing == "typed"
    assert loaded.origins["egress.framing"] == "default, as ingress.framing"
    assert load(None, {}, ["ingress.framing=typed", "egress.framing=native"]).settings.egress.framing == "native"
    assert load(None, {}, ["egress.framing=typed"]).settings.ingress.framing == "native"


def test_relay_mode_is_typed_on_both_sides():
    loaded = load(None, {}, [*RELAY, "ingress.framing=native"])
    assert (loaded.settings.ingress.framing, loaded.settings.egress.framing) == ("typed", "typed")
    assert loaded.origins["ingress.framing"] == "relay mode"


def test_three_typos_give_three_errors_with_the_right_suggestions(tmp_path):
    file = tmp_path / "sidecar.toml"
    file.write_text('[ingres]\nbind = "ipc:///tmp/a"\n[limits]\nmesage_bytes = 3\n[engine]\nmax_len = 5\n')
    found = problems(file=file)
    assert found == (
        f'ingres.bind = "ipc:///tmp/a" (file {file}): unknown key; the nearest known one is ingress.bind; '
        "rename or remove it",
        f"limits.mesage_bytes = 3 (file {file}): unknown key; the nearest known one is limits.message_bytes "
        "(the keys of limits: message_bytes, frames, items, nesting, inflight_bytes, inflight_requests); "
        "rename or remove it",
        f"engine.max_len = 5 (file {file}): unknown key; the nearest known one is engine.max_model_len "
        "(the keys of engine: kind, role, language_model_only, max_model_len, output_logprobs, "
        "finalize_sampling); rename or remove it",
    )


def test_problems_of_all_sources_and_kinds_come_together(tmp_path):
    file = tmp_path / "sidecar.toml"
    file.write_text('mode = "relay"\n[log]\nlevl = "info"\n[ingress]\nhwm = "8"\n')
    with pytest.raises(SettingsError) as caught:
        load(file, {"SIDECAR_LOG__FORMT": "json"}, ["nonsense", "admission.token_ids=lax"])
    text = str(caught.value)
    assert text.startswith("7 errors in the configuration:\n  - ")
    for part in (
        "log.levl",
        "SIDECAR_LOG__FORMT",
        "--set",
        "ingress.hwm",
        "admission.token_ids",
        "relay.frontend_handshake is not set",
        "relay.engine_handshake is not set",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("mode=pull", 'mode = "pull" (--set): expected "push-pull" or "relay"'),
        ("ingress.hwm=0", "ingress.hwm = 0 (--set): expected a number of messages, at least 1"),
        ("ingress.hwm=true", "ingress.hwm = true (--set): expected a number of messages"),
        ("ingress.hwm=8.0", "ingress.hwm = 8 (--set): expected a number of messages"),
        ("ingress.bind=", 'ingress.bind = "" (--set): expected an address'),
        ("egress.stall_timeout_s=0", "expected a number of seconds above 0, up to a year"),
        ("egress.stall_timeout_s=inf", "expected a number of seconds above 0, up to a year"),
        ("shutdown.grace_s=nan", "shutdown.grace_s = nan (--set): expected a number of seconds from 0"),
        ("engine.kind=trtllm", 'expected "tokenspeed", "vllm" or "sglang"'),
        ("engine.max_model_len=2", "expected a number of tokens, at least 3"),
        ("relay.observe_outputs=yes", 'relay.observe_outputs = "yes" (--set): expected true or false'),
        ("relay.observe_outputs=1", "relay.observe_outputs = 1 (--set): expected true or false"),
        ("relay.ready_overrides=none", 'expected "auto" or a table such as {mrope_positions = false}'),
        ("relay.ready_overrides={at = 2020-01-01}", 'expected "auto" or a table'),
        ("model.image_placeholder_ids=[]", "expected a non-empty list of token ids"),
        ("model.image_placeholder_ids=[true]", "expected a non-empty list of token ids"),
        ("materialize.device=gpu", 'expected "auto", "cpu", "cuda" or "cuda:1"'),
        ("materialize.hoist_bytes=-1", "expected a number of bytes, or a size"),
        ("admission.control_tags=AbortReq", 'expected a list of names, such as ["AbortReq"]'),
        (
            "admission.shared_memory_pattern=(",
            "expected a regular expression (missing ), unterminated subpattern at position 0)",
        ),
        ("limits.message_bytes=3 furlongs", "expected a number of bytes above 0, or a size"),
        ("limits.message_bytes=0.5 B", "expected a number of bytes above 0, or a size"),
        ("limits.message_bytes=true", "limits.message_bytes = true (--set): expected a number of bytes"),
        ("limits.nesting=3", "expected a whole number from 8 to 512"),
        ("limits.inflight_requests=0", "expected a whole number, at least 1"),
        ("security.socket_mode=1000", "expected an octal file mode"),
        ("security.socket_mode=0x", "expected an octal file mode"),
        ("security.egress_server_key=short", "expected a CURVE public key"),
        ("admin.bind=9464", 'admin.bind = "9464" (--set): expected "host:port"'),
        ("admin.bind=::1:9464", "expected "),
        ("admin.bind=localhost:99999", "(no port)"),
        ("log.level=loud", 'expected "debug", "info", "warning" or "error"'),
    ],
)
def test_a_bad_value_names_key_value_expectation_and_remedy(argument, expected):
    (problem,) = problems(argument)
    assert problem.startswith(argument.partition("=")[0])
    assert expected in problem
    assert "; correct it or remove it (default: " in problem


def test_a_bad_value_hides_only_the_cross_checks_that_depend_on_it():
    found = problems("mode=relay", "relay.frontend_handshake=", "security.allow_remote=maybe")
    assert [problem.split(" ")[0] for problem in found] == [
        "relay.frontend_handshake",
        "security.allow_remote",
        "relay.engine_handshake",
    ]


def test_a_bad_leader_is_reported_once():
    (problem,) = problems("ingress.framing=raw")
    assert problem.startswith('ingress.framing = "raw"')


@pytest.mark.parametrize(
    ("argument", "dotted", "value"),
    [
        ("limits.inflight_bytes=256 MiB", "limits.inflight_bytes", 2**28),
        ("limits.inflight_bytes=1.5GiB", "limits.inflight_bytes", 3 * 2**29),
        ("limits.inflight_bytes=10 mb", "limits.inflight_bytes", 10**7),
        ("limits.inflight_bytes=9007199254740993 B", "limits.inflight_bytes", 2**53 + 1),
        ("limits.inflight_bytes=4096", "limits.inflight_bytes", 4096),
        ("materialize.hoist_bytes=0", "materialize.hoist_bytes", 0),
        ("shutdown.grace_s=0", "shutdown.grace_s", 0.0),
        ("shutdown.grace_s=1.5", "shutdown.grace_s", 1.5),
        ("security.socket_mode=0o660", "security.socket_mode", 0o660),
        ("security.socket_mode=0660", "security.socket_mode", 0o660),
        ("materialize.device=cuda:3", "materialize.device", "cuda:3"),
        ("model.path=2024", "model.path", "2024"),
        ("model.path='a b'", "model.path", "a b"),
        ("model.path=true", "model.path", "true"),
        ("model.path=a\nb = 3", "model.path", "a\nb = 3"),
        ("model.image_placeholder_ids=[1, 2]", "model.image_placeholder_ids", (1, 2)),
        ("admission.control_tags=[]", "admission.control_tags", ()),
        ("relay.ready_overrides={a = [1, {b = true}]}", "relay.ready_overrides", {"a": [1, {"b": True}]}),
        ("admin.bind=[::1]:0", "admin.bind", "[::1]:0"),
    ],
)
def test_values_from_a_command_line(argument, dotted, value):
    loaded = load(None, {}, [argument])
    assert loaded.value(dotted) == value
    assert type(loaded.value(dotted)) is type(value)


def test_ready_overrides_may_be_a_table_in_the_file(tmp_path):
    loaded = loads("[relay.ready_overrides]\nmrope_positions = false\n", tmp_path)
    assert loaded.settings.relay.ready_overrides == {"mrope_positions": False}
