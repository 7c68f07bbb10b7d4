"""Mutations of messages: one or a few changes to a valid one, in its tree or in its bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgpack


class Raw(bytes):
    """Bytes that stand in the payload as they are, well-formed or not."""


class Pairs(list[tuple[Any, Any]]):
    """A map as its pairs, so that a key may come twice."""


def parse(payload: bytes) -> Any:
    """A payload as a tree of lists, `Pairs` and leaves."""
    return msgpack.unpackb(payload, object_pairs_hook=Pairs, strict_map_key=False)


def pack(node: Any) -> bytes:
    """The encoding of a tree."""
    if isinstance(node, Raw):
        return bytes(node)
    if isinstance(node, Pairs):
        body = b"".join(pack(key) + pack(value) for key, value in node)
        return _header(0x80, b"\xde", b"\xdf", len(node)) + body
    if isinstance(node, list):
        if len(node) > 64 and all(type(value) is int for value in node):
            return bytes(msgpack.packb(node))
        return _header(0x90, b"\xdc", b"\xdd", len(node)) + b"".join(map(pack, node))
    return bytes(msgpack.packb(node))


def _header(fixed: int, short: bytes, long: bytes, count: int) -> bytes:
    if count < 16:
        return bytes([fixed | count])
    return short + struct.pack(">H", count) if count < 1 << 16 else long + struct.pack(">I", count)


def nest(depth: int, inner: bytes = b"\xc0") -> Raw:
    """Arrays of one element inside one another."""
    return Raw(b"\x91" * depth + inner)


INTEGERS: Final = (0, 1, 2, 3, 4, -1, -32, -33, 127, 128, 255, 256, 65535, 65536, 248056, 248057, 1_000_000, 2**31 - 1,
                   2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63))  # fmt: skip
DTYPES: Final = ("float32", "<f4", "bfloat16", "int64", "<i8", "int32", "bool", "|b1", "uint8", "uint64", "float64",
                 "float8_e4m3fn", "float16", "half", "<u2", "complex64", ">f4", "O", "V8", "<M8[s]", "torch.float32",
                 "strided", "__class__", "float4_e2m1fn_x2", "qint8", "")  # fmt: skip
LEAVES: Final[tuple[Any, ...]] = (
    None, True, False, 0.0, -0.0, 0.5, 1.5, 1e300, float("nan"), float("inf"), float("-inf"), "", "x", "r" * 300,
    "\x00", "\ud7ff\U0010ffff", b"", b"x", b"\x80\x04N.", [], [[]], [0], [1, 2], [[1, 2]], [[0, 0], [1, 1]],
    Pairs(), Pairs([("a", 1)]), Pairs([(1, 2)]), Pairs([("a", 1), ("a", 2)]), Pairs([(b"k", 1)]),
    Raw(b"\xc1"), Raw(b"\xa1\xff"), Raw(b"\xa3\xed\xa0\x80"), Raw(b"\xa2\xc0\x80"), Raw(b"\xa4\xf4\x90\x80\x80"),
    Raw(b"\xca\x3f\x80\x00\x00"), Raw(b"\xca\x7f\xc0\x00\x00"), Raw(b"\xcc\x05"), Raw(b"\xcd\x00\x05"),
    Raw(b"\xce\x00\x00\x00\x05"), Raw(b"\xcf" + b"\0" * 7 + b"\x05"), Raw(b"\xd0\x05"),
    Raw(b"\xd3" + b"\0" * 7 + b"\x05"),
    Raw(b"\xd1\xff\xff"), Raw(b"\xd3" + b"\xff" * 8), Raw(b"\xd9\x01x"), Raw(b"\xdb\0\0\0\1x"), Raw(b"\xdc\0\0"),
    Raw(b"\xdd\0\0\0\1\xc0"), Raw(b"\xde\0\0"), Raw(b"\x81\x90\x01"), Raw(b"\x81\x91\x80\x01"), Raw(b"\x81\xc0\x01"),
    Raw(b"\xdd\xff\xff\xff\xff"), Raw(b"\xdf\xff\xff\xff\xff"), Raw(b"\xdb\xff\xff\xff\xff"),
    Raw(b"\xc6\xff\xff\xff\xff"),
    Raw(b"\xc9\xff\xff\xff\xff\x03"), Raw(b"\xd6\xff\0\0\0\0"), Raw(b"\xd7\xff" + b"\xff" * 8),
    Raw(b"\xc7\x0c\xff" + b"\0" * 4 + b"\x7f" + b"\xff" * 7), Raw(b"\xc7\x0c\xff" + b"\0" * 12), Raw(b"\xd4\xff\0"),
    msgpack.ExtType(1, b"cos\nsystem\n."), msgpack.ExtType(2, b"x"), msgpack.ExtType(3, b""),
    msgpack.ExtType(3, b"\0" * 8),
    msgpack.ExtType(4, b"x"), msgpack.ExtType(127, b""), nest(5), nest(31), nest(33), nest(200), nest(2000),
    [[None, None]], ["float32", [1], msgpack.ExtType(3, b"\0\0\0\0")], ["int64", [0], msgpack.ExtType(3, b"")],
    ["float32", [2**62, 0], msgpack.ExtType(3, b"")], ["float32", [0, 2**63], msgpack.ExtType(3, b"")],
    ["int64", [1, 3], 1], ["int64", [1, 1], 0], ["float32", [1], True],
    ["float32", [2**63, 2], msgpack.ExtType(3, b"")],
)  # fmt: skip


def _leaf(rng: random.Random) -> Any:
    value = rng.choice(LEAVES)
    return Raw(pack(value)) if isinstance(value, list) else value


def _nodes(tree: Any, rng: random.Random) -> tuple[Any, int] | None:
    """A container of the tree and a place in it: two times in three one level further down."""
    if not isinstance(tree, list) or not tree:
        return None
    node = tree
    while True:
        inner = [key for key in range(len(node)) if isinstance(_get(node, key), list) and _get(node, key)]
        if not inner or rng.random() < 0.33:
            return node, rng.randrange(len(node))
        node = _get(node, rng.choice(inner))


def _get(node: Any, key: int) -> Any:
    return node[key][1] if isinstance(node, Pairs) else node[key]


def _set(node: Any, key: int, value: Any) -> None:
    node[key] = (node[key][0], value) if isinstance(node, Pairs) else value


def mutate_tree(tree: Any, rng: random.Random) -> Any:
    """The tree with one node changed, in place."""
    found = _nodes(tree, rng)
    if found is None:
        return _leaf(rng)
    node, key = found
    old = _get(node, key)
    kind = rng.randrange(12)
    if kind <= 2:
        _set(node, key, _leaf(rng))
    elif kind == 3:
        _set(node, key, rng.choice(INTEGERS))
    elif kind == 4 and type(old) is int:
        _set(node, key, old + rng.choice((-1, 1, 2, -2)) if -(2**62) < old < 2**62 else rng.choice(INTEGERS))
    elif kind == 5 and isinstance(old, str):
        _set(node, key, rng.choice(DTYPES))
    elif kind == 6:
        del node[key]
    elif kind == 7:
        node.insert(key, node[key])
    elif kind == 8:
        other = _nodes(tree, rng)
        assert other is not None
        _set(node, key, Raw(pack(_get(*other))))
    elif kind == 9:
        _set(node, key, [old] if rng.random() < 0.5 else Pairs([("a", old)]))
    elif kind == 10 and not isinstance(node, Pairs):
        node.extend(_leaf(rng) for _ in range(rng.randrange(1, 4)))
    elif isinstance(node, Pairs):
        value = rng.choice((_leaf(rng), "x", "image_grid_thw", "video_second_per_grid", "grid_thws"))
        node[key] = (value, old)
    else:
        _set(node, key, rng.choice(INTEGERS))
    return tree


def _flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] = rng.choice((0x00, 0x7F, 0x80, 0x90, 0xA0, 0xC0, 0xC1, 0xC3, 0xCA, 0xCB, 0xCF, 0xD3,
                                                 0xD9, 0xDC, 0xDD, 0xDE, 0xDF, 0xE0, 0xFF))  # fmt: skip


def _insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randrange(1, 9))


def _cut(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 1, 2, 3, 5, 8, 64))]


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _append(data: bytearray, rng: random.Random) -> None:
    data += rng.choice((b"\xc0", b"\x00", b"\xc1", b"\x90", b"\xff" * 9))


def _repeat(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.randrange(1, 64)]


_BYTES: Final[Sequence[Callable[[bytearray, random.Random], None]]] = (
    _flip, _flip, _overwrite, _overwrite, _insert, _cut, _truncate, _append, _repeat,
)  # fmt: skip


def mutate_bytes(payload: bytes, rng: random.Random) -> bytes:
    """The payload with a few of its bytes changed, mostly among the first hundreds."""
    data = bytearray(payload)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if data:
            rng.choice(_BYTES)(data, rng)
    return bytes(data)


def mutate(payload: bytes, aux: Sequence[bytes], rng: random.Random) -> tuple[bytes, list[bytes]]:
    """A payload and its aux frames with one to three changes."""
    frames = list(aux)
    kind = rng.random()
    if kind < 0.72:
        tree = parse(payload)
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
            tree = mutate_tree(tree, rng)
        payload = pack(tree)
    elif kind < 0.97 or not frames:
        payload = mutate_bytes(payload, rng)
    else:
        at = rng.randrange(len(frames))
        change = rng.randrange(4)
        if change == 0:
            del frames[at]
        elif change == 1:
            frames.insert(at, b"")
        elif change == 2:
            frames[at] = frames[at][:-1]
        else:
            frames[at] += b"\0"
    return payload, frames
