"""Rules about what an item brings: its feature, and whether the model can encode it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sidecar.errors import Reason, Rejection
from sidecar.model import ModelSpec
from sidecar.wire.media import ItemView
from sidecar.wire.tokenspeed import Modality


def check_present(items: Sequence[ItemView]) -> None:
    """`feature_missing`: an item with no feature, handle, encoding or handshake."""
    for item in items:
        if item.feature is None and item.shm is None and item.encoded is None and not item.handshake:
            raise Rejection(
                Reason.FEATURE_MISSING,
                f"item {item.ordinal} ({item.modality.name.lower()}) has no feature, no shared-memory handle, "
                "no encoding and no encode_handshake",
            )


def check_features(items: Sequence[ItemView], spec: ModelSpec, rows: Mapping[int, int]) -> None:
    """`feature_invalid`: a feature that the encoder cannot take.

    An encoding must have a row a token. A feature must not be 0-d or empty. Where the config states
    patch sizes, its rank, the sizes of its trailing dimensions and its number of rows must fit; `rows`
    has the rows that an item's grids make, by the item's place, for the families that have grids.
    """
    for item in items:
        if item.encoded is not None and (len(item.encoded.shape) != 2 or item.encoded.shape[0] != item.tokens):
            raise Rejection(
                Reason.FEATURE_INVALID,
                f"item {item.ordinal}: the encoding has the shape {list(item.encoded.shape)}; "
                f"expected [{item.tokens}, hidden size], a row a token",
            )
        shape = item.feature.shape if item.feature is not None else item.shm.shape if item.shm is not None else None
        if shape is None:
            continue
        if not shape or 0 in shape:
            raise _bad(item, f"has the shape {list(shape)}; expected at least one row for its {item.tokens} tokens")
        wanted = spec.feature_shapes.get(item.modality)
        if wanted is None:
            continue
        if len(shape) != wanted.rank or shape[wanted.rank - len(wanted.tail) :] != wanted.tail:
            expected = ", ".join(["rows", *map(str, wanted.tail)])
            raise _bad(item, f"has the shape {list(shape)}; the model's patch sizes make it [{expected}]")
        expected_rows = rows.get(item.ordinal)
        if expected_rows is not None and shape[0] != expected_rows:
            raise _bad(item, f"has {shape[0]} rows; its grids make {expected_rows}")


def check_modalities(items: Sequence[ItemView], spec: ModelSpec) -> None:
    """`modality_unsupported`: a modality for which the model has no encoder."""
    for item in items:
        if item.modality not in spec.modalities:
            able = ", ".join(sorted(modality.name.lower() for modality in spec.modalities)) or "none"
            raise Rejection(
                Reason.MODALITY_UNSUPPORTED,
                f"item {item.ordinal} is {_article(item.modality)}; {spec.model_type} has encoders for: {able}",
            )


def _article(modality: Modality) -> str:
    name = modality.name.lower()
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _bad(item: ItemView, what: str) -> Rejection:
    return Rejection(Reason.FEATURE_INVALID, f"item {item.ordinal}: the {item.modality.name.lower()} feature {what}")
