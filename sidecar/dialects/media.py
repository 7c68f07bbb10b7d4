"""Media of a TokenSpeed request: the media rules in the order of their table, then the edits that they allow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from sidecar.admission.content import check_pad_values, check_recomputed, needs_hash
from sidecar.admission.features import check_features, check_modalities, check_present
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
from sidecar.admission.prompt import check_length
from sidecar.admission.shm import check_segments
from sidecar.context import Context
from sidecar.dialects.edits import RequestEdits
from sidecar.errors import Reason, Rejection
from sidecar.materialize.hashing import HASHES
from sidecar.materialize.metadata import grids_of, media_item
from sidecar.materialize.mrope import Plan
from sidecar.materialize.placeholders import convert_raw, expand
from sidecar.materialize.substitute import substitute
from sidecar.model import ModelSpec
from sidecar.outcome import Lap, MediaNote, Outcome
from sidecar.wire.ids import IdList, IdRun, locate
from sidecar.wire.media import ItemView, MediaView
from sidecar.wire.pads import pad_value
from sidecar.wire.request import RequestView
from sidecar.wire.tensors import canonical_dtype
from sidecar.wire.tokenspeed import Modality, Request

SLOW_HASH_BYTES: Final = 64 * 1024
"""Hashing this much takes as long as a text request altogether."""

SLOW_PROMPT_IDS: Final = 1 << 14
"""Filling and encoding positions for this many ids takes milliseconds."""


class Located(NamedTuple):
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


def materialize(
    request: RequestView,
    media: MediaView,
    located: Located | None,
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
    owner = _check_owner(media, placed, context)
    compute = placed.plan is not None and owner is Ownership.COMPUTE

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
    if compute and not (upstream and _has_positions(media)):
        assert placed.plan is not None
        edits.set_positions(context.fill(placed.plan), placed.plan.delta)
        outcome.delta = int(placed.plan.delta)


def _check_owner(media: MediaView, placed: _Placed, context: Context) -> Ownership:
    """`mrope_invalid` and `mrope_unsupported`; returns who says where the tokens stand."""
    plan = placed.plan
    owner = check_positions(media, placed.prompt.n, plan.axes if plan is not None else 3, context.policy)
    if owner is not Ownership.COMPUTE:
        return owner
    if context.spec.mrope_unknown:
        raise Rejection(
            Reason.MROPE_UNSUPPORTED,
            f"{context.spec.model_type} uses M-RoPE in a form that is not known here; "
            "the request must bring its mrope_positions",
        )
    if plan is not None and _has_positions(media):
        check_delta(media, int(plan.delta))
    return owner


def _has_positions(media: MediaView) -> bool:
    """Whether the payload says anything about positions."""
    return any(field is not None for field in (media.positions, media.delta, media.delta_scalar))


def convert(request: RequestView, media: MediaView, context: Context, edits: RequestEdits) -> None:
    """The placeholders of an engine that processes media itself. Media that is processed already is left alone."""
    if request.unpadded is not None or not all(_is_raw(item) for item in media.items):
        return
    assert request.ids is not None
    images = sum(item.modality is Modality.IMAGE for item in media.items)
    converted = convert_raw(request.ids, images, context.policy.engine_kind, context.native, context.spec)
    if converted is not None:
        check_length(converted, context.policy.max_model_len)
        edits.request[Request.INPUT_IDS] = bytes(converted.span)


def _is_raw(item: ItemView) -> bool:
    """Whether nobody has processed an item yet: it only says that there is one."""
    sources = (item.feature, item.shm, item.encoded, item.deepstack, item.hash, item.pad_value)
    return not item.offsets and not item.handshake and all(source is None for source in sources)


def is_slow(request: RequestView, media: MediaView, context: Context) -> bool:
    """Whether materializing takes long enough to leave the event loop alone with it."""
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


def locate_media(request: RequestView, media: MediaView | None, spec: ModelSpec) -> Located | None:
    """Where media stands, as far as its offsets can be used; what is wrong with them is said in its turn."""
    prompt = request.unpadded if request.unpadded is not None else request.ids
    if prompt is None or media is None or not media.items:
        return None
    try:
        return _locate_spans(prompt, media, spec)
    except Rejection:
        return None


def _locate_spans(prompt: IdList, media: MediaView, spec: ModelSpec) -> Located:
    spans = check_offsets(media.items, prompt.n)
    runs = locate(prompt, [(span.start, span.end) for span in spans])
    return Located(spans, runs, placeholder_ids(media, spec))


def _place(prompt: IdList, media: MediaView, located: Located | None, context: Context) -> _Placed:
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
            computed = HASHES[policy.hash](item, context.rest)
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
