"""Distributions that a command line can name."""

from __future__ import annotations

import random
import statistics

import pytest

from sidecar.errors import UsageError
from sidecar.replay.synth.distributions import parse_count, parse_mix, parse_size


def draws(text: str, n: int = 4000) -> list[int]:
    draw, rng = parse_count(text, "--x"), random.Random(1)
    return [draw(rng) for _ in range(n)]


def test_counts() -> None:
    assert set(draws("200")) == {200}
    assert set(draws("1-3")) == {1, 2, 3}
    assert statistics.median(draws("lognormal:200,0.8")) == pytest.approx(200, rel=0.1)
    assert max(draws("lognormal:200,0.8")) > 1000
    assert statistics.mean(draws("normal:64,10")) == pytest.approx(64, rel=0.02)
    assert min(draws("normal:1,10")) == 1
    chosen = draws("choice:1,2*3,8*0")
    assert set(chosen) == {1, 2}
    assert chosen.count(2) / chosen.count(1) == pytest.approx(3, rel=0.2)


def test_sizes() -> None:
    rng = random.Random(1)
    assert parse_size("640x480", "--x")(rng) == (640, 480)
    draw = parse_size("choice:64x32*9,1x2", "--x")
    assert {draw(rng) for _ in range(200)} == {(64, 32), (1, 2)}


def test_mixes() -> None:
    assert parse_mix("text=5,image", ("text", "image"), "--mix") == {"text": 5.0, "image": 1.0}


@pytest.mark.parametrize(
    "text", ["", "0", "x", "3-1", "-1", "choice:", "choice:a", "choice:1*x", "choice:1*0", "normal:1"]
)
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(UsageError, match="--x"):
        parse_count(text, "--x")


@pytest.mark.parametrize("text", ["", "640", "0x5", "choice:640x480,7", "999999x1", "640*480"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="--x"):
        parse_size(text, "--x")


@pytest.mark.parametrize("text", ["", "video=1", "text=x", "text=0", "text=1,,"])
def test_what_is_no_mix(text: str) -> None:
    with pytest.raises(UsageError, match="--mix"):
        parse_mix(text, ("text", "image"), "--mix")
