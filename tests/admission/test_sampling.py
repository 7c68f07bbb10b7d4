"""The rules of every path, against what TokenSpeed's own decoder accepts."""

from __future__ import annotations

import math
import pickle
import struct
import threading

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.admission import sampling
from sidecar.admission.sampling_cache import SpanCache
from sidecar.errors import Reason, Rejection
from sidecar.wire.msgpack import pack_array_header
from sidecar.wire.tokenspeed import Sampling

EXT_RAW = b"\xd4\x03\x00"
NESTED_30 = b"\x91" * 30 + b"\x01"


def params(**fields: object) -> bytes:
    """The 29 default fields with some replaced: by a value, or by `bytes`, its encoding."""
    return array(29, **fields)


def array(count: int, **fields: object) -> bytes:
    """The first `count` fields; nil where there are more than 29."""
    parts = [*sampling.DEFAULT_BYTES, *[b"\xc0"] * (count - 29)][:count]
    for name, value in fields.items():
        parts[Sampling[name.upper()]] = value if isinstance(value, bytes) else msgpack.packb(value)
    return pack_array_header(count) + b"".join(parts)


def longer(tail: bytes, count: int) -> bytes:
    """The 29 default fields and `count` unknown ones."""
    return pack_array_header(29 + count) + b"".join(sampling.DEFAULT_BYTES) + tail


def refused(span: bytes) -> str:
    with pytest.raises(Rejection) as caught:
        sampling.check(span)
    assert caught.value.reason is Reason.SAMPLING_INVALID
    return caught.value.message


ACCEPTED = {
    "max_new_tokens": (None, 0, -1, 2**64 - 1, -(2**63)),
    "stop": (None, "", "END", [], ["a", "世界"]),
    "stop_token_ids": (None, [], [5, 5, 9], [-1, 2**64 - 1]),
    "temperature": (0.5, 1, 0, 2**64 - 1, b"\xca\x3f\x00\x00\x00"),
    "top_p": (0.5, 1),
    "top_k": (-1, 1, 2**31 - 1, -(2**31)),
    "min_new_tokens": (0, 2**64 - 1, -5),
    "json_schema": (None, "{}", ""),
    "ignore_eos": (True, False),
    "custom_params": (None, {}, {"a": [1, {"b": None}], "c": {1: b"x", None: 2}}, b"\x81\xa1a\x81\x91\x01\x02"),
    "stream_interval": (None, 1, 2**64 - 1),
    "logit_bias": (None, {}, {"1": 1.0, "abc": -2}),
    "seed": (None, 0, 2**63 - 1),
    "n": (0, 1, 2),
    "stop_strs": (None, "x", ["x"]),
    "is_normalized": (True, False),
}

REFUSED = {
    "max_new_tokens": (1.0, True, "5", b"\xc4\x015"),
    "stop": (5, True, [1], ["a", None], {"a": "b"}, b"\xc4\x01a", b"\xa1\xff", b"\xa3\xed\xa0\x80"),
    "stop_token_ids": ("5", [1.0], [True], [None], {"1": 1}, b"\xc4\x01a"),
    "temperature": (None, True, "1", [1.0]),
    "top_p": (None, False),
    "top_k": (None, 3.0, 3.5, True),
    "min_new_tokens": (None, 0.0),
    "json_schema": ({}, 5, b"\xc4\x02{}"),
    "ignore_eos": (None, 0, 1),
    "custom_params": ([], "a", {1: 2}, b"\x81\xa1a" + EXT_RAW, b"\x81\xa1a\xd6\xff\0\0\0\0", b"\x81\xa1a\x81\x80\x01"),
    "stream_interval": (1.0, "1", True),
    "logit_bias": ([], {"1": "2"}, {"1": None}, {"1": True}, {1: 1.0}),
    "seed": (1.0, "1", False),
    "n": (None, 1.0),
    "stop_strs": (5, [5]),
    "is_normalized": (None, 1),
}


@pytest.mark.parametrize(("name", "value"), [(name, v) for name, vs in ACCEPTED.items() for v in vs])
def test_accepts_what_the_engine_decodes(name: str, value: object) -> None:
    span = params(**{name: value})
    sampling.check(span)
    sampling.check(memoryview(b"??" + span)[2:])
    assert sampling.well_formed(span)


@pytest.mark.parametrize(("name", "value"), [(name, v) for name, vs in REFUSED.items() for v in vs])
def test_refuses_what_the_engine_does_not_decode(name: str, value: object) -> None:
    span = params(**{name: value})
    assert "sampling_params" in refused(span)
    assert not sampling.well_formed(span)


def test_messages_name_the_field_the_value_and_what_is_expected() -> None:
    assert refused(params(top_k=3.5)) == "sampling_params.top_k is the float 3.5; expected an int"
    assert refused(params(ignore_eos=1)) == "sampling_params.ignore_eos is the int 1; expected a bool"
    assert refused(params(seed=-7)) == "sampling_params.seed is -7; expected nil or an int in [0, 2^63)"
    assert "stop holds nil" in refused(params(stop=["a", None]))
    assert "has a value that is nil" in refused(params(logit_bias={"1": None}))


def test_messages_do_not_quote_the_client() -> None:
    assert "secret" not in refused(params(temperature="secret"))
    assert "secret" not in refused(params(stop_token_ids=["secret"]))
    assert "secret" not in refused(params(stop=b"\xa8\xffsecret!"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -3.5e38])
def test_refuses_floats_that_the_samplers_pools_do_not_hold(value: float) -> None:
    for field in Sampling:
        if float in sampling._ACCEPTED[field]:
            assert field.name.lower() in refused(params(**{field.name: value}))
    assert "logit_bias" in refused(params(logit_bias={"1": 0.0, "2": value}))
    assert "custom_params" in refused(params(custom_params={"a": [{"b": value}]}))
    assert sampling.well_formed(params(temperature=value))  # a rejected request may still carry it


def test_the_largest_float32_passes() -> None:
    sampling.check(params(temperature=sampling.FLOAT32_MAX))
    assert struct.unpack(">f", struct.pack(">f", sampling.FLOAT32_MAX))[0] == sampling.FLOAT32_MAX


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63, 2**64 - 1])
def test_refuses_a_seed_that_int64_or_torch_does_not_take(seed: int) -> None:
    assert str(seed) in refused(params(seed=seed))
    assert str(seed) in refused(params(seed=seed, stop_strs=[], is_normalized=True))


def test_refuses_a_top_k_that_int32_does_not_hold_and_an_interval_of_zero() -> None:
    assert "top_k" in refused(params(top_k=2**31))
    assert "top_k" in refused(params(top_k=-(2**31) - 1))
    assert "stream_interval" in refused(params(stream_interval=0))
    assert "stream_interval" in refused(params(stream_interval=-1))


def test_short_arrays_have_the_engines_defaults() -> None:
    assert tuple(sampling.decode(b"\x90").values) == sampling.DEFAULT_VALUES
    decoded = sampling.decode(array(6, temperature=0.3, top_k=50))
    assert decoded.values[Sampling.TOP_K] == 50
    assert decoded.values[Sampling.N] == 1
    assert len(decoded.view) == 6


@pytest.mark.parametrize(
    "extra", [b"\xc0", b"\xa1\xff", b"\x81\x01\x02", b"\x81\x91\x80\x01", EXT_RAW, b"\xd6\xff\0\0\0\0", NESTED_30]
)
def test_unknown_trailing_fields_pass_whatever_they_are(extra: bytes) -> None:
    sampling.check(longer(b"\x01" + extra, 2))


@pytest.mark.parametrize("code", [1, 2])
def test_pickle_passes_nowhere(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("pickle.loads was called"))
    ext = b"\xd4" + bytes([code]) + b"\x80"
    assert "pickle" in refused(longer(ext, 1))
    refused(params(custom_params=b"\x81\xa1a" + ext))
    refused(params(stop=ext))


@pytest.mark.parametrize(
    "span",
    [
        b"\xc0",
        b"\x80",
        b"\xa0",
        b"\x00",
        b"\xc1",
        params()[:-1],
        params() + b"\xc0",
        b"",
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff" + b"\xc0" * 600,
        params(stop=b"\xdd\xff\xff\xff\xff"),
        params(custom_params=b"\xdf\xff\xff\xff\xff"),
        params(json_schema=b"\xdb\xff\xff\xff\xff"),
        params(custom_params=b"\xc1"),
    ],
)
def test_refuses_bytes_that_are_not_one_array(span: bytes) -> None:
    refused(span)
    assert not sampling.well_formed(span)


def test_deep_nesting_is_refused_without_recursion() -> None:
    failures: list[str] = []

    def run() -> None:
        for depth in (40, 1_000, 100_000):
            try:
                sampling.check(params(custom_params=b"\x81\xa1a" + b"\x91" * depth + b"\x01"))
                failures.append(f"{depth} passed")
            except Rejection as error:
                if error.reason is not Reason.TOO_LARGE:
                    failures.append(f"{depth}: {error}")

    previous = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(previous)
    assert failures == []


def test_claims_of_nested_headers_allocate_nothing() -> None:
    claims = (b"\xdd\x00\x0f\x00\x00" * 32) + b"\xc0" * 100  # each claims 983,040 elements
    assert "truncated" in refused(params(custom_params=b"\x81\xa1a" + claims))


def test_a_verdict_is_the_same_on_a_hit() -> None:
    for span in (params(), params(seed=5), params(seed=2**40), params(top_k=3.5), params(seed=2**63)):
        first, second = outcome(span), outcome(span)
        assert first == second


def test_bytes_that_look_like_a_seed_are_judged_for_what_they_are() -> None:
    # Ten bytes before the end stands the lead byte of a 4-byte int, but logprobs begins there.
    span = array(29, logprobs=b"\xce\x00\x00\x00\x00", n=b"\x01", stop_strs=b"\x91\xa0", is_normalized=True)
    assert span[-10] == 0xCE
    sampling.check(span)
    assert "sampling_params.n is nil" in refused(span[:-5] + b"\xc0" + span[-4:])


def outcome(span: bytes) -> str | None:
    try:
        sampling.check(span)
    except Rejection as error:
        return str(error)
    return None


FIELD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=40),
    st.binary(max_size=4),
    st.lists(st.one_of(st.integers(0, 9), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=3), st.floats(), max_size=3),
)


@given(st.dictionaries(st.sampled_from(list(Sampling)), FIELD_VALUES, max_size=4))
def test_the_cache_answers_what_the_rules_answer(fields: dict[Sampling, object]) -> None:
    span = params(**{field.name: msgpack.packb(value) for field, value in fields.items()})
    found = sampling.judge(span).refusal
    assert outcome(span) == (str(Rejection(*found)) if found else None)
    assert outcome(span) == (str(Rejection(*found)) if found else None)


@given(st.binary(max_size=64))
def test_any_bytes_end_in_a_verdict(data: bytes) -> None:
    outcome(data)
    outcome(pack_array_header(29) + data)


@given(st.integers(0, 2**63 - 1), st.booleans(), st.booleans())
def test_any_valid_seed_passes_through_the_cut(seed: int, wide: bool, normalized: bool) -> None:
    encoded = b"\xcf" + seed.to_bytes(8, "big") if wide else msgpack.packb(seed)
    sampling.check(params(seed=encoded, stop_strs=[], is_normalized=normalized))


def test_the_cache_cuts_only_a_proven_seed() -> None:
    seen: list[tuple[bytes, int]] = []

    def without_seed(raw: bytes, hole: int) -> str | None:
        seen.append((raw, hole))
        return None

    cache = SpanCache(lambda raw: "whole", without_seed)
    span = b"head" + b"\xce\x00\x00\x00\x01" + b"12345"
    assert cache.get(span) == ("whole", None)
    assert seen == [(b"head\xc012345", 4)]
    cache = SpanCache(lambda raw: "whole", lambda raw, hole: "cut")
    assert cache.get(span) == ("cut", b"\xce\x00\x00\x00\x01")
    assert cache.get(b"x" * 600 + span) == ("whole", None)
    assert cache.get(b"head" + b"\xcf" + b"\x80" + b"\0" * 7 + b"12345") == ("whole", None)


def test_defaults_are_final_and_pass() -> None:
    sampling.check(sampling.DEFAULTS)
    values = sampling.decode(sampling.DEFAULTS).values
    assert values[Sampling.IS_NORMALIZED] is True
    assert values[Sampling.STOP_STRS] == ()
    assert values[Sampling.SEED] == 0
    assert values[Sampling.TOP_K] == 1 << 30
