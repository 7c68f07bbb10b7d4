"""Payloads, fields, prompts and sampling params that must not reach an engine."""

from __future__ import annotations

import struct
from typing import Any, Final

import msgpack

from sidecar.errors import Reason
from tests.build import TEXT, image_request, request
from tests.hostile.case import Hostile, replaced, sampling, spoilt

_GOOD: Final[bytes] = msgpack.packb(image_request())
_NAN: Final = float("nan")
TOO_LATE: Final = b"\xc7\x0c\xff" + b"\0" * 4 + struct.pack(">q", 2**62)
"""A timestamp far beyond the year 9999."""


def _text(ids: Any = (1, 2, 3), **fields: Any) -> Any:
    return request(ids=list(ids) if isinstance(ids, tuple) else ids, **fields)


def _unreadable() -> list[Hostile]:
    return [
        Hostile("an empty payload", b"", None, stops=True),
        Hostile("bytes that are no msgpack", b"\xc1\xc1\xc1", None, stops=True),
        Hostile("an integer", 5, None, stops=True),
        Hostile("a string", "TokenizedGenerateReqInput", None, stops=True),
        Hostile("an empty array", [], None, stops=True),
        Hostile("a tag and nothing else", ["TokenizedGenerateReqInput"], None, stops=True),
        Hostile("a rid that is an integer", request(7), None, stops=True),
        Hostile("a rid that is nil", request(None), None, stops=True),
        Hostile("a rid that is a list of strings", request(["a", "b"]), None, stops=True),
        Hostile("a rid that is not UTF-8", spoilt(request(), rid=b"\xa2\xff\xfe"), None, stops=True),
        Hostile(
            "a rid that claims 2^32 - 1 bytes",
            b"\x96\xb9TokenizedGenerateReqInput\xdb\xff\xff\xff\xff",
            None,
            stops=True,
        ),
        Hostile("raw pickle bytes", b"\x80\x04\x95\x0b\0\0\0\0\0\0\0\x8c\x05posix\x94.", None, stops=True),
        Hostile(
            "a PickleWrapper", ["PickleWrapper", b"cos\nsystem\n(S'true'\ntR."], None, stops=True, native_only=True
        ),
        Hostile(
            "a tag that the engine does not know", ["LaunchMissilesReq", "r", None], None, stops=True, native_only=True
        ),
        Hostile(
            "a control message with a wrong type", ["FlushCacheReqInput", 5, None], None, stops=True, native_only=True
        ),
        Hostile(
            "a control message that has no handler",
            ["OpenSessionReqInput", None, None, 5],
            None,
            stops=True,
            native_only=True,
        ),
    ]


def _malformed() -> list[Hostile]:
    bad = Reason.MALFORMED_REQUEST
    return [
        Hostile("too few fields", request(count=5), bad, stops=True),
        Hostile("one trailing byte", _GOOD + b"\0", bad, stops=True),
        Hostile("a second request behind the first", _GOOD + _GOOD, bad, stops=True),
        Hostile("a truncated payload", _GOOD[:-40], bad, stops=True),
        Hostile("an array that claims 2^32 - 1 fields", b"\xdd\xff\xff\xff\xff" + _GOOD[3:], bad, stops=True),
        Hostile(
            "a map that claims 2^32 - 1 pairs",
            spoilt(request(), multimodal_inputs=b"\xdf\xff\xff\xff\xff"),
            bad,
            stops=True,
        ),
        Hostile(
            "a bin that claims 2^32 - 1 bytes", spoilt(request(), input_text=b"\xc6\xff\xff\xff\xff"), bad, stops=True
        ),
        Hostile(
            "ids that claim 2^32 - 1 elements",
            spoilt(request(), input_ids=b"\xdd\xff\xff\xff\xff\1\2"),
            bad,
            stops=True,
        ),
        Hostile(
            "100,000 nested arrays",
            spoilt(request(), input_embeds=b"\x91" * 100_000 + b"\xc0"),
            Reason.TOO_LARGE,
            stops=True,
        ),
        Hostile(
            "100,000 nested arrays in another field",
            spoilt(request(), data_parallel_rank=b"\x91" * 100_000 + b"\xc0"),
            Reason.TOO_LARGE,
            stops=True,
        ),
        Hostile(
            "2^20 empty lists in a later field",
            msgpack.packb([*request(), "@"]).replace(b"\xa1@", b"\xdd\x00\x10\x00\x00" + b"\x90" * (1 << 20)),
            Reason.TOO_LARGE,
        ),
        Hostile("a stream flag that is an integer", _text(stream=1), bad, stops=True),
        Hostile("a text that is bytes", _text(input_text=b"x"), bad, stops=True),
        Hostile("a text that is not UTF-8", spoilt(_text(), input_text=b"\xa2\xc0\x80"), bad, stops=True),
        Hostile("a text with half a surrogate pair", spoilt(_text(), input_text=b"\xa3\xed\xa0\x80"), bad, stops=True),
        Hostile("a created_time that is a string", _text(created_time="now"), bad, stops=True),
        Hostile("a bootstrap_room that is a float", _text(bootstrap_room=1.0), bad, stops=True),
        Hostile("token_ids_logprob with a nil", _text(token_ids_logprob=[1, None]), bad, stops=True),
        Hostile("session_params with a wrong type", _text(session_params=[1]), bad, stops=True),
        Hostile("input_multi_ids with a string", _text(input_multi_ids=[["a"]]), bad, stops=True),
        Hostile("input_extra_infos with a list", _text(input_extra_infos=[[1]]), bad, stops=True),
        Hostile(
            "input_extra_infos with an ext value",
            _text(input_extra_infos=[{"a": msgpack.ExtType(9, b"x")}]),
            bad,
            stops=True,
        ),
        Hostile(
            "input_extra_infos with a timestamp past the year 9999",
            replaced(_text(input_extra_infos=[{"a": "@@"}]), "@@", TOO_LATE),
            bad,
            stops=True,
        ),
        Hostile(
            "input_embeds with a string that is not UTF-8",
            replaced(_text(input_embeds=["@@"]), "@@", b"\xa1\xff"),
            bad,
            stops=True,
        ),
        Hostile("the unused lead byte c1", spoilt(_text(), input_embeds=b"\x91\xc1"), bad, stops=True),
        Hostile("a validation_error that is an integer", _text(error=5), bad, stops=True),
    ]


def _prompts() -> list[Hostile]:
    ids = Reason.TOKEN_IDS_INVALID
    return [
        Hostile("an id of 2^31", _text((1, 2**31)), ids, spec=TEXT, stops=True),
        Hostile("an id of 2^63", _text((1, 2**63)), ids, spec=TEXT, stops=True),
        Hostile("a negative id", _text((1, -1)), ids, spec=TEXT, quiet="an index before the embedding table"),
        Hostile(
            "an id past the vocabulary", _text((1, 151936)), ids, spec=TEXT, quiet="an index past the embedding table"
        ),
        Hostile("an integral float among the ids", _text((1, 2.0)), ids, spec=TEXT, stops=True),
        Hostile("true among the ids", _text((1, True)), ids, spec=TEXT, stops=True),
        Hostile("nil among the ids", _text((1, None)), ids, spec=TEXT, stops=True),
        Hostile("a list among the ids", _text((1, [2])), ids, spec=TEXT, stops=True),
        Hostile("ids as bytes", _text(b"\1\2"), Reason.MALFORMED_REQUEST, spec=TEXT, stops=True),
        Hostile("an empty prompt", _text(()), Reason.PROMPT_EMPTY, spec=TEXT, stops=True),
        Hostile("a prompt that is nil", _text(None), Reason.PROMPT_EMPTY, spec=TEXT, stops=True),
        Hostile(
            "a prompt of embeddings alone",
            _text(None, input_embeds=[[0.5]]),
            Reason.PROMPT_EMPTY,
            spec=TEXT,
            stops=True,
        ),
        Hostile(
            "a prompt longer than max_model_len - 2",
            _text((1,) * 63),
            Reason.PROMPT_TOO_LONG,
            spec=TEXT,
            rules={"max_model_len": 64},
            stops=True,
        ),
    ]


def _samplings() -> list[Hostile]:
    bad = Reason.SAMPLING_INVALID
    always = [
        ("sampling params that are nil", None, Reason.MALFORMED_REQUEST, True),
        ("sampling params that are a map", {"temperature": 1.0}, Reason.MALFORMED_REQUEST, True),
        ("a temperature that is a string", sampling(temperature="1"), bad, True),
        ("a temperature of NaN", sampling(temperature=_NAN), bad, False),
        ("a top_p of infinity", sampling(top_p=float("inf")), bad, False),
        ("a penalty of 1e300", sampling(frequency_penalty=1e300), bad, False),
        ("a temperature of 1e300", sampling(temperature=1e300), bad, True),
        ("a seed of 2^63", sampling(seed=2**63), bad, True),
        ("a seed of -1", sampling(seed=-1), bad, False),
        ("a stop that is an integer", sampling(stop=5), bad, True),
        ("a stop id that is a string", sampling(stop_token_ids=["a"]), bad, True),
        ("a logit_bias with integer keys", sampling(logit_bias={5: 1.0}), bad, True),
        ("custom_params with a pickle", sampling(custom_params={"a": msgpack.ExtType(1, b".")}), bad, True),
    ]
    found = [
        Hostile(name, _text(sampling=params), reason, spec=TEXT, stops=stops) for name, params, reason, stops in always
    ]
    native = [
        ("a max_new_tokens of -1", sampling(max_new_tokens=-1), bad),
        ("n of 2", sampling(n=2), Reason.N_UNSUPPORTED),
        ("a top_p of 0", sampling(top_p=0.0), bad),
        ("a top_k of 128", sampling(top_k=128), bad),
        ("two grammars", sampling(regex="a", ebnf="b"), bad),
        ("a logit_bias past the vocabulary", sampling(logit_bias={"999999": 1.0}), bad),
    ]
    found += [
        Hostile(
            name,
            _text(sampling=params),
            reason,
            spec=TEXT,
            stops=name.startswith("a max"),
            rules={"finalize_sampling": True},
        )
        for name, params, reason in native
    ]
    found.append(
        Hostile(
            "logprobs that the engine does not return",
            _text(return_logprob=True),
            Reason.LOGPROBS_UNSUPPORTED,
            spec=TEXT,
            rules={"finalize_sampling": True},
        )
    )
    return found


REQUESTS: Final = (*_unreadable(), *_malformed(), *_prompts(), *_samplings())
