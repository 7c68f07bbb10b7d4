"""Enough of PromQL to find which series an expression asks for."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""
    (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<range>\[[^\]]*\])
    |(?P<number>0x[0-9a-fA-F]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?[a-z]*|\.\d+)
    |(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    |(?P<symbol>=~|!~|!=|==|<=|>=|[-+*/%^(){}<>=,@])
    |(?P<space>\s+)
    """,
    re.VERBOSE,
)
_GROUPING: Final = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS: Final = _GROUPING | {"and", "or", "unless", "offset", "bool", "inf", "nan", "start", "end"}


class Selector(NamedTuple):
    """A series that is asked for: its name and what its labels are compared with."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]


class Query(NamedTuple):
    """What an expression refers to."""

    selectors: tuple[Selector, ...]
    grouped_by: frozenset[str]


def parse(expression: str) -> Query:
    """The selectors of an expression and the labels it groups by. Raises `ValueError` on what is no PromQL."""
    tokens = _tokens(expression)
    selectors: list[Selector] = []
    grouped: set[str] = set()
    depth = 0
    position = 0
    while position < len(tokens):
        kind, text = tokens[position]
        following = tokens[position + 1][1] if position + 1 < len(tokens) else ""
        depth += (text == "(") - (text == ")")
        if depth < 0:
            raise ValueError(f"{expression!r}: a parenthesis closes that was not opened")
        position += 1
        if kind != "name":
            continue
        if text.lower() in _GROUPING:
            if following == "(":
                end = tokens.index(("symbol", ")"), position)
                grouped.update(name for kind, name in tokens[position + 1 : end] if kind == "name")
                position = end + 1
        elif following == "{":
            end = tokens.index(("symbol", "}"), position)
            selectors.append(Selector(text, _matchers(tokens[position + 1 : end])))
            position = end + 1
        elif following != "(" and text.lower() not in _WORDS and not _is_aggregation(tokens, position):
            selectors.append(Selector(text, ()))
    if depth:
        raise ValueError(f"{expression!r}: a parenthesis is not closed")
    return Query(tuple(selectors), frozenset(grouped))


def _is_aggregation(tokens: list[tuple[str, str]], position: int) -> bool:
    """Whether the name before `position` is one such as `sum` in `sum by (le) (...)`."""
    return position < len(tokens) and tokens[position][1] in ("by", "without")


def _matchers(tokens: list[tuple[str, str]]) -> tuple[tuple[str, str, str], ...]:
    words = [text for _, text in tokens if text != ","]
    if len(words) % 3:
        raise ValueError(f"{' '.join(words)}: label matchers have three parts each")
    return tuple((words[i], words[i + 1], words[i + 2][1:-1]) for i in range(0, len(words), 3))


def _tokens(expression: str) -> list[tuple[str, str]]:
    found, position = [], 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise ValueError(f"{expression!r}: unexpected {expression[position]!r}")
        position = match.end()
        if match.lastgroup not in ("space", "range"):
            found.append((str(match.lastgroup), match.group()))
    return found
