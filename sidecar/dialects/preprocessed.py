"""The preprocessed dialect: string-keyed maps with token ids and raw media.

A request without a `request_id` has no rid: nothing orders it, nothing finds it a second time, and an
abort cannot name it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sidecar.admission.gate import Gate, check_gate
from sidecar.admission.prompt import check_ids, check_length
from sidecar.admission.size import check_size
from sidecar.context import Context
from sidecar.errors import Reason, Rejection
from sidecar.materialize.placeholders import convert_raw
from sidecar.outcome import Envelope, Kind, Lap, Outcome, Result
from sidecar.wire.framing import Message, join_add, unedited
from sidecar.wire.msgpack import EMPTY_ARRAY, NIL, Buffer, pack_map_header, pack_str
from sidecar.wire.preprocessed import (
    MEDIA,
    REQUEST_ID,
    TOKEN_IDS,
    VALIDATION_ERROR,
    PreprocessedView,
    has_token_ids,
    read_preprocessed,
    read_request_id,
)
from sidecar.wire.spans import set_entries, splice

_MAP_LEADS: Final = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])


class Preprocessed:
    """See `dialects.base.Dialect`."""

    name = "preprocessed"

    def recognises(self, message: Message) -> bool:
        """A map with `token_ids`."""
        payload = message.payload
        return len(payload) > 0 and payload[0] in _MAP_LEADS and has_token_ids(payload)

    def read(self, message: Message, nbytes: int, context: Context) -> Envelope:
        """Read the map's entries. Every such message can be answered, with or without a rid."""
        envelope = Envelope(Kind.GENERATE, message, nbytes, self.name, read_request_id(message.payload))
        try:
            check_size(message, nbytes, context.policy.limits)
            envelope.content = read_preprocessed(message.payload, context.policy.limits.nesting)
        except Rejection as rejection:
            envelope.rejection = rejection
        return envelope

    def process(self, envelope: Envelope, context: Context, lap: Lap) -> Outcome:
        """The id rules, the gate, the count rule and the expansion. Raises `Rejection`."""
        view: PreprocessedView = envelope.content
        spec, policy = context.spec, context.policy
        if policy.token_ids == "strict":
            check_ids(view.ids, None, spec, name=TOKEN_IDS)
        ids = check_length(view.ids, policy.max_model_len, name=TOKEN_IDS)
        items = sum(view.media.values())
        if items > policy.limits.items:
            raise Rejection(
                Reason.TOO_LARGE, f"the request has {items} items; the limit is {policy.limits.items} (limits.items)"
            )
        gate = check_gate(items > 0, spec, policy)
        entries: dict[str, bytes] = {}
        if gate is Gate.STRIP:
            entries[MEDIA] = NIL
        elif gate is Gate.MATERIALIZE and not view.rendered and not view.error:
            converted = convert_raw(ids, view.images, policy.engine_kind, context.native, spec)
            if converted is not None:
                check_length(converted, policy.max_model_len, name=TOKEN_IDS)
                entries[TOKEN_IDS] = bytes(converted.span)
        lap("admit")
        message = envelope.message
        frames: Sequence[Buffer]
        if entries:
            frames = join_add(
                policy.egress_framing, splice(message.payload, set_entries(view.map, entries)), message.aux
            )
            lap("edit")
        else:
            frames = unedited(message, policy.ingress_framing, policy.egress_framing)
        return Outcome(Kind.GENERATE, Result.FORWARDED, self.name, envelope.rid, messages=[frames])

    def reject(self, envelope: Envelope, reason: str, error: str, context: Context) -> Outcome:
        """The same map without ids and media, marked; a new one where the map cannot be read."""
        view: PreprocessedView | None = envelope.content
        if view is not None:
            marks = {TOKEN_IDS: EMPTY_ARRAY, VALIDATION_ERROR: pack_str(view.error or error)}
            if MEDIA in view.map.entries:
                marks[MEDIA] = NIL
            payload = splice(envelope.message.payload, set_entries(view.map, marks))
        else:
            pairs = [pack_str(TOKEN_IDS), EMPTY_ARRAY, pack_str(VALIDATION_ERROR), pack_str(error)]
            if envelope.rid is not None:
                pairs += [pack_str(REQUEST_ID), pack_str(envelope.rid)]
            payload = pack_map_header(len(pairs) // 2) + b"".join(pairs)
        return Outcome(
            Kind.GENERATE,
            Result.REJECTED,
            self.name,
            envelope.rid,
            messages=[join_add(context.policy.egress_framing, payload, ())],
            reason=Reason(reason),
            message=error,
        )
