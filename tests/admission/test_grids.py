"""Grids of families without M-RoPE."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.admission.grids import check_grid
from sidecar.errors import Reason, Rejection
from tests.build import BARE, KIMI, LLAMA4, item, views


def check(*rows: tuple[int, int, int], offsets: Any = ((2, 5),), spec: Any = KIMI) -> None:
    check_grid(views(item(offsets=offsets))[0], rows, spec)


def test_a_row_a_span_and_frames_are_pooled() -> None:
    check((1, 4, 4))
    check((7, 4, 4))
    check((1, 2, 8), (1, 4, 2), offsets=((0, 3), (5, 6)))


def test_families_without_a_grid() -> None:
    for spec in (BARE, LLAMA4):
        check(spec=spec)
        check((0, -1, 3), spec=spec)


@pytest.mark.parametrize("row", [(0, 4, 4), (1, 0, 4), (1, 4, -4), (1, 3, 4), (1, 4, 5), (2**31, 4, 4), (2**27, 4, 4)])
def test_rows_that_are_no_grid(row: tuple[int, int, int]) -> None:
    with pytest.raises(Rejection, match="divisible by 2") as caught:
        check(row)
    assert caught.value.reason is Reason.GRID_INVALID
    assert str(row) in caught.value.message


@pytest.mark.parametrize(
    ("rows", "offsets", "what"),
    [
        ((), ((2, 5),), "has 1 spans but no grid_thws"),
        (((1, 4, 4), (1, 4, 4)), ((2, 5),), "has 2 grid rows for 1 spans"),
        (((1, 4, 4),), ((2, 5), (7, 10)), "has 1 grid rows for 2 spans"),
        (((1, 4, 4),), ((2, 6),), "the span [2, 6] has 5 tokens, its grid (1, 4, 4) makes 4"),
        (((1, 4, 4),), ((2, 4),), "has 3 tokens"),
        (((1, 4, 4),), ((2, 25),), "has 24 tokens"),
    ],
)
def test_spans_that_are_not_their_grids(rows: Any, offsets: Any, what: str) -> None:
    with pytest.raises(Rejection) as caught:
        check(*rows, offsets=offsets)
    assert caught.value.reason is Reason.GRID_MISMATCH
    assert what in caught.value.message
    assert caught.value.message.startswith("item 0")
