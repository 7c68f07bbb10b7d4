"""The TokenSpeed dialect: positional arrays, tensors beside the payload.

The order of the rules is the order of this file. Each rule is a function elsewhere; here stand the
steps, what each one needs, and what it leaves for the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sidecar.admission import sampling
from sidecar.admission.content import check_pad_values, check_recomputed, needs_hash
from sidecar.admission.features import check_features, check_modalities, check_present
from sidecar.admission.gate import Gate, check_gate
from sidecar.admission.grids import check_grid
from sidecar.admission.memory import Content
from sidecar.admission.placeholders import (
    Span,
    check_offsets,
    check_placeholders,
    check_upstream,
    placeholder_ids,
    run_length,
)
from sidecar.admission.positions import Ownership, check_delta, check_positions
from sidecar.admission.prompt import check_ids, check_length
from sidecar.admission.sampling_finalize import LogprobQuery, finalize
from sidecar.admission.shm import check_segments, orphans
from sidecar.admission.size import check_size
from sidecar.context import Context
from sidecar.dialects.edits import RequestEdits
from sidecar.dialects.rejected import rejected_request
from sidecar.errors import Reason, Rejection
from sidecar.materialize.hashing import HASHES
from sidecar.materialize.metadata import grids_of, media_item
from sidecar.materialize.mrope import Plan
from sidecar.materialize.placeholders import FORMS, Form, convert_raw, expand
from sidecar.materialize.substitute import substitute
from sidecar.model import ModelSpec
from sidecar.outcome import Envelope, Kind, Lap, MediaNote, Outcome, Result
from sidecar.wire.framing import Message, join_add
from sidecar.wire.ids import IdList, IdRun, locate
from sidecar.wire.media import ItemView, MediaView
from sidecar.wire.msgpack import Buffer
from sidecar.wire.pads import pad_value
from sidecar.wire.request import RequestView, read_request, read_rid
from sidecar.wire.salvage import read_handles
from sidecar.wire.tensors import canonical_dtype
from sidecar.wire.text import TextRequest, match_text
from sidecar.wire.tokenspeed import Modality, Request

SLOW_HASH_BYTES: Final = 64 * 1024
"""Hashing this much takes as long as a text request altogether."""

SLOW_PROMPT_IDS: Final = 1 << 14
"""Filling and encoding positions for this many ids takes milliseconds."""


MAX_TAILS: Final = 1024


class _Read(NamedTuple):
    request: RequestView
    text: TextRequest | None


class _KnownText(NamedTuple):
    """A text request whose fields behind the ids have passed before; its sampling params take so many bytes."""

    text: TextRequest
    sampling_bytes: int


class _Located(NamedTuple):
    """The media's spans in ascending order, and their places in the bytes of the prompt.

    `known` are the placeholder ids, `free` says that none of them stands outside of the spans.
    """

    spans: list[Span]
    runs: list[IdRun]
    known: Mapping[Modality, int]
    free: bool = False


class _Placed(NamedTuple):
    """Media whose place in the prompt is proved.

    `rows` are the rows that the grids make of each item's feature, t·h·w, by the item's place.
    """

    prompt: IdList
    spans: list[Span]
    runs: list[IdRun]
    rows: dict[int, int]
    plan: Plan | None


class TokenSpeed:
    """See `dialects.base.Dialect`."""

    name = "tokenspeed"

    def recognises(self, message: Message) -> bool:
        """Anything that is not another dialect's: an array is TokenSpeed's."""
        return True

    def read(self, message: Message, nbytes: int, context: Context) -> Envelope:
        """Read the rid, then the spans of the request and of its media."""
        payload = message.payload
        text = match_text(payload) if isinstance(payload, bytes) else None
        if text is not None and text.tail is not None:
            known = context.tails.get((text.fields, text.tail))
            limits = context.policy.limits
            if known is not None and nbytes <= limits.message_bytes and len(message.frames) <= limits.frames:
                return Envelope(Kind.GENERATE, message, nbytes, self.name, text.rid, content=_KnownText(text, known))
        rid = text.rid if text is not None else read_rid(payload)[0]
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
                ids=text.ids if text is not None else None,
            )
            envelope.slow = request.media is not None and _is_slow(request, request.media, context)
            envelope.content = _Read(request, text)
        except Rejection as rejection:
            envelope.rejection = rejection
        return envelope

    def process(self, envelope: Envelope, context: Context, lap: Lap) -> Outcome:
        """Admit and materialize. Raises `Rejection`."""
        if isinstance(envelope.content, _KnownText):
            return self._process_known_text(envelope, envelope.content, context, lap)
        request, text = envelope.content
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
        located = _locate(request, media, spec)
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
                self._materialize(request, media, located, context, edits, outcome, lap, preset=preset)
            else:
                self._convert(request, media, context, edits)
        lap("positions" if outcome.delta is not None else "admit")
        outcome.messages = [_leave(envelope.message, edits, gate, context)]
        lap("edit")
        plain = media is None and request.unpadded is None and not preset
        if text is not None and text.tail is not None and plain:
            if len(context.tails) >= MAX_TAILS:
                context.tails.clear()
            if not request.flag(Request.RETURN_LOGPROB):
                context.tails[text.fields, text.tail] = len(span)
        return outcome

    def _process_known_text(self, envelope: Envelope, known: _KnownText, context: Context, lap: Lap) -> Outcome:
        """A text request that needs its ids, its length and its seed looked at, and nothing else.

        3.9 us in place of 15.5 for a request of 266 ids: the types of the other fields, the sampling
        params and the gate depend on bytes that have passed before.
        """
        text, sampling_bytes = known
        assert text.tail is not None
        policy, vocabulary = context.policy, context.spec.vocab_size
        message = envelope.message
        final = None
        if policy.finalize_sampling:
            final = finalize(text.tail[:sampling_bytes], text.rid, vocabulary)
        if policy.token_ids == "strict":
            check_ids(text.ids, None, context.spec)
        check_length(text.ids, policy.max_model_len)
        lap("admit")
        frames: Sequence[Buffer]
        if final is not None:
            payload = b"".join((message.payload[: text.ids.end], final, text.tail[sampling_bytes:]))
            frames = join_add(policy.egress_framing, payload, message.aux)
            lap("edit")
        elif policy.ingress_framing is policy.egress_framing:
            frames = message.frames
        else:
            frames = join_add(policy.egress_framing, message.payload, message.aux)
        return Outcome(Kind.GENERATE, Result.FORWARDED, self.name, text.rid, messages=[frames])

    def _materialize(
        self,
        request: RequestView,
        media: MediaView,
        located: _Located | None,
        context: Context,
        edits: RequestEdits,
        outcome: Outcome,
        lap: Lap,
        *,
        preset: bool,
    ) -> None:
        """The media rules in the order of their table, then the edits that they allow."""
        policy = context.policy
        upstream = request.unpadded is not None
        prompt = request.unpadded if request.unpadded is not None else request.ids
        assert prompt is not None
        if located is None:
            check_offsets(media.items, prompt.n)  # says what is wrong with them
        expanded = None
        if policy.expand_placeholders and not upstream:
            expanded = expand(prompt, media, context.spec, context.encoder)
            if expanded is not None:
                prompt, media = expanded
                check_length(prompt, policy.max_model_len)
                located = None
        placed = _place(prompt, media, located, context)
        check_present(media.items)
        check_features(media.items, context.spec, placed.rows)
        check_modalities(media.items, context.spec)
        lap("admit")
        contents, hashed = _identify(media, context, upstream=upstream)
        if hashed:
            lap("hash")
        context.contents.check(contents, context.now())
        check_pad_values(media.items)
        if upstream:
            assert request.ids is not None
            check_upstream(request.ids, prompt, placed.spans, placed.runs)
        segments = check_segments(media.items, policy, context.probe, context.segments, context.now())
        axes = placed.plan.axes if placed.plan is not None else 3
        owner = check_positions(media, prompt.n, axes, policy)
        if owner is Ownership.COMPUTE and context.spec.mrope_unknown:
            raise Rejection(
                Reason.MROPE_UNSUPPORTED,
                f"{context.spec.model_type} uses M-RoPE in a form that is not known here; "
                "the request must bring its mrope_positions",
            )
        fields = (media.positions, media.delta, media.delta_scalar)
        compute = placed.plan is not None and owner is Ownership.COMPUTE
        if compute and any(field is not None for field in fields):
            assert placed.plan is not None
            check_delta(media, int(placed.plan.delta))

        outcome.contents = contents
        outcome.segments = segments
        outcome.media = [
            MediaNote(item.ordinal, item.modality, item.tokens, content.hash, content.pad_value, item.ordinal in hashed)
            for item, content in zip(media.items, contents, strict=True)
        ]
        outcome.delta_without_positions = owner is Ownership.DELTA_ONLY and policy.role != "decode"
        if preset or (upstream and policy.upstream == "passthrough"):
            return
        if not upstream:
            pads = {content.ordinal: content.pad_value for content in contents}
            fills = [(pads[span.item.ordinal], run_length(span)) for span in placed.spans]
            edits.request[Request.INPUT_IDS] = substitute(prompt, placed.runs, fills)
            edits.request[Request.INPUT_IDS_UNPADDED] = bytes(prompt.span)
            if expanded is not None:
                edits.set_offsets(media.items)
            edits.set_contents(contents, hashed)
            outcome.substituted = sum(count for _, count in fills)
        if compute and not (upstream and any(field is not None for field in fields)):
            assert placed.plan is not None
            edits.set_positions(context.fill(placed.plan), placed.plan.delta)
            outcome.delta = int(placed.plan.delta)

    def _convert(self, request: RequestView, media: MediaView, context: Context, edits: RequestEdits) -> None:
        """The placeholders of an engine that processes media itself. Media that is processed already is left alone."""
        if request.unpadded is not None or not all(_is_raw(item) for item in media.items):
            return
        assert request.ids is not None
        images = sum(item.modality is Modality.IMAGE for item in media.items)
        converted = convert_raw(request.ids, images, context.policy.engine_kind, context.native, context.spec)
        if converted is not None:
            check_length(converted, context.policy.max_model_len)
            edits.request[Request.INPUT_IDS] = bytes(converted.span)

    def reject(self, envelope: Envelope, reason: str, error: str, context: Context) -> Outcome:
        """The refused request, its orphaned segments, and the text that it came with if it had one."""
        assert envelope.rid is not None
        payload = envelope.message.payload
        read = envelope.content
        preset = read.request.text(Request.VALIDATION_ERROR) if isinstance(read, _Read) else None
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


def _is_raw(item: ItemView) -> bool:
    """Whether nobody has processed an item yet: it only says that there is one."""
    sources = (item.feature, item.shm, item.encoded, item.deepstack, item.hash, item.pad_value)
    return not item.offsets and not item.handshake and all(source is None for source in sources)


def _is_slow(request: RequestView, media: MediaView, context: Context) -> bool:
    prompt = request.unpadded or request.ids
    if prompt is not None and prompt.n >= SLOW_PROMPT_IDS:
        return True
    trusted = context.policy.trust_client_hash
    to_hash = sum(
        item.feature.data.nbytes
        for item in media.items
        if item.feature is not None and (not trusted or (item.pad_value is None and item.hash is None))
    )
    return to_hash >= SLOW_HASH_BYTES


def _logprob_query(request: RequestView, media: MediaView | None) -> LogprobQuery | None:
    if not request.flag(Request.RETURN_LOGPROB):
        return None
    array = request.array
    ids = request.array.bounds
    wanted = 0
    if not array.is_nil(Request.TOKEN_IDS_LOGPROB):
        wanted = max(ids[Request.TOKEN_IDS_LOGPROB + 1] - ids[Request.TOKEN_IDS_LOGPROB] - 1, 0)
    return LogprobQuery(
        request.integer(Request.LOGPROB_START_LEN) or 0,
        request.integer(Request.TOP_LOGPROBS_NUM) or 0,
        wanted,
        request.ids.n if request.ids is not None else 0,
        media is not None and bool(media.items),
    )


def _locate(request: RequestView, media: MediaView | None, spec: ModelSpec) -> _Located | None:
    """Where media stands, as far as its offsets can be used; what is wrong with them is said in its turn."""
    prompt = request.unpadded if request.unpadded is not None else request.ids
    if prompt is None or media is None or not media.items:
        return None
    try:
        return _locate_spans(prompt, media, spec)
    except Rejection:
        return None


def _locate_spans(prompt: IdList, media: MediaView, spec: ModelSpec) -> _Located:
    spans = check_offsets(media.items, prompt.n)
    runs = locate(prompt, [(span.start, span.end) for span in spans])
    return _Located(spans, runs, placeholder_ids(media, spec))


def _place(prompt: IdList, media: MediaView, located: _Located | None, context: Context) -> _Placed:
    """Offsets, placeholders and grids: where media stands, and the plan of its positions."""
    spec = context.spec
    spans, runs, known, free = located if located is not None else _locate_spans(prompt, media, spec)
    check_placeholders(prompt, spans, runs, known, spec, free=free)
    grids = [grids_of(item, spec) for item in media.items]
    plan = None
    if context.planner is not None:
        items = [media_item(item, rows) for item, rows in zip(media.items, grids, strict=True)]
        plan = context.planner.plan(prompt.n, items, prompt.array)
    else:
        for item, rows in zip(media.items, grids, strict=True):
            check_grid(item, rows, spec)
    rows_of = {
        item.ordinal: sum(t * h * w for t, h, w in rows) for item, rows in zip(media.items, grids, strict=True) if rows
    }
    return _Placed(prompt, spans, runs, rows_of, plan)


def _identify(media: MediaView, context: Context, *, upstream: bool) -> tuple[list[Content], set[int]]:
    """Each item's hash and pad value, and the places of the items that were hashed for it."""
    policy = context.policy
    contents, hashed = [], set()
    for item in media.items:
        digest, pad = item.hash, item.pad_value
        if needs_hash(item, trust_client_hash=policy.trust_client_hash):
            computed = HASHES[policy.hash](item)
            if upstream:
                check_recomputed(item, computed)
            else:
                pad = None
            digest = computed
            hashed.add(item.ordinal)
        if pad is None:
            assert digest is not None
            pad = pad_value(item.modality, digest)
        contents.append(_content(item, digest, pad))
    return contents, hashed


def _content(item: ItemView, digest: int | None, pad: int) -> Content:
    source = item.feature if item.feature is not None else item.shm
    if source is None:
        return Content(item.ordinal, item.modality, digest, pad, item.tokens, None, None)
    return Content(item.ordinal, item.modality, digest, pad, item.tokens, canonical_dtype(source.dtype), source.shape)


def _leave(message: Message, edits: RequestEdits, gate: Gate, context: Context) -> Sequence[Buffer]:
    """The frames that leave: the very ones that came, unless something was edited or the framing differs."""
    policy = context.policy
    if edits:
        payload, added = edits.apply(policy.hoist_bytes)
        aux = () if gate is Gate.STRIP else message.aux
        return join_add(policy.egress_framing, payload, [*aux, *added])
    if policy.ingress_framing is policy.egress_framing:
        return message.frames
    return join_add(policy.egress_framing, message.payload, message.aux)
