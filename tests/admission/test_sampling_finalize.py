"""Finalized params, against what TokenSpeed 0.1.1 makes of the same bytes (tests/data/sampling_params.json)."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.admission import sampling
from sidecar.admission.sampling_finalize import LogprobQuery, check_logprobs, finalize
from sidecar.errors import Reason, Rejection
from sidecar.wire.msgpack import NIL, pack_array_header
from sidecar.wire.spans import array_view
from sidecar.wire.tokenspeed import Request, Sampling
from tests.admission.test_sampling import array, params

VOCAB = 151_936
GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "sampling_params.json").read_text("utf-8")
)
FINAL = params(top_k=1 << 30, seed=7, stop_strs=[], is_normalized=True)
STRICTER = {
    # The engine takes these and then samples from NaN, or divides by a temperature of 0.
    "nan_temp": "refused",
    "inf_temp": "refused",
    "already_normalized": {"temperature": 1.0, "top_k": 1, "seed": 0},
}


def golden_span(case: dict[str, Any]) -> bytes:
    payload = bytes.fromhex(case["payload_hex"])
    view = array_view(payload, 0, len(payload))
    assert view is not None
    return bytes(view.span(Request.SAMPLING_PARAMS))


def fields(span: bytes) -> list[bytes]:
    view = array_view(span, 0, len(span))
    assert view is not None
    return [bytes(view.span(i)) for i in range(len(view))]


def values(span: bytes) -> dict[str, Any]:
    return dict(zip((f.name.lower() for f in Sampling), msgpack.unpackb(span), strict=False))


def changed(span: bytes, rid: str = "rid") -> dict[str, Any]:
    """Finalize whole params; return the fields whose bytes differ, decoded."""
    out = finalize(span, rid, VOCAB)
    if out is None:
        return {}
    before, after = fields(span), fields(out)
    assert before[29:] == after[29:]
    return {
        Sampling(i).name.lower(): msgpack.unpackb(data)
        for i, data in enumerate(after[:29])
        if i >= len(before) or before[i] != data
    }


def refused(span: bytes, **options: Any) -> tuple[Reason, str]:
    with pytest.raises(Rejection) as caught:
        finalize(span, "rid", options.pop("vocab_size", VOCAB), **options)
    return caught.value.reason, caught.value.message


def test_the_golden_file_is_whole() -> None:
    assert len(GOLDEN) == 90
    assert {case["name"] for case in GOLDEN} >= STRICTER.keys()


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_golden(case: dict[str, Any]) -> None:
    span, rid, name = golden_span(case), case["rid"], case["name"]
    if "decode_error" in case and not isinstance(rid, str):
        sampling.check(span)  # the engine fails on the rid, which is not this module's
        return
    if "decode_error" in case or case["validation_error"] or STRICTER.get(name) == "refused":
        reason, message = refused(span, vocab_size=case["vocab_size"])
        if name.startswith("n_"):
            assert reason is Reason.N_UNSUPPORTED
        elif name.startswith("logprobs_"):
            assert reason is Reason.LOGPROBS_UNSUPPORTED
        else:
            assert reason is Reason.SAMPLING_INVALID
        if case.get("validation_error") and name not in ("logit_bias_nonint", "logit_bias_float", "nan_top_p"):
            assert message == case["validation_error"]
        return
    for _ in range(2):  # a miss and a hit
        out = finalize(span, rid, case["vocab_size"])
        assert values(span if out is None else out) == case["after"] | STRICTER.get(name, {})


def test_final_params_keep_their_bytes() -> None:
    assert finalize(FINAL, "rid", VOCAB) is None
    assert finalize(memoryview(b"?" + FINAL)[1:], "rid", VOCAB) is None
    assert finalize(sampling.DEFAULTS, "rid", VOCAB) is None
    assert changed(params(temperature=b"\xca\x3f\0\0\0", seed=2**40, stop_strs=["ab"], stop_str_max_len=1,
                          is_normalized=True)) == {}  # fmt: skip


def test_only_the_seed_changes_where_only_the_seed_is_missing() -> None:
    span = params(top_k=1 << 30, stop_strs=[], is_normalized=True)
    out = finalize(span, "réq", VOCAB)
    assert out == b"".join(
        [span[:3], *fields(span)[:23], msgpack.packb(zlib.crc32("réq".encode())), *fields(span)[24:]]
    )
    assert finalize(span, "other", VOCAB) != out


def test_a_seed_that_differs_each_time_leaves_the_rest_of_a_hit_alone() -> None:
    for seed in (70_000, 2**32 - 1, 2**40, 2**63 - 1, 5):
        assert changed(params(seed=seed)) == {
            "top_k": 1 << 30, "stop_strs": [], "is_normalized": True,
        }  # fmt: skip
        assert finalize(params(seed=seed, stop_strs=[], is_normalized=True), "rid", VOCAB) is None


def test_greedy_pins_the_seed() -> None:
    assert changed(params(temperature=0, top_k=50, seed=2**40))["seed"] == 0
    assert changed(params(top_k=1, seed=2**40))["seed"] == 0
    assert "seed" not in changed(params(top_k=1, seed=0))


def test_normalized_params_with_temperature_zero_become_greedy() -> None:
    for temperature in (0, 0.0, 1e-7):
        span = params(temperature=temperature, top_k=1 << 30, seed=2**40, stop_strs=[], is_normalized=True)
        assert changed(span) == {"temperature": 1.0, "top_k": 1, "seed": 0}
    reason, message = refused(params(temperature=-0.5, is_normalized=True))
    assert (reason, message) == (Reason.SAMPLING_INVALID, "temperature must be non-negative, got -0.5.")


@pytest.mark.parametrize(
    ("stop_strs", "max_len", "expected"),
    [
        (None, 0, {"stop_strs": []}),
        (None, 9, {"stop_strs": [], "stop_str_max_len": 0}),
        ("abc", 1, {"stop_strs": ["abc"], "stop_str_max_len": 3}),
        (["abc"], 2, {}),  # counted in tokens
        (["abc"], 0, {"stop_str_max_len": 3}),
        (["abc"], -4, {"stop_str_max_len": 3}),
        ([""], 0, {}),
        ([], 7, {}),
    ],
)
def test_stop_strings_of_normalized_params(stop_strs: object, max_len: int, expected: dict[str, Any]) -> None:
    span = params(stop_strs=stop_strs, stop_str_max_len=max_len, seed=1, is_normalized=True)
    assert changed(span) == expected


def test_stop_strings_keep_their_encoding() -> None:
    long_form = b"\xdd\x00\x00\x00\x01\xdb\x00\x00\x00\x01x"
    out = finalize(params(stop=long_form), "rid", VOCAB)
    assert out is not None
    assert fields(out)[Sampling.STOP_STRS] == long_form


def test_short_arrays_are_extended_and_long_ones_keep_their_tail() -> None:
    out = finalize(b"\x90", "rid", VOCAB)
    assert out is not None
    assert out[:3] == pack_array_header(29)
    assert finalize(out, "rid", VOCAB) is None
    tail = b"\xdc\x00\x01\xa1\xff\xd4\x03\x00"
    long = b"\xdd\x00\x00\x00\x1f" + array(29)[3:] + tail
    out = finalize(long, "rid", VOCAB)
    assert out is not None
    assert out.startswith(b"\xdd\x00\x00\x00\x1f")
    assert out.endswith(tail)


def test_the_vocabulary_bounds_logit_bias() -> None:
    span = params(logit_bias={"151936": 1.0})
    assert refused(span) == (Reason.SAMPLING_INVALID, "logit_bias must has keys in [0, 151935], got 151936.")
    assert finalize(span, "rid", VOCAB + 1) is not None
    assert finalize(span, "rid", None) is not None
    for key in ("-1", "abc", "", "9" * 5_000):
        assert refused(params(logit_bias={key: 1.0}), vocab_size=None)[0] is Reason.SAMPLING_INVALID


def test_the_rules_of_every_path_come_first() -> None:
    reason, message = refused(params(top_k=3.5, n=2))
    assert reason is Reason.SAMPLING_INVALID
    assert "top_k" in message
    assert "seed" in refused(params(seed=2**63, n=2))[1]


QUERY = LogprobQuery(start=-1, top=0, token_ids=0, prompt_length=10, multimodal=False)


def test_n_then_logprobs_then_verify() -> None:
    bad = params(n=2, top_p=0.0)
    assert refused(bad, logprobs=QUERY)[0] is Reason.N_UNSUPPORTED
    assert refused(params(top_p=0.0), logprobs=QUERY)[0] is Reason.LOGPROBS_UNSUPPORTED
    assert refused(params(top_p=0.0), logprobs=QUERY, output_logprobs=True)[0] is Reason.SAMPLING_INVALID
    assert finalize(FINAL, "rid", VOCAB, logprobs=QUERY, output_logprobs=True) is None


@pytest.mark.parametrize(
    "query",
    [
        QUERY._replace(top=1),
        QUERY._replace(token_ids=2),
        QUERY._replace(start=-2),
        QUERY._replace(start=10),
        QUERY._replace(start=8, multimodal=True),
    ],
)
def test_logprobs_that_the_engine_cannot_return(query: LogprobQuery) -> None:
    with pytest.raises(Rejection) as caught:
        check_logprobs(query, output_logprobs=True)
    assert caught.value.reason is Reason.LOGPROBS_UNSUPPORTED


@pytest.mark.parametrize(
    "query",
    [
        QUERY,
        QUERY._replace(start=0),
        QUERY._replace(start=9),
        QUERY._replace(start=9, multimodal=True),
        QUERY._replace(multimodal=True),
    ],
)
def test_logprobs_that_the_engine_returns(query: LogprobQuery) -> None:
    check_logprobs(query, output_logprobs=True)


VALID = {
    Sampling.MAX_NEW_TOKENS: st.none() | st.integers(100, 2**40),
    Sampling.STOP: st.none() | st.text(max_size=5) | st.lists(st.text(max_size=300), max_size=3),
    Sampling.STOP_TOKEN_IDS: st.none() | st.lists(st.integers(0, 9), max_size=4),
    Sampling.TEMPERATURE: st.floats(0, 100) | st.integers(0, 3) | st.just(1e-7),
    Sampling.TOP_P: st.floats(0.01, 1),
    Sampling.TOP_K: st.sampled_from([-1, 1, 2, 127, 1 << 30]),
    Sampling.CUSTOM_PARAMS: st.none() | st.dictionaries(st.text(max_size=4), st.integers(0, 9), max_size=2),
    Sampling.LOGIT_BIAS: st.none() | st.dictionaries(st.sampled_from(["1", "2"]), st.floats(-9, 9), max_size=2),
    Sampling.SEED: st.none() | st.integers(0, 2**63 - 1),
    Sampling.STOP_STRS: st.none() | st.text(max_size=5) | st.lists(st.text(max_size=5), max_size=3),
    Sampling.STOP_STR_MAX_LEN: st.integers(0, 5),
    Sampling.IS_NORMALIZED: st.booleans(),
}


@given(st.fixed_dictionaries({}, optional=VALID), st.sampled_from([12, 29, 29, 32]), st.text(max_size=8))
def test_what_comes_out_is_final(given_fields: dict[Sampling, Any], count: int, rid: str) -> None:
    chosen = {field.name: msgpack.packb(value) for field, value in given_fields.items() if field < count}
    span = array(count, **chosen)
    out = finalize(span, rid, VOCAB)
    final = span if out is None else out
    assert finalize(final, "another rid", VOCAB) is None
    after = values(final)
    assert after["is_normalized"] is True
    assert isinstance(after["stop_strs"], list)
    assert after["seed"] is not None
    before, now = fields(span), fields(final)
    assert now[29:] == before[29:]
    assert all(data != NIL for data in (now[Sampling.SEED], now[Sampling.STOP_STRS]))
    untouched = set(Sampling) - {
        Sampling.STOP_TOKEN_IDS, Sampling.TEMPERATURE, Sampling.TOP_K, Sampling.SEED,
        Sampling.STOP_STRS, Sampling.STOP_STR_MAX_LEN, Sampling.IS_NORMALIZED,
    }  # fmt: skip
    for field in untouched:
        assert now[field] == (before[field] if field < count else sampling.DEFAULT_BYTES[field])
