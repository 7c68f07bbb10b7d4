"""The rows of `print-config` and the generated file of defaults."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.settings import Settings, describe, load, render_toml
from sidecar.settings.keys import keys, to_toml

CONFIG = Path(__file__).parents[2] / "config" / "sidecar.toml"


def test_the_file_in_the_repository_is_the_generated_one():
    assert CONFIG.read_text() == render_toml(), "write render_toml() to config/sidecar.toml"


def test_the_file_holds_every_key_and_only_defaults():
    loaded = load(CONFIG, {}, [])
    assert loaded.settings == Settings()
    text = CONFIG.read_text()
    for key in keys().values():
        section = text.partition(f"\n[{key.section}]\n")[2].partition("\n[")[0] if key.section else text
        assert re.search(rf"^#?{key.name} = .", section, re.MULTILINE), key.dotted


def test_the_commented_keys_are_examples_that_work():
    text = re.sub(r"^#(\w+ = )", r"\1", CONFIG.read_text(), flags=re.MULTILINE)
    document = tomllib.loads(text)
    assert all(key.name in (document[key.section] if key.section else document) for key in keys().values())
    for side in ("ingress", "egress"):
        del document[side]["bind"]
        document[side]["connect"] = f"tcp://127.0.0.1:{len(side)}"
    document["security"]["allowed_client_keys"] = [document["security"]["ingress_server_key"]]
    sets = [
        f"{section}.{name}={to_toml(value)}"
        for section, table in document.items()
        if isinstance(table, dict)
        for name, value in table.items()
    ]
    assert load(None, {}, sets).settings.security.secret_key_file


def test_every_key_has_a_one_line_doc_and_an_expectation():
    for key in keys().values():
        assert key.doc, key.dotted
        assert "\n" not in key.doc
        assert key.expects, key.dotted
    assert len({key.variable for key in keys().values()}) == len(keys())


def test_rows():
    rows = {row.key: row for row in describe(load(None, {"SIDECAR_LOG__LEVEL": "debug"}, ["limits.frames=7"]))}
    assert list(rows) == list(keys())
    assert rows["log.level"][1:3] == ('"debug"', "environment SIDECAR_LOG__LEVEL")
    assert rows["limits.frames"][1:3] == ("7", "--set")
    assert rows["limits.inflight_bytes"].value == '"2 GiB"'
    assert rows["materialize.hoist_bytes"].value == "32768"
    assert rows["security.socket_mode"].value == "0o600"
    assert rows["engine.max_model_len"][1:3] == ("-", "default")
    assert rows["engine.role"].doc == "the engine's part in disaggregated serving"


def test_rows_are_valid_settings_again():
    first = load(
        None,
        {},
        [
            "relay.ready_overrides={mrope_positions = false}",
            "limits.message_bytes=1025",
            "limits.inflight_bytes=3 TiB",
            "admission.shared_memory_pattern='^a\\d$'",
            "shutdown.grace_s=2.5",
        ],
    )
    again = load(None, {}, [f"{row.key}={row.value}" for row in describe(first) if row.value != "-"])
    assert again.settings == first.settings


_PLAIN = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(_PLAIN)
def test_values_survive_toml(value):
    assert tomllib.loads(f"value = {to_toml(value)}")["value"] == value


@pytest.mark.parametrize(
    ("value", "text"), [(r"^\d$", r"'^\d$'"), ("a'\\", '"a\'\\\\"'), (2.0, "2"), (1e300, "1e+300"), ((), "[]")]
)
def test_toml_spelling(value, text):
    assert to_toml(value) == text
