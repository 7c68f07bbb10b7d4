"""Finish sampling params the way the engine's own frontend would, for a path where nobody does later.

Behind PUSH/PULL TokenSpeed takes the params as they come: a nil seed, nil `stop_strs` or a negative
`max_new_tokens` ends its scheduler. So this module does what `SamplingParams.__post_init__`,
`resolve_seed`, `normalize` (without a tokenizer) and `verify` do, in their order, and edits only the
fields that this changes. Params that claim to be normalized skip the first step in the engine, even
where a temperature of 0 then divides the logits by zero; here they become greedy as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgpack

from sidecar.admission.sampling import DEFAULT_BYTES, FIELD_COUNT, Decoded, Refusal, invalid, judge, judge_without_seed
from sidecar.admission.sampling_cache import SpanCache
from sidecar.errors import Reason, Rejection
from sidecar.wire.msgpack import EMPTY_ARRAY, NIL, TRUE, Buffer, pack_array_header, pack_int
from sidecar.wire.text import pack_crc
from sidecar.wire.tokenspeed import Sampling

SAMPLING_EPS: Final = 1e-6
"""A temperature below this is greedy."""

TOP_K_DISABLED: Final = 1 << 30
"""What the engine calls "no top_k"; -1 on the API."""

TOP_K_FUSED_MAX: Final = 128
"""The fused top-k kernel sorts fewer candidates than this."""

_GREEDY: Final[dict[int, bytes]] = {
    Sampling.TEMPERATURE: msgpack.packb(1.0),
    Sampling.TOP_K: pack_int(1),
    Sampling.SEED: pack_int(0),
}


class LogprobQuery(NamedTuple):
    """What a request with `return_logprob` asks for."""

    start: int
    """First prompt position whose logprob is wanted; -1 for none."""
    top: int
    """How many top logprobs each position should have."""
    token_ids: int
    """How many token ids should be scored at each position."""
    prompt_length: int
    multimodal: bool


class Plan(NamedTuple):
    """What finalizing does to params: the bytes around the seed, and the seed if it does not come from the rid."""

    refusal: Refusal | None
    """What comes before the logprob rules: params that do not decode, n."""
    verify_refusal: Refusal | None
    keep: bool
    """Nothing changes."""
    head: bytes
    seed: bytes | None
    tail: bytes


def finalize(
    span: Buffer,
    rid: str,
    vocab_size: int | None,
    *,
    output_logprobs: bool = False,
    logprobs: LogprobQuery | None = None,
) -> bytes | None:
    """Return the final bytes of field 5, or None if those that came are final already.

    `vocab_size` bounds the keys of `logit_bias`; None leaves out that bound. `logprobs` is given for a
    request with `return_logprob`; `output_logprobs` says whether the engine returns them at all.
    Includes the rules of `sampling.check`. Raises `Rejection` with `sampling_invalid`,
    `n_unsupported`, `logprobs_unsupported` or `too_large`.
    """
    plan, seed = _plans.get(span, vocab_size)
    if plan.refusal is not None:
        raise Rejection(*plan.refusal)
    if logprobs is not None:
        check_logprobs(logprobs, output_logprobs)
    if plan.verify_refusal is not None:
        raise Rejection(*plan.verify_refusal)
    if plan.keep:
        return None
    return plan.head + (plan.seed or seed or seed_of(rid)) + plan.tail


def seed_of(rid: str) -> bytes:
    """The encoding of the seed that the engine gives a request without one: `resolve_seed`."""
    return pack_crc(rid)


def final_parts(span: Buffer, vocab_size: int | None) -> tuple[bytes, bytes | None, bytes] | None:
    """What `finalize` puts in the place of params that it does not refuse, whatever the rid.

    The bytes before the seed, the seed, None for `seed_of` the rid, and the bytes behind it; None for
    params that are final already.
    """
    plan, seed = _plans.get(span, vocab_size)
    return None if plan.keep else (plan.head, plan.seed or seed, plan.tail)


def check_logprobs(query: LogprobQuery, output_logprobs: bool) -> None:
    """Refuse logprobs that the engine cannot return: the gates of its `InputProcessor`."""
    if not output_logprobs:
        raise _unsupported(
            "logprobs were requested but the server was started without --enable-output-logprobs"
            " (engine.output_logprobs)"
        )
    if query.top:
        raise _unsupported(f"top_logprobs_num is {query.top}; expected 0, output top-k logprobs are not supported")
    if query.token_ids:
        raise _unsupported(f"token_ids_logprob names {query.token_ids} ids; expected none, it is not supported")
    start, length = query.start, query.prompt_length
    if start < -1 or start >= max(length, 1):
        raise _unsupported(f"logprob_start_len is {start}; expected -1 or a position in the {length} prompt tokens")
    if query.multimodal and 0 <= start < length - 1:
        raise _unsupported(f"logprob_start_len is {start}; a multimodal prompt has no prompt logprobs, use -1")


def _plan(raw: bytes, vocab_size: int | None) -> Plan:
    verdict = judge(raw)
    if verdict.decoded is None:
        return Plan(verdict.refusal, None, False, b"", None, b"")
    return _plan_decoded(verdict.decoded, raw, vocab_size, seed_is_cut=False)


def _plan_without_seed(raw: bytes, hole: int, vocab_size: int | None) -> Plan | None:
    verdict = judge_without_seed(raw, hole)
    if verdict is None or verdict.decoded is None:
        return None
    return _plan_decoded(verdict.decoded, raw, vocab_size, seed_is_cut=True)


_plans: Final = SpanCache(_plan, _plan_without_seed)


def _plan_decoded(decoded: Decoded, raw: bytes, vocab_size: int | None, *, seed_is_cut: bool) -> Plan:
    values, view = list(decoded.values), decoded.view
    changes = _normalize(values, raw, view.bounds)
    refusal = verify_refusal = None
    try:
        _check_n(values)
    except Rejection as error:
        refusal = Refusal(error.reason, error.message)
    try:
        _verify(values, vocab_size)
    except Rejection as error:
        verify_refusal = Refusal(error.reason, error.message)
    count, bounds = len(view), view.bounds
    fields = [raw[bounds[i] : bounds[i + 1]] for i in range(min(count, FIELD_COUNT))]
    fields += DEFAULT_BYTES[count:]
    for index, data in changes.items():
        fields[index] = data
    seed: bytes | None = fields[Sampling.SEED]
    keep = not changes and count >= FIELD_COUNT and (seed_is_cut or seed != NIL)
    header = raw[: bounds[0]] if count >= FIELD_COUNT else pack_array_header(FIELD_COUNT)
    unknown = raw[bounds[FIELD_COUNT] :] if count > FIELD_COUNT else b""
    return Plan(
        refusal=refusal,
        verify_refusal=verify_refusal,
        keep=keep,
        head=header + b"".join(fields[: Sampling.SEED]),
        seed=None if seed == NIL else seed,
        tail=b"".join(fields[Sampling.SEED + 1 :]) + unknown,
    )


def _normalize(values: list[Any], raw: bytes, bounds: Sequence[int]) -> dict[int, bytes]:
    """Bring the values to what the engine's own frontend hands on; return the encodings that change."""
    changes: dict[int, bytes] = {}
    normalized = values[Sampling.IS_NORMALIZED]
    temperature = values[Sampling.TEMPERATURE]
    if normalized:
        if 0 <= temperature < SAMPLING_EPS:
            _set_greedy(values, changes)
    else:
        changes[Sampling.IS_NORMALIZED] = TRUE
        stop_ids = values[Sampling.STOP_TOKEN_IDS]
        if stop_ids is not None and (not stop_ids or len(set(stop_ids)) < len(stop_ids)):
            changes[Sampling.STOP_TOKEN_IDS] = msgpack.packb(list(dict.fromkeys(stop_ids)) or None)
        if temperature < SAMPLING_EPS:
            _set_greedy(values, changes)
        if values[Sampling.TOP_K] == 1 and values[Sampling.SEED] != 0:
            values[Sampling.SEED] = 0
            changes[Sampling.SEED] = _GREEDY[Sampling.SEED]
        if values[Sampling.TOP_K] == -1:
            values[Sampling.TOP_K] = TOP_K_DISABLED
            changes[Sampling.TOP_K] = pack_int(TOP_K_DISABLED)
    _normalize_stops(values, changes, raw, bounds)
    return changes


def _set_greedy(values: list[Any], changes: dict[int, bytes]) -> None:
    values[Sampling.TEMPERATURE], values[Sampling.TOP_K], values[Sampling.SEED] = 1.0, 1, 0
    changes.update(_GREEDY)


def _normalize_stops(values: list[Any], changes: dict[int, bytes], raw: bytes, bounds: Sequence[int]) -> None:
    """Make `stop_strs` a list and `stop_str_max_len` its longest string, in characters.

    The engine looks for the strings in the text of that many last tokens, and a token is a character
    at least. A frontend with a tokenizer has counted tokens, and its number stays.
    """
    normalized = values[Sampling.IS_NORMALIZED]
    source = Sampling.STOP_STRS if normalized else Sampling.STOP
    stops = values[source]
    strings: tuple[str, ...] = ()
    encoded = EMPTY_ARRAY
    if isinstance(stops, str):
        strings, encoded = (stops,), b"\x91" + raw[bounds[source] : bounds[source + 1]]
    elif stops is not None:
        strings, encoded = stops, raw[bounds[source] : bounds[source + 1]]
    kept = normalized
    if values[Sampling.STOP_STRS] != strings:
        changes[Sampling.STOP_STRS] = encoded
        kept = False
    length, longest = values[Sampling.STOP_STR_MAX_LEN], max(map(len, strings), default=0)
    if length != longest and not (kept and (length > 0 or longest == 0)):
        changes[Sampling.STOP_STR_MAX_LEN] = pack_int(longest)


def _check_n(values: Sequence[Any]) -> None:
    n = values[Sampling.N]
    if n != 1:
        raise Rejection(
            Reason.N_UNSUPPORTED,
            f"n={n} is not supported on the msgpack wire; the frontend must fan out n > 1 itself",
        )


def _verify(values: Sequence[Any], vocab_size: int | None) -> None:
    """`SamplingParams.verify` of TokenSpeed 0.1.1: its rules, its order, its words."""
    temperature = float(values[Sampling.TEMPERATURE])
    if temperature < 0.0:
        raise invalid(f"temperature must be non-negative, got {temperature}.")
    top_p = float(values[Sampling.TOP_P])
    if not 0.0 < top_p <= 1.0:
        raise invalid(f"top_p must be in (0, 1], got {top_p}.")
    min_p = float(values[Sampling.MIN_P])
    if not 0.0 <= min_p <= 1.0:
        raise invalid(f"min_p must be in [0, 1], got {min_p}.")
    top_k = values[Sampling.TOP_K]
    if top_k < -1 or top_k == 0:
        raise invalid(f"top_k must be -1 (disable), or at least 1, got {top_k}.")
    if top_k != TOP_K_DISABLED and top_k >= TOP_K_FUSED_MAX:
        raise invalid(f"top_k must be < {TOP_K_FUSED_MAX} (fused kernel limit) or -1 (disable), got {top_k}.")
    for field in (Sampling.FREQUENCY_PENALTY, Sampling.PRESENCE_PENALTY):
        penalty = float(values[field])
        if not -2.0 <= penalty <= 2.0:
            raise invalid(f"{field.name.lower()} must be in [-2, 2], got {penalty}.")
    repetition = float(values[Sampling.REPETITION_PENALTY])
    if not 0.0 <= repetition <= 2.0:
        raise invalid(f"repetition_penalty must be in (0, 2], got {repetition}.")
    _verify_lengths(values[Sampling.MIN_NEW_TOKENS], values[Sampling.MAX_NEW_TOKENS])
    for key in values[Sampling.LOGIT_BIAS] or ():
        _verify_bias_key(key, vocab_size)
    logprobs = values[Sampling.LOGPROBS]
    if logprobs is not None and logprobs != 0:
        raise _unsupported(f"logprobs={logprobs} is not supported; use logprobs=0 (the sampled token's logprob).")
    grammars = (values[Sampling.JSON_SCHEMA], values[Sampling.REGEX], values[Sampling.EBNF])
    if sum(grammar is not None for grammar in grammars) > 1:
        raise invalid("Only one of regex, json_schema, or ebnf can be set.")


def _verify_lengths(min_new_tokens: int, max_new_tokens: int | None) -> None:
    if min_new_tokens < 0:
        raise invalid(f"min_new_tokens must be in (0, max_new_tokens], got {min_new_tokens}.")
    if max_new_tokens is None:
        return
    if max_new_tokens < 0:
        raise invalid(f"max_new_tokens must be at least 0, got {max_new_tokens}.")
    if min_new_tokens > max_new_tokens:
        raise invalid(f"min_new_tokens must be in (0, max_new_tokens({max_new_tokens})], got {min_new_tokens}.")


def _verify_bias_key(key: str, vocab_size: int | None) -> None:
    """A key of `logit_bias` is whatever Python's `int` reads as a token id; the sampler indexes with it."""
    try:
        token_id = int(key)
    except ValueError:
        raise invalid(f"logit_bias has the key {key[:40]!r}; expected token ids as decimal integers") from None
    if token_id < 0 or (vocab_size is not None and token_id >= vocab_size):
        bound = "at least 0" if vocab_size is None else f"in [0, {vocab_size - 1}]"
        raise invalid(f"logit_bias must has keys {bound}, got {key[:40]}.")


def _unsupported(message: str) -> Rejection:
    return Rejection(Reason.LOGPROBS_UNSUPPORTED, message)
