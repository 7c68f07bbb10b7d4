"""Pad values: the formula at its edges (all golden rows are in test_goldens)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.wire.pads import PAD_BASE, PAD_SLOTS, pad_interval, pad_value
from sidecar.wire.tokenspeed import Modality


def test_the_slots_of_three_modalities_fill_int32() -> None:
    assert (PAD_BASE, PAD_SLOTS) == (1_000_000, 715_494_549)
    assert pad_interval(Modality.AUDIO).stop <= 2**31


@pytest.mark.parametrize(
    ("content_hash", "slot"),
    [
        (0, 0),
        (PAD_SLOTS - 1, PAD_SLOTS - 1),
        (PAD_SLOTS, 0),
        (2**63, 2**63 % PAD_SLOTS),
        (2**64 - 1, (2**64 - 1) % PAD_SLOTS),
        (-1, PAD_SLOTS - 1),
        (-(2**63), -(2**63) % PAD_SLOTS),
    ],
)
@pytest.mark.parametrize("modality", Modality)
def test_the_formula(modality: Modality, content_hash: int, slot: int) -> None:
    assert pad_value(modality, content_hash) == 1_000_000 + (modality - 1) * 715_494_549 + slot


@given(st.integers(-(2**63), 2**64 - 1), st.sampled_from(tuple(Modality)))
def test_a_pad_lies_in_its_modalitys_interval_alone(content_hash: int, modality: Modality) -> None:
    pad = pad_value(modality, content_hash)
    assert [pad in pad_interval(other) for other in Modality] == [other is modality for other in Modality]
