"""Decoded msgpack values in rules and messages: what they hold, and what may be said about them."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any, Final

PLAIN: Final = frozenset({NoneType, bool, int, float, str, bytes})
"""The types of leaves that are no ext values."""

_SIZED: Final[dict[type, str]] = {str: "str", bytes: "bin", tuple: "list", list: "list", dict: "map"}


def leaves(value: Any) -> Iterator[Any]:
    """The values inside nested maps and tuples, map keys included, in no order and without recursion."""
    pending = [value]
    while pending:
        node = pending.pop()
        if type(node) is dict:
            pending.extend(node)
            pending.extend(node.values())
        elif type(node) is tuple:
            pending.extend(node)
        else:
            yield node


def describe(value: Any) -> str:
    """A value's type and its number, for a message; of text only the length, because it is the client's."""
    if value is None:
        return "nil"
    if type(value) in (bool, int, float):
        return f"the {type(value).__name__} {str(value).lower()}"
    name = _SIZED.get(type(value))
    return f"a {name} of {len(value)}" if name else "an ext value"
