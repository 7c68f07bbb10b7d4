"""A generate request as spans: every field's type as the engine decodes it, every boundary of the array."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest

from sidecar.errors import Reason, Rejection
from sidecar.wire.request import RequestView, field_is_well_formed, read_request, read_rid
from sidecar.wire.tokenspeed import REQUEST_MIN_FIELDS, Request
from tests.build import image_request, request
from tests.hostile.case import spoilt

TOO_LATE = b"\xc7\x0c\xff" + struct.pack(">Iq", 0, 2**62)


def read(fields: Any, *aux: bytes, depth: int = 32) -> RequestView:
    payload = fields if isinstance(fields, bytes) else msgpack.packb(fields)
    return read_request(payload, "r", aux, max_items=8, max_depth=depth)


def refused(fields: Any, *aux: bytes, depth: int = 32) -> Rejection:
    with pytest.raises(Rejection) as caught:
        read(fields, *aux, depth=depth)
    return caught.value


@pytest.mark.parametrize("count", range(REQUEST_MIN_FIELDS, 26))
def test_short_arrays(count: int) -> None:
    view = read(request(ids=[1, 2], count=count))
    assert len(view.array) == count
    assert view.ids is not None
    assert view.ids.tolist() == [1, 2]
    assert view.integer(Request.LOGPROB_START_LEN) == -1
    assert view.flag(Request.STREAM) is False
    assert view.text(Request.VALIDATION_ERROR) is None
    assert view.integer(Request.BOOTSTRAP_ROOM) is None


def test_what_the_fields_hold() -> None:
    view = read(
        request(
            ids=[1],
            unpadded=[2, 3],
            error="no",
            stream=True,
            bootstrap_host="host",
            bootstrap_room=2**64 - 1,
            logprob_start_len=-(2**63),
            tail=["later", [1]],
        )
    )
    assert view.unpadded is not None
    assert (view.unpadded.tolist(), view.media) == ([2, 3], None)
    assert (view.text(Request.VALIDATION_ERROR), view.text(Request.BOOTSTRAP_HOST)) == ("no", "host")
    assert (view.flag(Request.STREAM), view.flag(Request.RETURN_LOGPROB)) == (True, False)
    assert view.integer(Request.BOOTSTRAP_ROOM) == 2**64 - 1
    assert view.integer(Request.LOGPROB_START_LEN) == -(2**63)
    assert len(view.array) == 27


def test_long_headers() -> None:
    packed = msgpack.packb(request(ids=[1], count=6))
    for head in (b"\xdc\0\6", b"\xdd\0\0\0\6"):
        assert len(read(head + packed[1:]).array) == 6
        assert len(read_request(memoryview(head + packed[1:]), "r", max_items=1, max_depth=32).array) == 6


@pytest.mark.parametrize("count", [2, 5])
def test_too_few_fields(count: int) -> None:
    error = refused(request(count=count))
    assert error.reason is Reason.MALFORMED_REQUEST
    assert f"has {count} fields; the engine needs 6" in error.message


@pytest.mark.parametrize("tag", ["TokenizedEmbeddingReqInput", "tokenizedGenerateReqInput", "", "x" * 25])
def test_another_tag(tag: str) -> None:
    assert "the tag is not TokenizedGenerateReqInput" in refused([tag, *request()[1:]]).message


@pytest.mark.parametrize("junk", [b"\0", b"\xc0", b"\xc1", b"\x90" * 100])
def test_bytes_after_the_array(junk: bytes) -> None:
    payload = msgpack.packb(image_request())
    assert f"{len(junk)} bytes follow the request, which ends at byte {len(payload)}" in refused(payload + junk).message


def test_every_truncation_is_refused() -> None:
    payload = msgpack.packb(request(ids=[1, 300], bootstrap_host="h", input_extra_infos=[{"a": 1}], tail=["x"]))
    for length in range(3, len(payload)):
        assert refused(payload[:length]).reason is Reason.MALFORMED_REQUEST


def test_depth() -> None:
    fits: Any = "x"
    for _ in range(32):
        fits = [fits]
    read(request(tail=[fits]))
    error = refused(request(tail=[[fits]]))
    assert (error.reason, "limits.nesting" in error.message) == (Reason.TOO_LARGE, True)
    assert refused(request(tail=[[[1]]]), depth=1).reason is Reason.TOO_LARGE


def test_an_absurd_number_of_fields() -> None:
    payload = b"\xdd\0\x04\0\1" + msgpack.packb(request())[3:] + b"\xc0" * ((1 << 18) + 1 - 25)
    assert refused(payload).reason is Reason.TOO_LARGE


STR, INT, FLOAT, BOOL, NIL, LIST, MAP, BIN = "x", 5, 1.5, True, None, [1], {"a": 1}, b"x"
EVERYTHING = {"str": STR, "int": INT, "float": FLOAT, "bool": BOOL, "nil": NIL, "list": LIST, "map": MAP, "bin": BIN}
TAKES = {
    "http_worker_ipc": {"str", "nil"},
    "input_text": {"str", "nil"},
    "input_ids": {"list", "nil"},
    "sampling_params": {"list"},
    "return_logprob": {"bool"},
    "logprob_start_len": {"int"},
    "top_logprobs_num": {"int"},
    "token_ids_logprob": {"list", "nil"},
    "stream": {"bool"},
    "input_embeds": {"list", "nil"},
    "session_params": {"nil"},
    "custom_logit_processor": {"str", "nil"},
    "return_hidden_states": {"bool"},
    "created_time": {"int", "float"},
    "bootstrap_host": {"str", "nil"},
    "bootstrap_port": {"int", "nil"},
    "bootstrap_room": {"int", "nil"},
    "input_multi_ids": {"nil"},
    "input_extra_infos": {"nil"},
    "input_ids_unpadded": {"list", "nil"},
    "validation_error": {"str", "nil"},
    "data_parallel_rank": {"int", "nil"},
}


@pytest.mark.parametrize(("name", "takes"), TAKES.items())
def test_every_type_in_every_field(name: str, takes: set[str]) -> None:
    for kind, value in EVERYTHING.items():
        fields = request(ids=[1])
        fields[Request[name.upper()]] = value
        if kind in takes:
            read(fields)
        else:
            error = refused(fields)
            assert error.reason is Reason.MALFORMED_REQUEST
            assert f"field {Request[name.upper()].value} ({name})" in error.message


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("token_ids_logprob", [[], [1, -1, 2**64 - 1]], [[1.0], [True], [None], ["1"], [[1]]]),
        ("input_multi_ids", [[], [[]], [[1], [2, 3]]], [[1], [["a"]], [[1.5]], [None], [[True]], [[[1]]]]),
        (
            "input_extra_infos",
            [[], [{}], [{"a": {"b": [1.5, None, b"x"]}}]],
            [[1], [[]], [None], [{1: 2}], [{"a": {1: 2}}]],
        ),
        (
            "input_embeds",
            [[], [[0.5, 1], [2]], [None, "x", {"a": 1}]],
            [[{1: 2}], [msgpack.ExtType(3, b"x")], [[msgpack.ExtType(1, b"")]]],
        ),
        (
            "session_params",
            [[], [None], ["a", "b", 3, True], [None, None, None, None, "more"]],
            [[1], ["a", 2], [None, None, 1.5], [None, None, "1"], [None, None, None, 1]],
        ),
    ],
)
def test_what_nested_fields_hold(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        fields = request(ids=[1])
        fields[Request[name.upper()]] = value
        read(fields)
    for value in bad:
        fields = request(ids=[1])
        fields[Request[name.upper()]] = value
        error = refused(fields)
        assert error.reason is Reason.MALFORMED_REQUEST
        assert name in error.message


@pytest.mark.parametrize("text", [b"\xa1\xff", b"\xa2\xc0\x80", b"\xa3\xed\xa0\x80", b"\xd9\2\xc3("])
@pytest.mark.parametrize(
    "name", ["http_worker_ipc", "input_text", "custom_logit_processor", "bootstrap_host", "validation_error"]
)
def test_strings_that_are_not_utf8(name: str, text: bytes) -> None:
    assert f"({name}) is not UTF-8" in refused(spoilt(request(ids=[1]), **{name: text})).message


@pytest.mark.parametrize("name", ["input_embeds", "input_extra_infos"])
@pytest.mark.parametrize("value", [TOO_LATE, b"\xd6\xff\0\0\0\1", b"\xa1\xff", b"\xd4\5\0"])
def test_values_that_only_a_lenient_decoder_takes(name: str, value: bytes) -> None:
    assert "cannot be decoded" in refused(spoilt(request(ids=[1]), **{name: b"\x91\x81\xa1a" + value})).message


def test_a_form_that_has_passed_is_still_held_to_what_its_fields_hold() -> None:
    """Types are checked once for a sequence of lead bytes; contents always."""
    for _ in range(3):
        read(request(ids=[1], token_ids_logprob=[1]))
        assert "no integer" in refused(request(ids=[1], token_ids_logprob=["x"])).message
        read(request(ids=[1], bootstrap_host="h"))
        assert "UTF-8" in refused(spoilt(request(ids=[1]), bootstrap_host=b"\xa1\xff")).message
        read(request(ids=[1], stream=True))
        assert "stream" in refused(request(ids=[1], stream=1)).message


def test_what_is_wrong_with_media_comes_last() -> None:
    broken = image_request(stream=5)
    broken[Request.MULTIMODAL_INPUTS] = 5
    assert "stream" in refused(broken).message
    assert refused(msgpack.packb(request(mm=5)) + b"\0").reason is Reason.MALFORMED_REQUEST
    assert refused(request(mm=5)).reason is Reason.MALFORMED_MULTIMODAL


@pytest.mark.parametrize("rid", ["", "r", "x" * 31, "x" * 32, "x" * 300, "é" * 100, "\0", "r" * 70_000])
def test_rids(rid: str) -> None:
    payload = msgpack.packb(request(rid))
    found, start, end = read_rid(payload)
    assert (found, payload[start:end]) == (rid, msgpack.packb(rid))
    assert read_rid(memoryview(payload))[0] == rid


def test_a_rid_is_read_whatever_follows() -> None:
    head = msgpack.packb(request("the-rid"))
    at = head.index(b"the-rid") + 7
    for rest in (b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000, b"\xff" * 10):
        assert read_rid(head[:at] + rest)[0] == "the-rid"
    assert read_rid(b"\xdd\xff\xff\xff\xff" + head[3:])[0] == "the-rid"
    assert read_rid(b"\xdc\xff\xff" + head[3:])[0] == "the-rid"
    assert read_rid(msgpack.packb(["AnotherTag", "rid"]))[0] == "rid"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x91\xa1x",
        b"\x92\1\xa1x",
        b"\x92\xa1x\5",
        b"\x92\xa1x\xc0",
        b"\x92\xa1x\x91\xa1y",
        b"\x92\xa1x\xc4\1y",
        b"\x92\xa1x\xa1\xff",
        b"\x92\xa1x\xa5y",
        b"\x92\xa1x\xdb\xff\xff\xff\xff",
        b"\x92",
        b"\xdc",
        b"\xdd\0\0",
        b"\x81\xa1x\xa1y",
        b"\xa1x",
        b"\x92\xa9x",
    ],
)
def test_rids_that_cannot_be_read(payload: bytes) -> None:
    assert read_rid(payload)[0] is None
    assert read_rid(memoryview(payload))[0] is None


@pytest.mark.parametrize(
    ("field", "span", "good"),
    [
        (Request.STREAM, b"\xc3", True),
        (Request.STREAM, b"\x01", False),
        (Request.BOOTSTRAP_HOST, b"\xa1h", True),
        (Request.BOOTSTRAP_HOST, b"\xa1\xff", False),
        (Request.BOOTSTRAP_HOST, b"\xc0", True),
        (Request.BOOTSTRAP_PORT, b"\xcd\x23\x28", True),
        (Request.BOOTSTRAP_PORT, b"\xcb" + b"\0" * 8, False),
        (Request.BOOTSTRAP_ROOM, b"\xcf" + b"\xff" * 8, True),
        (Request.HTTP_WORKER_IPC, b"\xc4\1x", False),
    ],
)
def test_single_fields(field: Request, span: bytes, good: bool) -> None:
    assert field_is_well_formed(field, span) is good
