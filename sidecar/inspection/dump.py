"""A payload byte by byte: which bytes are which field, and what they say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from sidecar.inspection.values import Node
from sidecar.wire.msgpack import Buffer
from sidecar.wire.spans import element_bounds

_SHOWN: Final = 9
"""Bytes of one row that are written out."""


class Row(NamedTuple):
    """`nbytes` bytes of the payload from `start` on. `data` is their hex, the middle left out."""

    start: int
    nbytes: int
    depth: int
    data: str
    name: str
    text: str


def dump(payload: Buffer, fields: Sequence[Node]) -> Iterator[Row]:
    """Rows that cover the payload without a gap. Neighbours at their defaults share one."""
    pos = 0
    if fields and fields[0].start:
        pos = fields[0].start if not _is_map(payload[0]) else _inside(payload, 0)
        yield _row(payload, 0, pos, 0, "", _header(payload, 0))
        if _is_map(payload[0]):
            yield from _entries(payload, fields, pos, 0)
        else:
            yield from _rows(payload, fields, 0)
        pos = fields[-1].end
    if pos < len(payload):
        yield _row(payload, pos, len(payload), 0, "", "cannot be read")


def _rows(payload: Buffer, nodes: Sequence[Node], depth: int) -> Iterator[Row]:
    for is_default, group in groupby(nodes, lambda node: node.default and not node.children):
        same = list(group)
        if is_default and len(same) > 1:
            name = f"{_label(same[0])} to {_label(same[-1])}"
            yield _row(payload, same[0].start, same[-1].end, depth, name, "nil or at their defaults")
            continue
        for node in same:
            yield from _node(payload, node, depth)


def _entries(payload: Buffer, nodes: Sequence[Node], pos: int, depth: int) -> Iterator[Row]:
    """Rows of a map's keys, which are no nodes, and of its values."""
    for node in nodes:
        yield _row(payload, pos, node.start, depth, "", f"the key {node.name}")
        yield from _node(payload, node, depth)
        pos = node.end


def _node(payload: Buffer, node: Node, depth: int) -> Iterator[Row]:
    if isinstance(node.value, dict) and "dtype" in node.value:
        yield from _tensor(payload, node, depth)
        return
    if not node.children:
        yield _row(payload, node.start, node.end, depth, _label(node), node.text)
        return
    pos = _inside(payload, node.start)
    yield _row(payload, node.start, pos, depth, _label(node), _header(payload, node.start))
    if _is_map(payload[node.start]):
        yield from _entries(payload, node.children, pos, depth + 1)
    else:
        yield from _rows(payload, node.children, depth + 1)
    if node.children[-1].end < node.end:
        yield _row(payload, node.children[-1].end, node.end, depth + 1, "", "more than is shown here")


def _tensor(payload: Buffer, node: Node, depth: int) -> Iterator[Row]:
    pos = _inside(payload, node.start)
    at_dtype, at_shape, at_data, end = element_bounds(payload, pos, node.end, 3)
    facts = node.value
    yield _row(payload, node.start, pos, depth, _label(node), "a tensor: array of 3")
    yield _row(payload, at_dtype, at_shape, depth + 1, "dtype", facts["dtype"])
    yield _row(payload, at_shape, at_data, depth + 1, "shape", str(facts["shape"]))
    numbers = f": {facts['values']}" if "values" in facts else ""
    place = f"the bytes are {facts['place']}" if facts["place"] != "inline" else f"ext 3, raw bytes{numbers}"
    yield _row(payload, at_data, end, depth + 1, "data", place)


def _inside(payload: Buffer, start: int) -> int:
    """Where the inside of a container begins: after its header."""
    return start + {0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5}.get(payload[start], 1)


def _is_map(lead: int) -> bool:
    return 0x80 <= lead <= 0x8F or lead in (0xDE, 0xDF)


def _header(payload: Buffer, start: int) -> str:
    wide = payload[start + 1 : _inside(payload, start)]
    count = int.from_bytes(wide, "big") if len(wide) else payload[start] & 0x0F
    return f"{'map' if _is_map(payload[start]) else 'array'} of {count}"


def _label(node: Node) -> str:
    return f"{node.index} {node.name}" if node.index is not None else node.name


def _row(payload: Buffer, start: int, end: int, depth: int, name: str, text: str) -> Row:
    shown = _SHOWN if end - start > _SHOWN + 2 else end - start
    data = bytes(payload[start : start + shown]).hex(" ")
    return Row(start, end - start, depth, data if shown == end - start else f"{data} …", name, text)
