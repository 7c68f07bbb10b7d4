"""A refused request as it leaves: decodable whatever was wrong with it."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from sidecar.admission.sampling import DEFAULTS
from sidecar.dialects.rejected import rejected_request
from sidecar.wire.framing import Framing
from sidecar.wire.request import default_field
from sidecar.wire.tokenspeed import Request
from tests.build import NORMALIZED, image_request, request
from tests.hostile.case import spoilt

KEPT = {
    "http_worker_ipc": "ipc:///x",
    "stream": True,
    "bootstrap_host": "h",
    "bootstrap_port": 8998,
    "bootstrap_room": 2**63,
}


def rejected(message: Any, rid: str = "r", error: str = "why", framing: Framing = Framing.NATIVE) -> list[Any]:
    payload = message if isinstance(message, bytes) else msgpack.packb(message)
    out = rejected_request(payload, rid, error, framing)
    assert len(out) == (1 if framing is Framing.NATIVE else 2)
    fields: list[Any] = msgpack.unpackb(out[-1], strict_map_key=False)
    assert len(fields) == Request.VALIDATION_ERROR + 1
    return fields


@pytest.mark.parametrize("framing", Framing)
def test_what_is_kept_and_what_is_not(framing: Framing) -> None:
    everything = {
        **KEPT,
        "input_text": "secret",
        "return_logprob": True,
        "logprob_start_len": 3,
        "input_embeds": [[0.5]],
        "custom_logit_processor": "x",
        "data_parallel_rank": 1,
        "error": "before",
    }
    fields = rejected(request("rid", ids=[1, 2], unpadded=[1], mm=[[]], **everything), "rid", framing=framing)
    assert fields[:2] == ["TokenizedGenerateReqInput", "rid"]
    assert (fields[Request.INPUT_IDS], fields[Request.MULTIMODAL_INPUTS], fields[Request.INPUT_IDS_UNPADDED]) == (
        [],
        None,
        None,
    )
    assert fields[Request.VALIDATION_ERROR] == "why"
    assert fields[Request.SAMPLING_PARAMS] == list(NORMALIZED)
    for field in Request:
        name = field.name.lower()
        if name in KEPT:
            assert fields[field] == KEPT[name]
        elif field not in (
            Request.TAG,
            Request.RID,
            Request.INPUT_IDS,
            Request.SAMPLING_PARAMS,
            Request.VALIDATION_ERROR,
            Request.DATA_PARALLEL_RANK,
        ):
            assert fields[field] == msgpack.unpackb(default_field(field))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("http_worker_ipc", b"\5"),
        ("http_worker_ipc", b"\xa1\xff"),
        ("stream", b"\5"),
        ("bootstrap_host", b"\xc4\1x"),
        ("bootstrap_port", b"\xcb" + b"\0" * 8),
        ("bootstrap_room", b"\xa1x"),
        ("sampling_params", b"\xc0"),
        ("sampling_params", b"\x91\xa1x"),
        ("sampling_params", b"\x80"),
    ],
)
def test_what_is_malformed_becomes_the_default(name: str, data: bytes) -> None:
    fields = rejected(spoilt(request(**KEPT), **{name: data}))
    field = Request[name.upper()]
    default = DEFAULTS if field is Request.SAMPLING_PARAMS else default_field(field)
    assert fields[field] == msgpack.unpackb(default)
    others = [Request[other.upper()] for other in KEPT if other != name]
    assert [fields[other] for other in others] == [KEPT[other.name.lower()] for other in others]


def test_fields_up_to_the_damage_are_kept() -> None:
    broken = spoilt(request(**KEPT), bootstrap_host=b"\xc1")
    fields = rejected(broken)
    assert (fields[Request.STREAM], fields[Request.HTTP_WORKER_IPC]) == (True, "ipc:///x")
    assert fields[Request.BOOTSTRAP_PORT : Request.BOOTSTRAP_ROOM + 1] == [None, None]
    assert rejected(b"\x92\xa1x\xa1r")[Request.SAMPLING_PARAMS] == msgpack.unpackb(DEFAULTS)


def test_long_prompts_cost_no_field() -> None:
    fields = rejected(request(ids=[70_000] * 400_000, **KEPT))
    assert fields[Request.BOOTSTRAP_ROOM] == 2**63


@pytest.mark.parametrize("rid", ["", "\0", "é" * 70_000])
def test_any_rid_and_any_error(rid: str) -> None:
    fields = rejected(image_request(), rid, error="item 0: \ud800 x")
    assert (fields[Request.RID], fields[Request.VALIDATION_ERROR]) == (rid, "item 0: ? x")
