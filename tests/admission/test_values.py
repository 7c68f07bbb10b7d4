"""Decoded values in rules and messages."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from sidecar.admission.values import describe, leaves


def test_leaves() -> None:
    assert sorted(map(str, leaves({"a": (1, {"b": None}), "c": ()}))) == ["1", "None", "a", "b", "c"]
    assert list(leaves(5)) == [5]
    deep: Any = 7
    for _ in range(10_000):
        deep = (deep,)
    assert list(leaves(deep)) == [7]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nil"),
        (True, "the bool true"),
        (5, "the int 5"),
        (1.5, "the float 1.5"),
        ("secret", "a str of 6"),
        (b"secret", "a bin of 6"),
        ((1, 2), "a list of 2"),
        ([1], "a list of 1"),
        ({}, "a map of 0"),
        (msgpack.ExtType(5, b"x"), "an ext value"),
    ],
)
def test_descriptions_say_nothing_of_text(value: Any, text: str) -> None:
    assert describe(value) == text
