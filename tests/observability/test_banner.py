"""What the start-up banner states, for several configurations."""

from __future__ import annotations

import logging

import pytest

from sidecar.model import ModelSpec
from sidecar.observability.banner import announce, banner
from sidecar.settings import load

QWEN = ModelSpec(
    model_type="qwen3_5",
    architectures=("Qwen3_5ForConditionalGeneration",),
    multimodal=True,
    image_token_id=248056,
    video_token_id=248057,
    spatial_merge_size=2,
    mrope_family="qwen3_5",
)


def rows(*sets: str, model: ModelSpec = QWEN, device: str = "cpu") -> dict[str, str]:
    return banner(load(None, {}, sets).settings, model, device)


def test_it_states_model_family_placeholders_sockets_device_and_limits():
    stated = rows("egress.connect=ipc:///run/engine.sock", "egress.hwm=64", device="cuda:1")
    assert stated["model"] == "config/models/qwen3_5 (qwen3_5, Qwen3_5ForConditionalGeneration)"
    assert stated["family"] == "M-RoPE as qwen3_5, spatial merge size 2"
    assert stated["placeholders"] == "image 248056, video 248057"
    assert stated["ingress"] == "binds ipc:///tmp/sidecar/ingress.sock, native framing, high-water mark 8"
    assert stated["egress"] == "connects to ipc:///run/engine.sock, native framing, high-water mark 64"
    assert stated["device"] == "cuda:1 (materialize.device = auto)"
    assert stated["limits"] == ("2 GiB and 4096 requests in flight; 1 GiB, 4096 frames and 1024 items a message")
    assert stated["admin"] == "http://127.0.0.1:9464/"


def test_relay_mode_names_both_handshakes_instead_of_two_sockets():
    stated = rows(
        "mode=relay",
        "relay.frontend_handshake=ipc:///run/worker",
        "relay.engine_handshake=tcp://127.0.0.1:30001",
        "relay.socket_dir=/run/sidecar",
    )
    assert "ingress" not in stated
    assert stated["frontend"] == "dials ipc:///run/worker"
    assert stated["scheduler"] == "handshake on tcp://127.0.0.1:30001, sockets in /run/sidecar"


@pytest.mark.parametrize(
    ("model", "family", "placeholders"),
    [
        (ModelSpec("llama"), "text only", "none"),
        (ModelSpec("kimi_k25", multimodal=True, image_token_id=163605), "no M-RoPE", "image 163605"),
        (
            ModelSpec("new_vl", multimodal=True, mrope_unknown=True),
            "M-RoPE of new_vl is not known: requests with media are refused",
            "none",
        ),
    ],
)
def test_models_without_mrope(model, family, placeholders):
    stated = rows(model=model)
    assert (stated["family"], stated["placeholders"]) == (family, placeholders)


@pytest.mark.parametrize(
    ("value", "shown"), [("1000", "1000 bytes"), ("1536 KiB", "1.5 MiB"), ("3 KiB", "3 KiB"), ("2 GiB", "2 GiB")]
)
def test_sizes_are_in_the_largest_unit_that_fits(value, shown):
    assert rows(f"limits.inflight_bytes={value}", f"limits.message_bytes={value}")["limits"].startswith(f"{shown} and")


def test_people_get_a_line_a_row_and_machines_one_entry(caplog):
    caplog.set_level(logging.INFO)
    log, stated = logging.getLogger("sidecar"), rows()
    announce(log, stated, "text")
    assert len(caplog.records) == len(stated)
    assert caplog.records[0].getMessage().startswith("sidecar       0.")
    caplog.clear()
    announce(log, stated, "json")
    assert [entry.banner for entry in caplog.records] == [stated]
