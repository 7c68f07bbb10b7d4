"""When messages are due."""

from __future__ import annotations

import itertools

import pytest

from sidecar.errors import UsageError
from sidecar.replay.pacing import constant, format_duration, original, parse_duration, parse_speed, poisson

SECOND = 1_000_000_000


def test_constant() -> None:
    due = constant(5000)
    assert [due(i, 0) for i in (0, 1, 2, 5000)] == [0, 200_000, 400_000, SECOND]


def test_poisson_has_the_rate_and_the_spread() -> None:
    due = poisson(1000, seed=1)
    times = [due(i, 0) for i in range(20_001)]
    assert times[0] == 0
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(SECOND / 1000, rel=0.03)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation == pytest.approx(mean, rel=0.05)
    again = poisson(1000, seed=1)
    assert [again(i, 0) for i in range(100)] == times[:100]


def test_original_timing_scaled() -> None:
    due = original(2.0, None)
    assert [due(i, mono) for i, mono in enumerate([7 * SECOND, 8 * SECOND, 18 * SECOND])] == [
        0, SECOND // 2, 11 * SECOND // 2,
    ]  # fmt: skip


def test_long_pauses_are_shortened_and_a_clock_that_runs_back_is_no_pause() -> None:
    due = original(1.0, SECOND)
    assert [due(i, mono) for i, mono in enumerate([0, 100 * SECOND, 5, 6])] == [0, SECOND, SECOND, SECOND + 1]


@pytest.mark.parametrize(
    ("text", "ns"),
    [("500us", 500_000), ("20ms", 20_000_000), ("3", 3 * SECOND), ("1.5s", 1_500_000_000), ("2m", 120 * SECOND)],
)
def test_durations(text: str, ns: int) -> None:
    assert parse_duration(text, "--x") == ns


@pytest.mark.parametrize("text", ["", "fast", "-1s", "3 parsecs", "1e9", "nan", "inf"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="--x"):
        parse_duration(text, "--x")


def test_speeds() -> None:
    assert parse_speed("2x") == 2
    assert parse_speed("0.5") == 0.5
    for text in ("0x", "-1x", "fast", "nan", "inf"):
        with pytest.raises(UsageError, match="--speed"):
            parse_speed(text)


@pytest.mark.parametrize(
    ("ns", "text"), [(0, "0ns"), (812, "812ns"), (14_230, "14.2us"), (3_070_000, "3.07ms"), (125 * SECOND, "125s")]
)
def test_formatting(ns: int, text: str) -> None:
    assert format_duration(ns) == text
