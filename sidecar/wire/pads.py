"""Pad values: the ids that stand for media in the prompt, so that the prefix cache tells images apart.

The int32 space above any vocabulary is split into one interval a modality; a content hash picks the
place inside it (TokenSpeed, `runtime/multimodal/inputs.py`).
"""

from __future__ import annotations

from typing import Final

from sidecar.wire.tokenspeed import Modality

PAD_BASE: Final = 1_000_000
PAD_SLOTS: Final = (2**31 - PAD_BASE) // len(Modality)


def pad_value(modality: Modality, content_hash: int) -> int:
    """PAD_BASE + tag * PAD_SLOTS + (hash mod PAD_SLOTS), the mod being floored; tag is 0, 1, 2."""
    return PAD_BASE + (modality - 1) * PAD_SLOTS + content_hash % PAD_SLOTS


def pad_interval(modality: Modality) -> range:
    """The pad values that a modality can have."""
    start = PAD_BASE + (modality - 1) * PAD_SLOTS
    return range(start, start + PAD_SLOTS)
