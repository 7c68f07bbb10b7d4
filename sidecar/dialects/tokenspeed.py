"""The TokenSpeed dialect: positional arrays, tensors beside the payload.

The order of the rules is the order of this file, and for media that of `dialects.media`. Each rule is a
function elsewhere; here stand the steps, what each one needs, and what it leaves for the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.admission import sampling
from sidecar.admission.gate import Gate, check_gate
from sidecar.admission.positions import check_positions
from sidecar.admission.prompt import check_ids, check_length
from sidecar.admission.sampling_finalize import LogprobQuery, final_parts, finalize
from sidecar.admission.shm import orphans
from sidecar.admission.size import check_size
from sidecar.context import Context
from sidecar.dialects.edits import RequestEdits
from sidecar.dialects.express import remember_tail
from sidecar.dialects.media import convert, is_slow, locate_media, materialize
from sidecar.dialects.rejected import rejected_request
from sidecar.errors import Reason, Rejection
from sidecar.materialize.placeholders import FORMS, Form
from sidecar.outcome import Envelope, Kind, Lap, Outcome, Result
from sidecar.wire.framing import Message, join_add, unedited
from sidecar.wire.media import MediaView
from sidecar.wire.msgpack import Buffer, read_array_header
from sidecar.wire.native import Tail
from sidecar.wire.request import RequestView, read_request, read_rid
from sidecar.wire.salvage import read_handles
from sidecar.wire.text import MAX_TAIL_BYTES
from sidecar.wire.tokenspeed import Request


class TokenSpeed:
    """See `dialects.base.Dialect`."""

    name = "tokenspeed"

    def recognises(self, message: Message) -> bool:
        """Anything that is not another dialect's: an array is TokenSpeed's."""
        return True

    def read(self, message: Message, nbytes: int, context: Context) -> Envelope:
        """Read the rid, then the spans of the request and of its media."""
        payload = message.payload
        rid = read_rid(payload)[0]
        if rid is None:
            what = f"no rid can be read from a payload of {len(payload)} bytes"
            return Envelope(
                Kind.UNREADABLE, message, nbytes, self.name, rejection=Rejection(Reason.MALFORMED_REQUEST, what)
            )
        envelope = Envelope(Kind.GENERATE, message, nbytes, self.name, rid)
        limits = context.policy.limits
        try:
            check_size(message, nbytes, limits)
            request = read_request(
                payload,
                rid,
                message.aux,
                max_items=limits.items,
                max_depth=limits.nesting,
            )
            envelope.slow = request.media is not None and is_slow(request, request.media, context)
            envelope.content = request
        except Rejection as rejection:
            envelope.rejection = rejection
        return envelope

    def process(self, envelope: Envelope, context: Context, lap: Lap) -> Outcome:
        """Admit and materialize. Raises `Rejection`."""
        request = envelope.content
        if not isinstance(request, RequestView):  # what the short way has made of it
            rid, frames, _ = request
            lap("admit")
            return Outcome(Kind.GENERATE, Result.FORWARDED, self.name, rid, messages=[frames])
        media = request.media
        spec, policy = context.spec, context.policy
        array = request.array
        edits = RequestEdits(request, media, envelope.message.aux, tensor_metadata=policy.engine_kind == "tokenspeed")

        span = array.span(Request.SAMPLING_PARAMS)
        if policy.finalize_sampling:
            final = finalize(
                span,
                request.rid,
                spec.vocab_size,
                output_logprobs=policy.output_logprobs,
                logprobs=_logprob_query(request, media),
            )
            if final is not None:
                edits.request[Request.SAMPLING_PARAMS] = final
        else:
            sampling.check(span)
        located = locate_media(request, media, spec)
        if policy.token_ids == "strict" and located is None:
            check_ids(request.ids, request.unpadded, spec)
        elif policy.token_ids == "strict":
            assert located is not None
            placeholders = frozenset(located.known.values())
            free = check_ids(request.ids, request.unpadded, spec, runs=located.runs, placeholders=placeholders)
            located = located._replace(free=free)
        ids = check_length(request.ids, policy.max_model_len)
        outcome = Outcome(Kind.GENERATE, Result.FORWARDED, self.name, request.rid)

        gate = check_gate(media is not None and bool(media.items), spec, policy)
        preset = bool(request.text(Request.VALIDATION_ERROR))
        if gate is Gate.STRIP:
            edits.strip_media()
        elif media is not None and gate is Gate.TEXT:
            check_positions(media, ids.n, 3, policy)
        elif gate is Gate.MATERIALIZE:
            assert media is not None
            if FORMS[policy.engine_kind] is Form.FULL:
                materialize(request, media, located, context, edits, outcome, lap, preset=preset)
            else:
                convert(request, media, context, edits)
        lap("positions" if outcome.delta is not None else "admit")
        outcome.messages = [_leave(envelope.message, edits, gate, context)]
        lap("edit")
        if media is None and request.unpadded is None and not preset:
            _remember(request, envelope.message, context)
        return outcome

    def reject(self, envelope: Envelope, reason: str, error: str, context: Context) -> Outcome:
        """The refused request, its orphaned segments, and the text that it came with if it had one."""
        assert envelope.rid is not None
        payload = envelope.message.payload
        request = envelope.content
        preset = request.text(Request.VALIDATION_ERROR) if isinstance(request, RequestView) else None
        frames = rejected_request(payload, envelope.rid, preset or error, context.policy.egress_framing)
        names: Sequence[str] = ()
        if reason != Reason.DUPLICATE_RID:
            names = orphans(read_handles(payload), context.policy, context.segments, context.now())
        return Outcome(
            Kind.GENERATE,
            Result.REJECTED,
            self.name,
            envelope.rid,
            messages=[frames],
            reason=Reason(reason),
            message=error,
            unlink=names,
        )


def _remember(request: RequestView, message: Message, context: Context) -> None:
    """Let a text request that has passed show others like it the short way."""
    payload, array = message.payload, request.array
    start = array.bounds[Request.SAMPLING_PARAMS]
    if (
        type(payload) is not bytes
        or message.aux
        or len(payload) - start > MAX_TAIL_BYTES
        or request.flag(Request.RETURN_LOGPROB)  # its rules look at the length of the prompt
        or not array.is_nil(Request.HTTP_WORKER_IPC)
        or not array.is_nil(Request.INPUT_TEXT)
    ):
        return
    edited = None
    if context.policy.finalize_sampling:
        parts = final_parts(array.span(Request.SAMPLING_PARAMS), context.spec.vocab_size)
        if parts is not None:
            before, seed, behind = parts
            edited = before, seed, behind + payload[array.bounds[Request.SAMPLING_PARAMS + 1] :]
    remember_tail(context, payload[start:], Tail(len(array), edited))


def _logprob_query(request: RequestView, media: MediaView | None) -> LogprobQuery | None:
    if not request.flag(Request.RETURN_LOGPROB):
        return None
    array = request.array
    wanted = 0
    if not array.is_nil(Request.TOKEN_IDS_LOGPROB):
        wanted, _ = read_array_header(request.buf, array.bounds[Request.TOKEN_IDS_LOGPROB], array.end)
    return LogprobQuery(
        request.integer(Request.LOGPROB_START_LEN) or 0,
        request.integer(Request.TOP_LOGPROBS_NUM) or 0,
        wanted,
        request.ids.n if request.ids is not None else 0,
        media is not None and bool(media.items),
    )


def _leave(message: Message, edits: RequestEdits, gate: Gate, context: Context) -> Sequence[Buffer]:
    """The frames that leave: the very ones that came, unless something was edited or the framing differs."""
    policy = context.policy
    if edits:
        payload, added = edits.apply(policy.hoist_bytes)
        aux = () if gate is Gate.STRIP else message.aux
        return join_add(policy.egress_framing, payload, [*aux, *added])
    return unedited(message, policy.ingress_framing, policy.egress_framing)
