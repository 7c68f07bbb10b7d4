"""The small pictures: their size, and that what they show is what is there."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.inspection.chart import charts, segments, strip
from sidecar.inspection.page import Span


def test_a_strip_marks_media_in_the_prompt() -> None:
    spans = [Span(2, 4, 0, "image", ""), Span(6, 6, 1, "video", ""), Span(8, 8, 2, "audio", "")]
    assert strip(10, spans, 80) == "··███·▓·▒·"


def test_a_short_span_in_a_long_prompt_is_still_seen() -> None:
    assert strip(1000, [Span(500, 500, 0, "image", "")], 10) == "·····█····"


def test_spans_outside_the_prompt_are_left_out() -> None:
    assert strip(4, [Span(2, 9, 0, "image", ""), Span(3, 1, 0, "image", "")], 10) == "····"


def test_linear_positions_rise() -> None:
    (chart,) = charts(np.arange(32)[None], 32, 4)
    assert chart.rows == (
        "                        ▁▂▃▄▅▆▇█",
        "                ▁▂▃▄▅▆▇█████████",
        "        ▁▂▃▄▅▆▇█████████████████",
        "▁▂▃▄▅▆▇█████████████████████████",
    )
    assert (chart.low, chart.high) == (0, 31)


def test_a_column_of_many_tokens_is_shaded_from_the_least_to_the_most() -> None:
    positions = np.tile([0, 31], 10)[None]
    (chart,) = charts(positions, 10, 4)
    assert chart.rows == ("░" * 10, "░" * 10, "░" * 10, "░" * 10)


def test_three_axes_have_their_names_and_one_scale() -> None:
    positions = np.array([[0, 0, 0], [0, 5, 9], [0, 1, 2]])
    found = list(charts(positions, 3))
    assert [chart.name for chart in found] == ["t", "h", "w"]
    assert [chart.high for chart in found] == [0, 9, 2]
    assert [chart.name for chart in charts(np.zeros((4, 2)), 2)] == ["0", "1", "2", "3"]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 300), st.integers(1, 120), st.integers(0, 1000))
def test_any_positions_fit_the_room(n: int, width: int, seed: int) -> None:
    positions = np.random.default_rng(seed).integers(-5, 1000, (3, n))
    for chart in charts(positions, width, 4):
        assert len(chart.rows) == 4
        assert {len(row) for row in chart.rows} == {min(n, width)}


def test_nothing_to_draw() -> None:
    assert list(charts(np.zeros((3, 0)), 10)) == []


def test_stretches_of_text_and_media() -> None:
    positions = np.array([[0, 1, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]])
    assert list(segments(positions, [Span(2, 5, 0, "image", "")])) == [
        (0, 1, "text", ["0..1", "0..1", "0..1"]),
        (2, 5, "item 0, image", ["2", "2..3", "2..3"]),
        (6, 6, "text", ["4", "4", "4"]),
    ]
