"""What each source can get wrong before any value is checked."""

from __future__ import annotations

import pytest

from sidecar.settings.keys import keys
from sidecar.settings.sources import from_environment, from_file, from_sets, parse_value, show


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[ingress]\nbind = ipc\n", "line 2, column 8: not TOML: "),
        ("mode = ", "line 1, column 8: not TOML: "),
        ('mode = "relay"\n[log\n', "line 2, column 5: not TOML: "),
        ('mode = "relay"\nmode = "relay"\n', "line 2, column 15: not TOML: Cannot overwrite a value"),
        ("a = [1,", "line 1, column 8: not TOML: "),
    ],
)
def test_a_syntax_error_names_file_line_and_column(tmp_path, text, where):
    file = tmp_path / "x.toml"
    file.write_text(text)
    (problem,) = from_file(file).problems
    assert problem.startswith(f"file {file}, {where}")


def test_files_that_cannot_be_read(tmp_path):
    (missing,) = from_file(tmp_path / "none.toml").problems
    assert missing == f"file {tmp_path / 'none.toml'}: there is no such file; name an existing one with --config"
    (folder,) = from_file(tmp_path).problems
    assert "cannot be read: Is a directory" in folder
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'# caf\xe9\nmode = "relay"\n')
    (encoding,) = from_file(latin).problems
    assert encoding == f"file {latin}: byte 5 is not UTF-8; save the file as UTF-8"


def test_sections_and_keys_in_the_wrong_place(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text('log = "info"\nframing = "typed"\n[empty]\n[egress]\n[ingress.bind]\na = 1\n')
    source = from_file(file)
    assert [entry.key.dotted for entry in source.entries] == ["ingress.bind"]
    section, framing, empty = source.problems
    assert section.startswith(f'log = "info" (file {file}): a section, not a key; set one of its keys: level, format')
    assert framing.startswith(f'framing = "typed" (file {file}): unknown key; the nearest known one is egress.framing;')
    assert empty.startswith(f"empty (file {file}): unknown section; the known ones are ingress, egress, relay")


def test_environment_names_nest_with_two_underscores():
    source = from_environment(
        {"SIDECAR_EGRESS__STALL_TIMEOUT_S": "2.5", "SIDECAR_MODE": "relay", "OTHER_MODE": "x", "SIDECARS": "y"}
    )
    assert [(entry.key.dotted, entry.value, entry.origin) for entry in source.entries] == [
        ("egress.stall_timeout_s", 2.5, "environment SIDECAR_EGRESS__STALL_TIMEOUT_S"),
        ("mode", "relay", "environment SIDECAR_MODE"),
    ]
    assert source.problems == []


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("SIDECAR_INGRESS_BIND", "SIDECAR_INGRESS__BIND"),
        ("SIDECAR_INGRESS__BND", "SIDECAR_INGRESS__BIND"),
        ("SIDECAR_INGRESS.BIND", "SIDECAR_INGRESS__BIND"),
        ("SIDECAR_Ingress__Bind", "SIDECAR_INGRESS__BIND"),
        ("SIDECAR_LOG_LEVEL", "SIDECAR_LOG__LEVEL"),
        ("SIDECAR_MODEL", "SIDECAR_MODE"),
    ],
)
def test_an_unknown_variable_is_an_error_with_a_suggestion(variable, suggestion):
    source = from_environment({variable: "x"})
    assert source.entries == []
    (problem,) = source.problems
    assert problem == (
        f'{variable} = "x" (environment): unknown key; the nearest known one is {suggestion}; '
        "rename the variable or unset it"
    )


@pytest.mark.parametrize("variable", ["SIDECAR_SERVICE_HOST", "SIDECAR_PORT", "SIDECAR_PORT_9464_TCP_ADDR"])
def test_variables_of_a_kubernetes_service_are_explained(variable):
    (problem,) = from_environment({variable: "10.0.0.1"}).problems
    assert problem.startswith(f'{variable} = "10.0.0.1"')
    assert "enableServiceLinks: false" in problem


@pytest.mark.parametrize("argument", ["ingress.hwm", "=3", "  =3", ""])
def test_a_set_without_a_key_or_a_value(argument):
    (problem,) = from_sets([argument]).problems
    assert "expected section.key=value, such as --set ingress.hwm=64" in problem


@pytest.mark.parametrize(
    ("unknown", "suggestion"),
    [
        ("ingress.bnd", "ingress.bind"),
        ("engress.hwm", "egress.hwm"),
        ("grace_s", "shutdown.grace_s"),
        ("level", "log.level"),
        ("relay.socket-dir", "relay.socket_dir"),
        ("limits.max_inflight_bytes", "limits.inflight_bytes"),
        ("admission.duplicate_window", "admission.duplicate_window_s"),
        ("model.hash", "materialize.hash"),
        ("relay.ready_overrides.mrope_positions", "relay.ready_overrides"),
        ("Mode", "mode"),
        ("modes", "mode"),
        ("x", ""),
    ],
)
def test_the_nearest_key(unknown, suggestion):
    (problem,) = from_sets([f"{unknown}=1"]).problems
    assert problem.startswith(f'--set {unknown} = "1" (--set): unknown key; the nearest known one is {suggestion}')


def test_a_value_is_toml_where_it_parses():
    hwm, path = keys()["ingress.hwm"], keys()["model.path"]
    assert parse_value("64", hwm) == 64
    assert parse_value("sixty", hwm) == "sixty"
    assert parse_value('"64"', hwm) == "64"
    assert parse_value("64", path) == "64"
    assert parse_value('"64"', path) == "64"
    assert parse_value("1\nx = 2", hwm) == "1\nx = 2"


def test_a_long_value_is_shortened():
    assert show("x" * 500) == '"' + "x" * 75 + " ..."
    assert len(show(["x"] * 500)) == 80
