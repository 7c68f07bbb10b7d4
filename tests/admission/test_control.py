"""Control messages: what the engine's decoder and dispatcher take, and nothing else, passes."""

from __future__ import annotations

import contextlib
import pickle
import threading
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.admission import control
from sidecar.admission.control import Control, check_control, check_tags, parse_abort_list
from sidecar.errors import ConfigError, Reason, Rejection
from sidecar.settings.schema import DEFAULT_CONTROL_TAGS

DEFAULT = check_tags(DEFAULT_CONTROL_TAGS)
ALL = check_tags(control._MESSAGES)


def pack(*fields: object) -> bytes:
    return msgpack.packb(fields)


def refused(payload: bytes, allowed: frozenset[str] = ALL, reason: Reason = Reason.MALFORMED_REQUEST) -> str:
    with pytest.raises(Rejection) as caught:
        check_control(payload, allowed)
    assert caught.value.reason is reason
    return caught.value.message


@pytest.mark.parametrize("tag", [tag for tag in DEFAULT_CONTROL_TAGS if tag not in ("AbortReq", "ProfileReq")])
def test_default_messages_need_no_field(tag: str) -> None:
    for fields in ((), (None,), (None, None), ("rid", "ipc:///x"), (["a", "b"], None)):
        assert check_control(pack(tag, *fields), DEFAULT) == Control(tag, ())
    assert "rid" in refused(pack(tag, 5))
    assert "rid" in refused(pack(tag, ["a", 5]))
    assert "http_worker_ipc" in refused(pack(tag, None, b"x"))


def test_an_abort_names_its_rid() -> None:
    assert check_control(pack("AbortReq", "a", None), DEFAULT) == Control("AbortReq", ("a",))
    assert check_control(pack("AbortReq", ""), DEFAULT).rids == ("",)
    assert check_control(pack("AbortReq", "r" * 1_000_000), DEFAULT).rids == ("r" * 1_000_000,)
    assert check_control(memoryview(pack("AbortReq", "世", None, 7)), DEFAULT).rids == ("世",)


@pytest.mark.parametrize("rid", [None, ["a"], [], 5, b"a", {"a": 1}])
def test_an_abort_without_a_str_is_refused(rid: object) -> None:
    assert "AbortReq.rid (field 1)" in refused(pack("AbortReq", rid, None))
    assert "AbortReq ends before its field 1, rid" in refused(pack("AbortReq"))


VALID = [
    ("PauseSchedulerReqInput", None, None, "abort"),
    ("PauseSchedulerReqInput", None, None, "wait"),
    ("PauseSchedulerReqInput", None, None, "keep"),
    ("ProfileReq", None, None, 1),
    ("ProfileReq", None, None, 2, None, None, None, None, True),
    ("ProfileReq", "r", None, 1, "/tmp/out", 3, 5, ["CPU", "GPU"], True, None, False, "run-1"),
    ("SetInternalStateReq", None, None, {"a": [1, {"b": None}]}),
    ("ReleaseMemoryOccupationReqInput", None, None, ["weights"]),
    ("ResumeMemoryOccupationReqInput", None, None, None),
    ("InitWeightsUpdateGroupReqInput", None, None, "host", 1234, 0, 8),
    ("InitWeightsUpdateGroupReqInput", None, None, "host", 1234, 0, 8, "group", "nccl"),
    ("DestroyWeightsUpdateGroupReqInput", None, None),
    ("RebalanceExpertsReqInput", None, None),
    ("UpdateWeightsFromDistributedReqInput", None, None, ["w"], ["bfloat16"], [[2, 3], []], "group", True, None),
    ("UpdateWeightsFromMooncakeReqInput", None, None, 7, True, "v7"),
    ("UpdateWeightsFromTensorReqInput", None, None, [b"\x00"], None, False),
    ("UpdateWeightFromDiskReqInput", None, None, "/models/x", None, None),
]

INVALID = [
    ("PauseSchedulerReqInput", None, None, "stop"),
    ("PauseSchedulerReqInput", None, None, None),
    ("ProfileReq", None, None),
    ("ProfileReq", None, None, 3),
    ("ProfileReq", None, None, True),
    ("ProfileReq", None, None, 1.0),
    ("ProfileReq", None, None, "START_PROFILE"),
    ("ProfileReq", None, None, 1, 5),
    ("ProfileReq", None, None, 1, None, "3"),
    ("ProfileReq", None, None, 1, None, None, None, "CPU"),
    ("ProfileReq", None, None, 1, None, None, None, None, None),
    ("SetInternalStateReq", None, None),
    ("SetInternalStateReq", None, None, {1: 2}),
    ("SetInternalStateReq", None, None, []),
    ("ReleaseMemoryOccupationReqInput", None, None, "weights"),
    ("InitWeightsUpdateGroupReqInput", None, None, "host", "1234", 0, 8),
    ("InitWeightsUpdateGroupReqInput", None, None, "host", 1234, 0),
    ("UpdateWeightsFromDistributedReqInput", None, None, ["w"], ["bfloat16"], [[2.0]], "group", True, None),
    ("UpdateWeightsFromDistributedReqInput", None, None, ["w"], ["bfloat16"], [2], "group", True, None),
    ("UpdateWeightsFromDistributedReqInput", None, None, ["w"], ["bfloat16"], [[2]], "group", True),
    ("UpdateWeightsFromMooncakeReqInput", None, None, 7, 1, None),
    ("UpdateWeightsFromTensorReqInput", None, None, ["text"], None, False),
    ("UpdateWeightFromDiskReqInput", None, None, None),
]


@pytest.mark.parametrize("message", VALID)
def test_messages_with_the_engines_types_pass(message: tuple[object, ...]) -> None:
    tag = str(message[0])
    assert check_control(pack(*message), ALL) == Control(tag, ())
    if len(message) - 1 == len(control._MESSAGES[tag]):  # whole: later engines append fields
        assert check_control(pack(*message, None, {"new": 1.5}), ALL) == Control(tag, ())


@pytest.mark.parametrize("message", INVALID)
def test_other_types_are_refused_by_name(message: tuple[object, ...]) -> None:
    assert str(message[0]) in refused(pack(*message))


def test_profiles_that_end_the_engine_later_are_refused() -> None:
    by_stage = ("ProfileReq", None, None, 1, None, None)
    assert "num_steps is nil" in refused(pack(*by_stage, None, None, True))
    assert "num_steps is the int 0" in refused(pack(*by_stage, 0, None, True))
    assert "output_dir" in refused(pack("ProfileReq", None, None, 1, "a\0b"))
    profile = ("ProfileReq", None, None, 1, None, None, None, None, False, None, None)
    assert check_control(pack(*profile, "run 1"), DEFAULT)
    assert "profile_id" in refused(pack(*profile, "../run"))


def test_messages_name_tag_field_and_type() -> None:
    message = refused(pack("ProfileReq", None, None, 1, None, "3"))
    assert message == "ProfileReq.start_step (field 5) is a str of 1; expected an int or nil"
    assert "secret" not in refused(pack("ProfileReq", None, None, "secret"))


def test_only_named_tags_pass() -> None:
    for tag in ALL - DEFAULT:
        assert "admission.control_tags" in refused(pack(tag, None, None), DEFAULT)
    for tag in ("PickleWrapper", "TokenizedGenerateReqInput", "BatchTokenIDOut", "x" * 100_000):
        message = refused(pack(tag, b"\x80\x04."), ALL)
        assert "admission.control_tags" in message
        assert len(message) < 200
    assert "PickleWrapper" in refused(pack("PickleWrapper", b"\x80\x04."), ALL | {"PickleWrapper"})


def test_an_allow_list_names_only_messages_that_the_engine_handles() -> None:
    assert check_tags([]) == frozenset()
    assert check_tags(["UpdateWeightFromDiskReqInput"]) == {"UpdateWeightFromDiskReqInput"}
    with pytest.raises(ConfigError, match=r"admission.control_tags names PickleWrapper, which never passes"):
        check_tags([*DEFAULT_CONTROL_TAGS, "PickleWrapper"])
    with pytest.raises(ConfigError, match=r"admission.control_tags names AbortRequest, RpcReqInput;.*AbortReq"):
        check_tags(["RpcReqInput", "AbortReq", "AbortRequest"])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc0",
        b"\x80",
        b"\xa8AbortReq",
        b"\x90",
        b"\x91\x05",
        b"\x91\xc0",
        b"\xc1",
        b"\x93\xa8AbortReq",
        pack("AbortReq", "a", None)[:-1],
        pack("AbortReq", "a", None) + b"\xc0",
        pack("AbortReq", "a", None) * 2,
        b"\x92\xa8AbortReq\xa1\xff",
        b"\x93\xa8AbortReq\xa1a\xc1",
        b"\x94\xa8AbortReq\xa1a\xc0\xd4\x01\x00",
        b"\x94\xa8AbortReq\xa1a\xc0\xd4\x03\x00",
        b"\x94\xa8AbortReq\xa1a\xc0\x81\x80\x01",
        b"\x94\xb3SetInternalStateReq\xc0\xc0\x81\xa1a\xd6\xff\0\0\0\0",
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff\xa8AbortReq",
        b"\x93\xa8AbortReq\xdb\xff\xff\xff\xff",
        b"\x94\xa8AbortReq\xa1a\xc0\xdf\xff\xff\xff\xff",
        b"\x94\xa8AbortReq\xa1a\xc0\xc6\xff\xff\xff\xff",
        b"\x94\xa8AbortReq\xa1a\xc0" + b"\xdd\x7f\xff\xff\xff" * 50,
    ],
)
def test_hostile_bytes_are_refused(payload: bytes) -> None:
    refused(payload)


def test_no_claim_is_believed_before_its_bytes_are_there() -> None:
    head = b"\x94\xa8AbortReq\xa1a\xc0"
    nested = b"\xdd\x00\x0f\x00\x00" * 30  # 30 arrays in each other, each of 983,040 elements
    payload = head + nested + b"\xc0" * 1_000
    tracemalloc.start()
    try:
        refused(payload)
        with pytest.raises(Rejection):
            parse_abort_list(b"\xdd\xff\xff\xff\xff" + b"\xa1a" * 100)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_deep_nesting_is_refused_without_recursion() -> None:
    failures: list[str] = []

    def run() -> None:
        for depth in (control.MAX_DEPTH, 1_000, 100_000):
            for payload in (
                b"\x94\xa8AbortReq\xa1a\xc0" + b"\x91" * depth + b"\x01",
                b"\x91" * depth + b"\x01",
                b"\x94\xb3SetInternalStateReq\xc0\xc0\x81\xa1a" + b"\x81\x01" * depth + b"\x01",
            ):
                try:
                    check_control(payload, ALL)
                    failures.append(f"{depth} passed")
                except Rejection:
                    pass

    previous = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(previous)
    assert failures == []


def test_pickle_is_never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = pickle.dumps({"a": 1})
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("pickle.loads was called"))
    refused(bomb)
    refused(pack("PickleWrapper", bomb), ALL | {"PickleWrapper"})
    refused(pack("SetInternalStateReq", None, None, {"a": msgpack.ExtType(1, bomb)}))


def test_abort_lists() -> None:
    assert parse_abort_list(b"\x90") == ()
    assert parse_abort_list(pack("a", "", "世", "a")) == ("a", "", "世", "a")
    rids = tuple(f"chatcmpl-{i}" for i in range(10_000))
    assert parse_abort_list(memoryview(pack(*rids))) == rids


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\xc0", b"\xa1a", b"\x81\xa1a\xa1b", pack("a", 5), pack("a", None), pack(b"a"), pack(["a"]),
        b"\x91\xa1\xff", b"\x91\xa1a\xc0", b"\x92\xa1a", b"\x91\xd4\x03\x00", b"\x91\xdb\xff\xff\xff\xff",
    ],
)  # fmt: skip
def test_malformed_abort_lists(payload: bytes) -> None:
    with pytest.raises(Rejection) as caught:
        parse_abort_list(payload)
    assert caught.value.reason is Reason.MALFORMED_REQUEST


def test_an_abort_list_is_bounded() -> None:
    assert len(parse_abort_list(pack(*[""] * control.MAX_ABORT_RIDS))) == control.MAX_ABORT_RIDS
    with pytest.raises(Rejection, match="16385 rids; the limit is 16384") as caught:
        parse_abort_list(pack(*[""] * (control.MAX_ABORT_RIDS + 1)))
    assert caught.value.reason is Reason.TOO_LARGE


@given(st.lists(st.text(max_size=300), max_size=20))
def test_aborts_convert_between_the_framings(rids: list[str]) -> None:
    payload = control.encode_abort_list(rids)
    assert payload == pack(*rids)
    assert parse_abort_list(payload) == tuple(rids)
    for rid in rids:
        single = control.encode_abort_req(rid)
        assert single == pack("AbortReq", rid, None)
        assert check_control(single, DEFAULT) == Control("AbortReq", (rid,))


@given(st.binary(max_size=80), st.sampled_from(sorted(ALL)))
def test_any_bytes_end_in_a_verdict(data: bytes, tag: str) -> None:
    for payload in (data, b"\x98" + msgpack.packb(tag) + data):
        for parse in (lambda raw: check_control(raw, ALL), parse_abort_list):
            with contextlib.suppress(Rejection):  # anything else that is raised fails the test
                parse(payload)
