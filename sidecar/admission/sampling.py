"""Sampling params as the engine decodes them: types, ranges, and what no engine survives.

TokenSpeed decodes field 5 of a request with a strict msgspec struct (`SamplingParams`, 29 positional
fields). On its PUSH/PULL socket a field of another type ends the scheduler, and some values that
decode end it later: a seed of 2^63 or a temperature of 1e300 when it is stored in the sampler's pools,
a stream interval of 0 when the first token leaves. These rules hold on every path; the ones that only
matter where this sidecar finalizes the params are in `sampling_finalize`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any, Final, NamedTuple

import msgpack

from sidecar.admission.sampling_cache import SpanCache
from sidecar.admission.values import PLAIN, describe, leaves
from sidecar.errors import Reason, Rejection
from sidecar.wire.msgpack import Buffer, pack_array_header
from sidecar.wire.spans import ArrayView, array_view
from sidecar.wire.tokenspeed import Sampling

FIELD_COUNT: Final = len(Sampling)
MAX_DEPTH: Final = 32
"""Containers inside one another in a field (`custom_params` is free-form)."""

FLOAT32_MAX: Final = 3.4028234663852886e38
"""torch refuses to store a larger magnitude in the sampler's float32 pools."""

_SEED_LIMIT: Final = 1 << 63
_INT32_LIMIT: Final = 1 << 31


class _Field(NamedTuple):
    types: frozenset[type]
    expected: str
    default: Any


_INT = _Field(frozenset({int}), "an int", None)
_INT_OR_NIL = _Field(frozenset({int, NoneType}), "an int or nil", None)
_FLOAT = _Field(frozenset({float, int}), "a float", None)
_BOOL = _Field(frozenset({bool}), "a bool", None)
_STR_OR_NIL = _Field(frozenset({str, NoneType}), "a str or nil", None)
_STRS_OR_NIL = _Field(frozenset({str, tuple, NoneType}), "a str, a list of str or nil", None)
_INTS_OR_NIL = _Field(frozenset({tuple, NoneType}), "a list of ints or nil", None)
_BIAS = _Field(frozenset({dict, NoneType}), "a map of str to float or nil", None)
_PARAMS = _Field(frozenset({dict, NoneType}), "a map with str keys and plain values, or nil", None)

_FIELDS: Final[tuple[_Field, ...]] = tuple(
    field
    for _, field in sorted(
        {
            Sampling.MAX_NEW_TOKENS: _INT_OR_NIL,
            Sampling.STOP: _STRS_OR_NIL,
            Sampling.STOP_TOKEN_IDS: _INTS_OR_NIL,
            Sampling.TEMPERATURE: _FLOAT._replace(default=1.0),
            Sampling.TOP_P: _FLOAT._replace(default=1.0),
            Sampling.TOP_K: _INT._replace(default=-1),
            Sampling.MIN_P: _FLOAT._replace(default=0.0),
            Sampling.FREQUENCY_PENALTY: _FLOAT._replace(default=0.0),
            Sampling.PRESENCE_PENALTY: _FLOAT._replace(default=0.0),
            Sampling.REPETITION_PENALTY: _FLOAT._replace(default=1.0),
            Sampling.MIN_NEW_TOKENS: _INT._replace(default=0),
            Sampling.JSON_SCHEMA: _STR_OR_NIL,
            Sampling.REGEX: _STR_OR_NIL,
            Sampling.EBNF: _STR_OR_NIL,
            Sampling.STRUCTURAL_TAG: _STR_OR_NIL,
            Sampling.IGNORE_EOS: _BOOL._replace(default=False),
            Sampling.SKIP_SPECIAL_TOKENS: _BOOL._replace(default=True),
            Sampling.SPACES_BETWEEN_SPECIAL_TOKENS: _BOOL._replace(default=True),
            Sampling.NO_STOP_TRIM: _BOOL._replace(default=False),
            Sampling.THINKING_BUDGET: _INT_OR_NIL,
            Sampling.CUSTOM_PARAMS: _PARAMS,
            Sampling.STREAM_INTERVAL: _INT_OR_NIL,
            Sampling.LOGIT_BIAS: _BIAS,
            Sampling.SEED: _INT_OR_NIL,
            Sampling.LOGPROBS: _INT_OR_NIL,
            Sampling.N: _INT._replace(default=1),
            Sampling.STOP_STRS: _STRS_OR_NIL,
            Sampling.STOP_STR_MAX_LEN: _INT._replace(default=0),
            Sampling.IS_NORMALIZED: _BOOL._replace(default=False),
        }.items()
    )
)
_NAMES: Final = tuple(field.name.lower() for field in Sampling)
_ACCEPTED: Final = tuple(field.types for field in _FIELDS)
_FLOATS: Final = tuple(i for i, field in enumerate(_FIELDS) if float in field.types)

DEFAULT_VALUES: Final = tuple(field.default for field in _FIELDS)
DEFAULT_BYTES: Final = tuple(msgpack.packb(value) for value in DEFAULT_VALUES)
"""The encoding of each field's default, for arrays that end before it."""

_FINAL: Final = {
    Sampling.TOP_K: 1 << 30,
    Sampling.SEED: 0,
    Sampling.STOP_STRS: [],
    Sampling.IS_NORMALIZED: True,
}
DEFAULTS: Final[bytes] = msgpack.packb([_FINAL.get(field, DEFAULT_VALUES[field]) for field in Sampling])
"""Default params in normalized, final form: what a rejected request carries when its own do not decode."""


class Decoded(NamedTuple):
    """Sampling params: the value of each of the 29 fields, and where each one stands in the span.

    Lists are tuples. Fields behind the end of a short array have the engine's defaults.
    """

    values: Sequence[Any]
    view: ArrayView


class Refusal(NamedTuple):
    """What a `Rejection` is made of. A cached exception would collect tracebacks."""

    reason: Reason
    message: str


class Verdict(NamedTuple):
    """What the rules said about one span: the decoded params, or why they are refused."""

    decoded: Decoded | None
    refusal: Refusal | None


def invalid(message: str) -> Rejection:
    """The refusal of sampling params."""
    return Rejection(Reason.SAMPLING_INVALID, message)


def decode(span: Buffer) -> Decoded:
    """Decode the bytes of field 5 with the types that the engine's decoder accepts.

    Raises `Rejection(sampling_invalid)` for what that decoder refuses (an int passes for a float; a
    bool never passes for a number, a float never for an int) and for ext values, which it reads as
    memoryviews that cannot be broadcast to other ranks; `Rejection(too_large)` for deep nesting.
    """
    raw = bytes(span)
    try:
        view = array_view(raw, 0, len(raw), MAX_DEPTH)
    except Rejection as error:
        if error.reason is Reason.TOO_LARGE:
            raise Rejection(error.reason, f"sampling_params: {error.message}") from None
        raise invalid(f"sampling_params do not decode: {error.message}") from None
    if view is None:
        raise invalid(f"sampling_params start with byte {raw[0]:#04x}; expected an array of its fields")
    if view.end != len(raw):
        raise invalid(f"sampling_params have {len(raw) - view.end} bytes after their array")
    count = len(view)
    known = raw
    if count > FIELD_COUNT:
        known = pack_array_header(FIELD_COUNT) + raw[view.bounds[0] : view.bounds[FIELD_COUNT]]
        _check_tail(raw[view.bounds[FIELD_COUNT] :], count - FIELD_COUNT)
    try:
        values = msgpack.unpackb(known, use_list=False, strict_map_key=False)
    except (ValueError, TypeError) as error:
        raise invalid(f"sampling_params do not decode: {_cause(error)}") from None
    if count < FIELD_COUNT:
        values += DEFAULT_VALUES[count:]
    _check_types(values)
    return Decoded(values, view)


def well_formed(span: Buffer) -> bool:
    """Whether the engine can decode these params, so that even a rejected request may carry them."""
    try:
        decode(span)
    except Rejection:
        return False
    return True


def check(span: Buffer) -> None:
    """Apply the rules of every path to the bytes of field 5.

    Raises `Rejection(sampling_invalid)` for params that do not decode, NaN, infinity and floats that
    float32 does not hold, a seed outside [0, 2^63), a top_k outside int32, a stream interval below 1.
    """
    refusal = _verdicts.get(span)[0].refusal
    if refusal is not None:
        raise Rejection(*refusal)


def judge(raw: bytes) -> Verdict:
    """The verdict of the rules of every path on the bytes of field 5."""
    try:
        decoded = decode(raw)
        _check_ranges(decoded.values)
    except Rejection as error:
        return Verdict(None, Refusal(error.reason, error.message))
    return Verdict(decoded, None)


def judge_without_seed(raw: bytes, hole: int) -> Verdict | None:
    """The same for params whose seed, nil now, stands at `hole`; None if it does not or they are refused."""
    found = judge(raw)
    if found.decoded is None:
        return None
    bounds = found.decoded.view.bounds
    return found if len(bounds) > Sampling.SEED and bounds[Sampling.SEED] == hole else None


_verdicts: Final = SpanCache(judge, judge_without_seed)


def _check_types(values: Sequence[Any]) -> None:
    for index, accepted in enumerate(_ACCEPTED):
        if type(values[index]) not in accepted:
            raise _mistyped(index, values[index])
    for index in (Sampling.STOP, Sampling.STOP_STRS):
        if type(values[index]) is tuple:
            for item in values[index]:
                if type(item) is not str:
                    raise _mistyped(index, item, "holds")
    for item in values[Sampling.STOP_TOKEN_IDS] or ():
        if type(item) is not int:
            raise _mistyped(Sampling.STOP_TOKEN_IDS, item, "holds")
    bias = values[Sampling.LOGIT_BIAS]
    if bias:
        for key, value in bias.items():
            if type(key) is not str:
                raise _mistyped(Sampling.LOGIT_BIAS, key, "has a key that is")
            if type(value) is not float and type(value) is not int:
                raise _mistyped(Sampling.LOGIT_BIAS, value, "has a value that is")
    custom = values[Sampling.CUSTOM_PARAMS]
    if custom:
        for key in custom:
            if type(key) is not str:
                raise _mistyped(Sampling.CUSTOM_PARAMS, key, "has a key that is")
        for leaf in leaves(custom):
            if type(leaf) not in PLAIN:
                raise _mistyped(Sampling.CUSTOM_PARAMS, leaf, "holds")


def _check_ranges(values: Sequence[Any]) -> None:
    for index in _FLOATS:
        if not -FLOAT32_MAX <= values[index] <= FLOAT32_MAX:  # false for NaN
            raise _not_finite(index, values[index])
    bias = values[Sampling.LOGIT_BIAS]
    if bias:
        for value in bias.values():
            if not -FLOAT32_MAX <= value <= FLOAT32_MAX:
                raise _not_finite(Sampling.LOGIT_BIAS, value)
    custom = values[Sampling.CUSTOM_PARAMS]
    if custom:
        for leaf in leaves(custom):
            if type(leaf) is float and not -FLOAT32_MAX <= leaf <= FLOAT32_MAX:
                raise _not_finite(Sampling.CUSTOM_PARAMS, leaf)
    seed = values[Sampling.SEED]
    if seed is not None and not 0 <= seed < _SEED_LIMIT:
        raise invalid(f"sampling_params.seed is {seed}; expected nil or an int in [0, 2^63)")
    top_k = values[Sampling.TOP_K]
    if not -_INT32_LIMIT <= top_k < _INT32_LIMIT:
        raise invalid(f"sampling_params.top_k is {top_k}; expected an int that 32 bits hold")
    interval = values[Sampling.STREAM_INTERVAL]
    if interval is not None and interval < 1:
        raise invalid(f"sampling_params.stream_interval is {interval}; expected nil or at least 1")


def _check_tail(raw: bytes, count: int) -> None:
    """Unknown trailing fields pass as they are; pickle does not pass anywhere."""
    try:
        msgpack.unpackb(
            pack_array_header(count) + raw,
            raw=True,
            strict_map_key=False,
            object_pairs_hook=list,
            ext_hook=_refuse_pickle,
        )
    except (ValueError, TypeError) as error:
        raise invalid(
            f"sampling_params: a field after the {FIELD_COUNT} known ones does not decode: {_cause(error)}"
        ) from None


def _refuse_pickle(code: int, data: bytes) -> None:
    if code in (1, 2):
        raise ValueError(f"ext code {code} is pickle, which is never accepted")


def _mistyped(index: int, value: Any, how: str = "is") -> Rejection:
    return invalid(f"sampling_params.{_NAMES[index]} {how} {describe(value)}; expected {_FIELDS[index].expected}")


def _not_finite(index: int, value: float) -> Rejection:
    where = "is" if index in _FLOATS else "holds"
    return invalid(f"sampling_params.{_NAMES[index]} {where} {value}; expected a finite float that float32 holds")


def _cause(error: Exception) -> str:
    """Why the decoder gave up; a UnicodeDecodeError's own text would quote the client's bytes."""
    return "a str is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"{error}"[:120]
