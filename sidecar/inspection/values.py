"""One msgpack value as a node for people: a short text, a JSON value, and what lies inside it.

Reading is lenient where the wire is strict. It shows what there is, up to limits that keep a hostile
value from filling the memory or the terminal, and nothing in a text can steer a terminal.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack
from blake3 import blake3

from sidecar.errors import Rejection
from sidecar.wire.msgpack import (
    Buffer,
    read_array_header,
    read_ext,
    read_float,
    read_int,
    read_map_header,
    read_str,
    skip,
)
from sidecar.wire.spans import element_bounds
from sidecar.wire.tensors import Tensor, read_tensor

TIMES: Final = "\N{MULTIPLICATION SIGN}"

MAX_DEPTH: Final = 32
MAX_CHILDREN: Final = 64
"""Elements of one container that are shown; the rest is counted."""

MAX_PARTS: Final = 40
"""Runs, and stretches between them, of one id list that are shown."""

MAX_IDS: Final = 1 << 22
"""Elements of one id list that are decoded; a prompt is far shorter."""

_FEW: Final = 8
_SHORTEST_RUN: Final = 4
_STRETCH: Final = 24
_HEAD: Final = 10
_TAIL: Final = 4
_TEXT: Final = 120
_VALUES: Final = 16
_HASH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place: `payload[start:end]`.

    `value` is what `--json` shows: plain JSON, a long id list as [count, id] runs, a tensor as an
    object. `index` is the position of a field in its array; `default` says that the field has the
    value that it would have if it were not there, `folded` that the text says what its children do.
    """

    name: str
    start: int
    end: int
    text: str
    value: Any = None
    children: tuple[Node, ...] = ()
    index: int | None = None
    default: bool = False
    folded: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes that the value takes in the payload."""
        return self.end - self.start

    def child(self, name: str) -> Node | None:
        """The child of that name."""
        return next((child for child in self.children if child.name == name), None)


def plain(text: str, limit: int = _TEXT) -> str:
    """A string as it may be printed: quoted, shortened, nothing that a terminal would obey."""
    shown = repr(text if len(text) <= limit else text[:limit])
    return shown if len(text) <= limit else f"{shown} … ({len(text)} characters)"


def read_value(name: str, buf: Buffer, start: int, end: int, aux: Sequence[Buffer], depth: int = 0) -> Node:
    """The node of the whole value `buf[start:end]`, whatever it is. Tensors are recognised by their form."""
    lead = buf[start]
    number = read_int(buf, start)
    if number is not None:
        return Node(name, start, end, str(number), number)
    real = read_float(buf, start)
    if real is not None:
        return Node(name, start, end, f"{real:g}", real if real - real == 0 else str(real))
    if lead in (0xC0, 0xC2, 0xC3):
        value = {0xC0: None, 0xC2: False, 0xC3: True}[lead]
        return Node(name, start, end, {None: "nil", False: "false", True: "true"}[value], value)
    if 0xA0 <= lead <= 0xBF or 0xD9 <= lead <= 0xDB:
        text = read_str(buf, start, end)
        if text is None:
            return Node(name, start, end, "a string that is not UTF-8")
        return Node(name, start, end, plain(text), text[:4096])
    count, body = read_array_header(buf, start, end)
    if count >= 0:
        return _read_array(name, buf, start, end, aux, depth, count, body)
    count, body = read_map_header(buf, start, end)
    if count >= 0:
        return _read_map(name, buf, start, end, aux, depth, count, body)
    ext = read_ext(buf, start, end)
    if ext is not None:
        what = " (raw bytes)" if ext[0] == 3 else " (a pickle; never read)" if ext[0] in (1, 2) else ""
        return Node(name, start, end, f"ext {ext[0]}{what}, {size(end - ext[1])}")
    width = {0xC4: 1, 0xC5: 2, 0xC6: 4}.get(lead, 0)
    return Node(name, start, end, f"bin, {size(end - start - 1 - width)}")


def _read_array(
    name: str, buf: Buffer, start: int, end: int, aux: Sequence[Buffer], depth: int, count: int, body: int
) -> Node:
    if count == 3 and _is_string(buf[body]) and _is_array(buf[skip(buf, body, end)]):
        return read_tensor_node(name, buf, start, end, aux)
    if count and _is_integer(buf[body]) and (node := read_ids(name, buf, start, end)):
        return node
    if depth >= MAX_DEPTH:
        return Node(name, start, end, f"list of {count}, nested deeper than {MAX_DEPTH}")
    bounds = element_bounds(buf, body, end, min(count, MAX_CHILDREN), MAX_DEPTH)
    children = tuple(
        read_value(f"[{i}]", buf, bounds[i], bounds[i + 1], aux, depth + 1) for i in range(len(bounds) - 1)
    )
    more = f", the first {len(children)} shown" if count > len(children) else ""
    if all(not child.children for child in children) and not more and sum(len(c.text) for c in children) < _TEXT:
        inner = ", ".join(child.text for child in children)
        return Node(name, start, end, f"[{inner}]", [child.value for child in children])
    return Node(name, start, end, f"list of {count}{more}", None, children)


def _read_map(
    name: str, buf: Buffer, start: int, end: int, aux: Sequence[Buffer], depth: int, count: int, body: int
) -> Node:
    if depth >= MAX_DEPTH:
        return Node(name, start, end, f"map of {count}, nested deeper than {MAX_DEPTH}")
    bounds = element_bounds(buf, body, end, 2 * min(count, MAX_CHILDREN), MAX_DEPTH)
    children = []
    for i in range(0, len(bounds) - 1, 2):
        key = read_str(buf, bounds[i], bounds[i + 1])
        shown = read_value("", buf, bounds[i], bounds[i + 1], aux, depth + 1).text if key is None else _key(key)
        children.append(read_value(shown, buf, bounds[i + 1], bounds[i + 2], aux, depth + 1))
    more = f", the first {len(children)} shown" if count > len(children) else ""
    return Node(name, start, end, f"map of {count}{more}", {} if not children else None, tuple(children))


def _key(key: str) -> str:
    return key if key.isprintable() and len(key) <= 80 else plain(key, 80)


def read_ids(name: str, buf: Buffer, start: int, end: int, noun: str = "integers") -> Node | None:
    """The node of a list of integers, runs folded; None if the list holds something else."""
    runs = runs_of(buf, start, end)
    if runs is None:
        return None
    count, _ = read_array_header(buf, start, end)
    if count <= _FEW:
        ids = [value for repeat, value in runs for _ in range(repeat)]
        return Node(name, start, end, str(ids), ids)
    text = f"{count} {noun}: {fold(runs)}"
    return Node(name, start, end, text, {"count": count, "runs": [list(run) for run in runs]})


def runs_of(buf: Buffer, start: int, end: int) -> list[tuple[int, int]] | None:
    """(count, id) of every run of equal integers in a list; None if the list holds something else."""
    count, _ = read_array_header(buf, start, end)
    if not 0 <= count <= MAX_IDS or end - start > 9 * count + 5:
        return None
    try:
        ids = msgpack.unpackb(buf[start:end], max_array_len=count, max_map_len=0)
    except (msgpack.UnpackException, ValueError):
        return None
    if any(type(item) is not int for item in ids):
        return None
    return [(sum(1 for _ in group), value) for value, group in itertools.groupby(ids)]


def fold(runs: Sequence[tuple[int, int]]) -> str:
    """Runs as text: `257 84 68 70×[261] 260`. The middle of a long stretch without runs is left out."""
    parts: list[str] = []
    for is_run, group in itertools.groupby(runs, lambda run: run[0] >= _SHORTEST_RUN):
        if is_run:
            parts += [f"{count}{TIMES}[{value}]" for count, value in group]
        else:
            ids = [value for count, value in group for _ in range(count)]
            parts.append(" ".join(map(str, ids)) if len(ids) <= _STRETCH else _shorten(ids))
    if len(parts) > MAX_PARTS:
        left = len(parts) - MAX_PARTS
        half = MAX_PARTS // 2
        parts = [*parts[:half], f"… {left} more runs and stretches …", *parts[-half:]]
    return " ".join(parts) or "none"


def _shorten(ids: Sequence[int]) -> str:
    head, tail = ids[:_HEAD], ids[-_TAIL:]
    return f"{' '.join(map(str, head))} … {len(ids) - _HEAD - _TAIL} more … {' '.join(map(str, tail))}"


def read_tensor_node(name: str, buf: Buffer, start: int, end: int, aux: Sequence[Buffer]) -> Node:
    """The node of a tensor: dtype, shape, where its bytes are, their hash, and its numbers if they are few."""
    try:
        tensor = read_tensor(buf, start, end, aux, "tensor")
    except Rejection as rejection:
        what = rejection.message.removeprefix("tensor: ")
        return Node(name, start, end, f"not a tensor: {what}", {"error": what})
    place = f"aux {tensor.aux}" if tensor.aux else "inline"
    digest = blake3(tensor.data).hexdigest(length=_HASH_BYTES)
    text = f"{tensor.dtype} {list(tensor.shape)}, {size(tensor.data.nbytes)} {'in ' if tensor.aux else ''}{place}"
    value: dict[str, Any] = {
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "nbytes": tensor.data.nbytes,
        "place": place,
        "blake3": digest,
    }
    numbers = _few_numbers(tensor)
    if numbers is not None:
        value["values"] = numbers
        return Node(name, start, end, f"{text}: {numbers}", value)
    return Node(name, start, end, f"{text}, blake3 {digest}", value)


def _few_numbers(tensor: Tensor) -> Any:
    if tensor.elements > _VALUES:
        return None
    try:
        numbers = tensor.array().tolist()
    except Rejection:
        return None
    return numbers


def size(nbytes: int) -> str:
    """A number of bytes with its unit, such as `860,160 bytes`."""
    return f"{nbytes:,} byte{'' if nbytes == 1 else 's'}"


def flatten(nodes: Iterable[Node], depth: int = 0) -> Iterable[tuple[int, Node]]:
    """(depth, node) of all nodes, parents before their children."""
    for node in nodes:
        yield depth, node
        yield from flatten(node.children, depth + 1)


def _is_string(lead: int) -> bool:
    return 0xA0 <= lead <= 0xBF or 0xD9 <= lead <= 0xDB


def _is_array(lead: int) -> bool:
    return 0x90 <= lead <= 0x9F or 0xDC <= lead <= 0xDD


def _is_integer(lead: int) -> bool:
    return lead <= 0x7F or lead >= 0xE0 or 0xCC <= lead <= 0xD3
