"""Rules about where media stands in the prompt: offsets, and the placeholders they cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sidecar.errors import Reason, Rejection
from sidecar.model import ModelSpec
from sidecar.wire.ids import IdList, IdRun, find_outside, locate
from sidecar.wire.media import ItemView, MediaView
from sidecar.wire.tokenspeed import Modality


class Span(NamedTuple):
    """An inclusive stretch of the prompt that belongs to an item."""

    start: int
    end: int
    item: ItemView


def check_offsets(items: Sequence[ItemView], n: int) -> list[Span]:
    """`offsets_invalid`; returns all spans of a prompt of `n` ids in ascending order."""
    total = sum(len(item.offsets or ()) for item in items)
    if total > n:
        raise _bad(f"{total} spans do not lie apart from one another in a prompt of {n} ids")
    spans = []
    for item in items:
        if not item.offsets:
            raise _bad(f"item {item.ordinal} ({item.modality.name.lower()}) has no offsets")
        for start, end in item.offsets:
            if start > end or start < 0 or end >= n:
                raise _bad(
                    f"item {item.ordinal}: the span [{start}, {end}] does not lie in the prompt of {n} ids; "
                    f"expected 0 <= start <= end < {n}"
                )
            spans.append(Span(start, end, item))
    spans.sort(key=_place)
    last = spans[0]
    for span in spans[1:]:
        if span.start <= last.end:
            raise _bad(
                f"the spans [{last.start}, {last.end}] of item {last.item.ordinal} and "
                f"[{span.start}, {span.end}] of item {span.item.ordinal} overlap"
            )
        last = span
    return spans


def _place(span: Span) -> tuple[int, int]:
    return span.start, span.end


def _bad(what: str) -> Rejection:
    return Rejection(Reason.OFFSETS_INVALID, what)


def placeholder_ids(media: MediaView, spec: ModelSpec) -> dict[Modality, int]:
    """The placeholder id of every modality for which the payload or the config names one.

    Raises `Rejection(placeholder_mismatch)` where the two disagree.
    """
    known = {}
    for modality, stated in (
        (Modality.IMAGE, media.im_token_id),
        (Modality.VIDEO, media.video_token_id),
        (Modality.AUDIO, None),
    ):
        configured = spec.token_id(modality)
        if stated is not None and configured is not None and stated != configured:
            raise _mismatch(
                f"the payload's {modality.name.lower()} placeholder id is {stated}, the model's config has {configured}"
            )
        placeholder = stated if stated is not None else configured
        if placeholder is not None:
            known[modality] = placeholder
    return known


def check_placeholders(
    ids: IdList,
    spans: Sequence[Span],
    runs: Sequence[IdRun],
    known: Mapping[Modality, int],
    spec: ModelSpec,
    *,
    free: bool = False,
) -> None:
    """`placeholder_mismatch`: a span that is not all placeholder, or a placeholder that no span covers.

    `runs` are the spans' places in the bytes; `free` says that no placeholder stands outside of them, as
    far as that has been proved. Where no placeholder id is known, a span must be one
    repeated id; with M-RoPE every modality that the model can encode has one, and the rest is refused
    as a modality.
    """
    for span, run in zip(spans, runs, strict=True):
        filled_with = spec.span_token_modality(span.item.modality)
        expected = known.get(filled_with)
        where = f"item {span.item.ordinal}: the span [{span.start}, {span.end}]"
        if run.value is None and (expected is not None or spec.mrope_family is None):
            what = f"the {filled_with.name.lower()} placeholder {expected}" if expected else "one repeated id"
            raise _mismatch(f"{where} is not {what} throughout")
        if expected is not None and run.value != expected:
            raise _mismatch(f"{where} holds another id than the {filled_with.name.lower()} placeholder {expected}")
    for modality, placeholder in () if free else known.items():
        if find_outside(ids, runs, placeholder):
            covered = sum(run_length(span) for span, run in zip(spans, runs, strict=True) if run.value == placeholder)
            raise _mismatch(
                f"the prompt holds the {modality.name.lower()} placeholder {placeholder} "
                f"{ids.tolist().count(placeholder)} times, the spans cover {covered} of them"
            )


def run_length(span: Span) -> int:
    """How many ids a span covers."""
    return span.end - span.start + 1


def check_upstream(ids: IdList, unpadded: IdList, spans: Sequence[Span], runs: Sequence[IdRun]) -> None:
    """`pad_value_invalid`: padded ids that are not the unpadded ids with each span under its item's pad value.

    `runs` are the spans' places in the unpadded ids. The stretches between the spans are compared as
    bytes, and as integers only where the bytes differ.
    """
    if ids.n != unpadded.n:
        raise Rejection(
            Reason.PAD_VALUE_INVALID,
            f"input_ids has {ids.n} ids and input_ids_unpadded {unpadded.n}; both must have one length",
        )
    padded_runs = locate(ids, [(span.start, span.end) for span in spans])
    for span, run in zip(spans, padded_runs, strict=True):
        pad = span.item.pad_value
        if pad is None or run.value != pad:
            raise Rejection(
                Reason.PAD_VALUE_INVALID,
                f"item {span.item.ordinal}: the padded ids hold {'another id' if run.value is None else run.value} in "
                f"the span [{span.start}, {span.end}]; expected the item's pad value {pad}",
            )
    at, unpadded_at = ids.body, unpadded.body
    ends = [*zip(padded_runs, runs, strict=True), (IdRun(ids.end, ids.end, 0), IdRun(unpadded.end, unpadded.end, 0))]
    for padded_run, run in ends:
        if ids.buf[at : padded_run.start] != unpadded.buf[unpadded_at : run.start]:
            _compare_values(ids, unpadded, spans)
            return
        at, unpadded_at = padded_run.end, run.end


def _compare_values(ids: IdList, unpadded: IdList, spans: Sequence[Span]) -> None:
    padded, plain = ids.tolist(), unpadded.tolist()
    at = 0
    for start, end in [*((span.start, span.end) for span in spans), (ids.n, ids.n)]:
        if padded[at:start] != plain[at:start]:
            first = next(i for i in range(at, start) if padded[i] != plain[i])
            raise Rejection(
                Reason.PAD_VALUE_INVALID,
                f"input_ids and input_ids_unpadded differ at position {first}, which no span covers",
            )
        at = end + 1


def _mismatch(what: str) -> Rejection:
    return Rejection(Reason.PLACEHOLDER_MISMATCH, what)
