"""The order of the steps, from the frames of a message to what leaves: pure, and closed against exceptions.

    envelope = open_message(frames, context)    cheap: what is it, whose is it, where do its fields stand
    outcome = process(envelope, context)        admit and materialize; may run on another thread
    outcome = commit(outcome, context)          remember, at the moment when it is handed over

`run` does all three.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from sidecar.admission.control import check_control, encode_abort_list, encode_abort_req, parse_abort_list
from sidecar.admission.shm import check_still_ours
from sidecar.admission.size import check_size
from sidecar.context import Context
from sidecar.dialects.base import Dialect
from sidecar.dialects.express import DIALECT as EXPRESS_DIALECT
from sidecar.dialects.express import Express
from sidecar.dialects.preprocessed import Preprocessed
from sidecar.dialects.tokenspeed import TokenSpeed
from sidecar.errors import Reason, Rejection
from sidecar.outcome import Envelope, Kind, Lap, Outcome, Result, no_lap
from sidecar.wire.framing import TYPE_ABORT, Framing, Message, is_generate, read_tag, split
from sidecar.wire.framing import Kind as FrameKind
from sidecar.wire.msgpack import Buffer
from sidecar.wire.tokenspeed import ABORT_TAG, GENERATE_TAG

logger = logging.getLogger(__name__)

DIALECTS: Final[Sequence[Dialect]] = (Preprocessed(), TokenSpeed())
"""Asked in order; the last one takes everything that is left."""

_BY_NAME: Final = {dialect.name: dialect for dialect in DIALECTS}


def open_message(
    frames: Sequence[Buffer], context: Context, nbytes: int | None = None, *, short: bool = True
) -> Envelope:
    """Read what a message is and whom it is for. Never raises. `nbytes` are those of all frames, if known.

    `short` is False for a message that the short way has been asked about, and has not taken.
    """
    if nbytes is None:
        nbytes = sum(map(len, frames))
    try:
        message = split(frames, context.policy.ingress_framing)
    except Rejection as rejection:
        message = Message(FrameKind.ADD, b"", (), frames)
        return Envelope(Kind.UNREADABLE, message, nbytes, rejection=rejection)
    try:
        passage = Express.of(context).read(frames, nbytes) if short else None
        if passage is not None:
            return Envelope(Kind.GENERATE, message, nbytes, EXPRESS_DIALECT, passage[0], content=passage)
        if message.kind is FrameKind.ADD:
            if context.policy.ingress_framing is Framing.NATIVE and not is_generate(message.payload):
                tag = read_tag(message.payload)
                if tag is not None and tag != GENERATE_TAG:
                    return _open_control(message, nbytes, tag, context)
            for dialect in DIALECTS:
                if dialect.recognises(message):
                    return dialect.read(message, nbytes, context)
        if message.kind is FrameKind.ABORT_LIST:
            return _open_abort_list(message, nbytes)
        return Envelope(Kind.CONTROL, message, nbytes)
    except Exception as error:
        return Envelope(Kind.UNREADABLE, message, nbytes, rejection=_unexpected(error))


def _open_control(message: Message, nbytes: int, tag: str, context: Context) -> Envelope:
    kind = Kind.ABORT if tag == ABORT_TAG else Kind.CONTROL
    try:
        check_size(message, nbytes, context.policy.limits)
        control = check_control(message.payload, context.policy.control_tags)
    except Rejection as rejection:
        return Envelope(kind, message, nbytes, rejection=rejection)
    return Envelope(kind, message, nbytes, rids=control.rids)


def _open_abort_list(message: Message, nbytes: int) -> Envelope:
    try:
        rids = parse_abort_list(message.payload)
    except Rejection as rejection:
        return Envelope(Kind.ABORT, message, nbytes, rejection=rejection)
    return Envelope(Kind.ABORT, message, nbytes, rids=rids)


def process(envelope: Envelope, context: Context, lap: Lap = no_lap) -> Outcome:
    """Decide what becomes of a message. Never raises: every exception becomes a refusal of this message."""
    if envelope.kind is not Kind.GENERATE:
        return _process_other(envelope, context)
    dialect = _BY_NAME[envelope.dialect]
    try:
        if envelope.rejection is not None:
            raise envelope.rejection
        # `commit` asks again, and for all: here it only saves the work on what will be dropped.
        if envelope.slow and envelope.rid is not None and context.rids.is_live(envelope.rid, context.now()):
            return _duplicate(envelope)
        outcome = dialect.process(envelope, context, lap)
    except Rejection as rejection:
        outcome = dialect.reject(envelope, rejection.reason, rejection.message, context)
    except Exception as error:
        fault = _unexpected(error)
        outcome = dialect.reject(envelope, fault.reason, fault.message, context)
    outcome.envelope = envelope
    return outcome


def _duplicate(envelope: Envelope) -> Outcome:
    return Outcome(
        Kind.GENERATE,
        Result.DROPPED,
        envelope.dialect,
        envelope.rid,
        reason=Reason.DUPLICATE_RID,
        message="a request with this rid was forwarded and may still be live; a second one would end the engine",
        envelope=envelope,
    )


def _process_other(envelope: Envelope, context: Context) -> Outcome:
    policy = context.policy
    rejection = envelope.rejection
    if rejection is not None:
        return Outcome(
            envelope.kind,
            Result.DROPPED,
            envelope.dialect,
            reason=rejection.reason,
            message=rejection.message,
            envelope=envelope,
        )
    messages: Sequence[Sequence[Buffer]]
    if policy.ingress_framing is policy.egress_framing:
        messages = [envelope.message.frames]
    elif envelope.kind is Kind.ABORT:
        messages = encode_abort(envelope.rids, policy.egress_framing)
    else:
        return Outcome(
            envelope.kind,
            Result.DROPPED,
            envelope.dialect,
            message=f"this message has no form in {policy.egress_framing} framing",
            envelope=envelope,
        )
    return Outcome(
        envelope.kind, Result.FORWARDED, envelope.dialect, rids=envelope.rids, messages=messages, envelope=envelope
    )


def encode_abort(rids: Sequence[str], framing: Framing) -> Sequence[Sequence[Buffer]]:
    """The messages that abort these rids: one list in typed framing, one `AbortReq` a rid in native."""
    if framing is Framing.TYPED:
        return [[TYPE_ABORT, encode_abort_list(rids)]]
    return [[encode_abort_req(rid)] for rid in rids]


def narrow_abort(envelope: Envelope, rids: Sequence[str], context: Context) -> Outcome:
    """An abort of only these of its rids: the requests of the others have been taken back."""
    messages = encode_abort(rids, context.policy.egress_framing)
    return Outcome(
        Kind.ABORT, Result.FORWARDED, envelope.dialect, rids=tuple(rids), messages=messages, envelope=envelope
    )


def commit(outcome: Outcome, context: Context) -> Outcome:
    """Remember what is being handed over; to be called once an outcome, in the order of sending.

    What another request has claimed since `process` looked is claimed no more: the outcome is then a
    refusal or, for a rid, nothing.
    """
    if outcome.kind is not Kind.GENERATE or outcome.result is Result.DROPPED:
        return outcome
    now = context.now()
    if outcome.rid is not None and not context.rids.claim(outcome.rid, now):
        assert outcome.envelope is not None
        return _duplicate(outcome.envelope)
    if outcome.contents:
        try:
            context.contents.check(outcome.contents, now)
            check_still_ours(outcome.segments, context.policy, context.probe, context.segments, now)
        except Rejection as rejection:
            assert outcome.envelope is not None
            envelope = outcome.envelope
            outcome = _BY_NAME[envelope.dialect].reject(envelope, rejection.reason, rejection.message, context)
            outcome.envelope = envelope
        else:
            context.contents.forwarded(outcome.contents, now)
            for name, identity in outcome.segments.items():
                context.segments.forwarded(name, identity, now)
    return outcome


def withdraw(outcome: Outcome, context: Context) -> None:
    """Undo `commit` for a message without media that was not taken, so that an abort can take it back."""
    if outcome.kind is Kind.GENERATE and outcome.rid is not None:
        context.rids.withdraw(outcome.rid)


def run(frames: Sequence[Buffer], context: Context, lap: Lap = no_lap) -> Outcome:
    """`open_message`, `process` and `commit` in one: what becomes of a message that nothing runs beside."""
    return commit(process(open_message(frames, context), context, lap), context)


def _unexpected(error: Exception) -> Rejection:
    """Any exception out of any input becomes a refusal; the log tells the developer, the client learns no more."""
    logger.error("an exception while reading a message; please report it", exc_info=error)
    return Rejection(Reason.MALFORMED_REQUEST, f"the request could not be processed ({type(error).__name__})")
