"""Rules about hashes and pad values."""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.errors import Reason, Rejection
from sidecar.wire.media import ItemView
from sidecar.wire.pads import pad_interval


def needs_hash(item: ItemView, *, trust_client_hash: bool) -> bool:
    """Whether the item's content must be hashed here.

    Raises `Rejection(hash_missing)` for an item that cannot be identified: no pad value and no hash,
    and no inline feature to hash; or a feature in shared memory where the client is not trusted.
    """
    if not trust_client_hash:
        if item.feature is not None:
            return True
        if item.shm is not None:
            raise _missing(item, "its hash would have to be recomputed (materialize.trust_client_hash = false)")
    if item.pad_value is not None or item.hash is not None:
        return False
    if item.feature is not None:
        return True
    raise _missing(item, "it has no hash and no pad_value")


def _missing(item: ItemView, why: str) -> Rejection:
    place = "in shared memory" if item.shm is not None else "not in the request"
    return Rejection(
        Reason.HASH_MISSING,
        f"item {item.ordinal} ({item.modality.name.lower()}): {why}, and its feature is {place}; "
        "the frontend must send a hash or a pad_value",
    )


def check_pad_values(items: Sequence[ItemView]) -> None:
    """`pad_value_invalid`: a pad value outside its modality's interval."""
    for item in items:
        interval = pad_interval(item.modality)
        if item.pad_value is not None and item.pad_value not in interval:
            raise Rejection(
                Reason.PAD_VALUE_INVALID,
                f"item {item.ordinal}: the pad_value {item.pad_value} does not lie in "
                f"[{interval.start}, {interval.stop}), the interval of {item.modality.name.lower()} items",
            )


def check_recomputed(item: ItemView, recomputed: int) -> None:
    """`hash_conflict`: media materialized upstream under a hash that is not that of its bytes."""
    if item.hash is not None and item.hash != recomputed:
        raise Rejection(
            Reason.HASH_CONFLICT,
            f"item {item.ordinal}: the hash {item.hash} came with it, its content hashes to {recomputed} "
            "(materialize.trust_client_hash = false)",
        )
