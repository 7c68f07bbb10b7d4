"""Reading msgpack by position: where a value ends, what a header says, and the few encodings we write.

Nothing here builds Python objects from nested data, recurses, or allocates what a header promises: a
value is walked in place, one lead byte at a time, and a claim larger than the bytes that are left is
refused where it stands. Format: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from sidecar.errors import Reason, Rejection
from sidecar.wire.native import scan

Buffer: TypeAlias = bytes | memoryview
"""A received frame or a part of it. `buf[i]` is an int either way."""

NIL: Final = b"\xc0"
FALSE: Final = b"\xc2"
TRUE: Final = b"\xc3"
EMPTY_ARRAY: Final = b"\x90"

MAX_VALUES: Final = 1 << 18
"""The most values inside one value, id lists aside. Walking them takes 50 ns a scalar and 300 a container."""

EXT_RAW: Final = 3
"""The one ext code of the wire: raw tensor bytes. Codes 1 and 2 are pickle and never accepted."""

_PREFIX_BYTES: Final = {  # lead byte -> how many bytes of length or count follow it
    0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4,
    0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4,
}  # fmt: skip
_FIXED_BYTES: Final = {  # lead byte -> the whole size of a value whose size the lead byte gives
    0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9,
    0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9, 0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18,
}  # fmt: skip

# The whole size in bytes of the value behind a lead byte, where the lead byte alone gives it; else 0.
# An empty container is such a value, a container with elements is not.
SIZE: Final = bytes(
    1 if lead <= 0x80 or lead == 0x90 or lead >= 0xE0
    else lead - 0xA0 + 1 if 0xA0 <= lead <= 0xBF
    else _FIXED_BYTES.get(lead, 0)
    for lead in range(256)
)  # fmt: skip

_NEGATIVE_FIXINT: Final = 0xE0
_INT_BYTES: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}


def truncated(pos: int, end: int) -> Rejection:
    """The refusal of a value that needs more bytes than there are."""
    return Rejection(
        Reason.MALFORMED_REQUEST,
        f"the payload is truncated: the value at byte {pos} needs more than the {max(end - pos, 0)} bytes left",
    )


def too_many(pos: int) -> Rejection:
    """The refusal of a value that holds more values than anything real."""
    return Rejection(Reason.TOO_LARGE, f"the value at byte {pos} holds more than {MAX_VALUES} values")


def skip(buf: Buffer, pos: int, end: int, max_depth: int = 32) -> int:
    """Return the position after the value at `pos`.

    Raises `Rejection(malformed_request)` for a truncated value or the unused lead byte c1, and
    `Rejection(too_large)` for one nested deeper than `max_depth` containers or of more than `MAX_VALUES`
    values.
    """
    if scan is not None:
        after = scan.skip(buf, pos, end, max_depth, MAX_VALUES)
        if after >= 0:
            return after
    start = pos
    pending: list[int] = []  # values still to come in each enclosing container
    left = 1
    total = 0
    sizes = SIZE
    while True:
        if left == 0:
            if not pending:
                return pos
            left = pending.pop()
            continue
        if pos >= end:
            raise truncated(start, end)
        lead = buf[pos]
        size = sizes[lead]
        if size:
            pos += size
            left -= 1
            if pos > end:
                raise truncated(start, end)
            continue
        count, body = _container(buf, pos, end, lead)
        left -= 1
        if count < 0:
            pos = body
            continue
        if len(pending) >= max_depth:
            raise Rejection(
                Reason.TOO_LARGE,
                f"the value at byte {start} nests deeper than the limit of {max_depth} (limits.nesting)",
            )
        total += count
        if total > MAX_VALUES:
            raise too_many(start)
        pending.append(left)
        left = count
        pos = body


def _container(buf: Buffer, pos: int, end: int, lead: int) -> tuple[int, int]:
    """(values inside, position of the first) of an array or map; (-1, position after) of a str, bin or ext."""
    if lead < 0x90:
        count, body = 2 * (lead & 0x0F), pos + 1
    elif lead < 0xA0:
        count, body = lead & 0x0F, pos + 1
    else:
        width = _PREFIX_BYTES.get(lead)
        if width is None:
            raise Rejection(Reason.MALFORMED_REQUEST, f"byte {pos} is {lead:#04x}, which msgpack does not use")
        body = pos + 1 + width
        if body > end:
            raise truncated(pos, end)
        number = int.from_bytes(buf[pos + 1 : body], "big")
        if lead < 0xDC:
            after = body + number + (1 if 0xC7 <= lead <= 0xC9 else 0)
            if after > end:
                raise truncated(pos, end)
            return -1, after
        count = number if lead <= 0xDD else 2 * number
    if count > end - body:  # each value takes a byte at least
        raise truncated(pos, end)
    return count, body


def read_array_header(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """(number of elements, position of the first) of the array at `pos`; (-1, pos) if it is no array.

    Raises `Rejection(malformed_request)` if the count is larger than the bytes that follow.
    """
    if pos >= end:
        raise truncated(pos, end)
    lead = buf[pos]
    if not (0x90 <= lead <= 0x9F or 0xDC <= lead <= 0xDD):
        return -1, pos
    return _container(buf, pos, end, lead)


def read_map_header(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """(number of pairs, position of the first key) of the map at `pos`; (-1, pos) if it is no map."""
    if pos >= end:
        raise truncated(pos, end)
    lead = buf[pos]
    if not (0x80 <= lead <= 0x8F or 0xDE <= lead <= 0xDF):
        return -1, pos
    count, body = _container(buf, pos, end, lead)
    return count // 2, body


def read_int(buf: Buffer, pos: int) -> int | None:
    """The integer at `pos` of a value known to be whole; None if it is not an integer (a bool is not)."""
    lead = buf[pos]
    if lead <= 0x7F:
        return lead
    if lead >= _NEGATIVE_FIXINT:
        return lead - 0x100
    width = _INT_BYTES.get(lead)
    if width is None:
        return None
    return int.from_bytes(buf[pos + 1 : pos + 1 + width], "big", signed=lead >= 0xD0)


def read_str(buf: Buffer, pos: int, end: int) -> str | None:
    """The string at `pos` of a value that ends at `end`; None if it is no string or not UTF-8."""
    lead = buf[pos]
    if 0xA0 <= lead <= 0xBF:
        body = pos + 1
    elif 0xD9 <= lead <= 0xDB:
        body = pos + 1 + _PREFIX_BYTES[lead]
    else:
        return None
    try:
        return str(buf[body:end], "utf-8")
    except UnicodeDecodeError:
        return None


def read_float(buf: Buffer, pos: int) -> float | None:
    """The float at `pos` of a value known to be whole; None if it is not a float."""
    lead = buf[pos]
    if lead == 0xCB:
        return float(struct.unpack_from(">d", buf, pos + 1)[0])
    if lead == 0xCA:
        return float(struct.unpack_from(">f", buf, pos + 1)[0])
    return None


def read_ext(buf: Buffer, pos: int, end: int) -> tuple[int, int] | None:
    """(code, position of the data) of the ext value at `pos` that ends at `end`; None if it is no ext."""
    lead = buf[pos]
    if 0xD4 <= lead <= 0xD8:
        return buf[pos + 1], pos + 2
    if 0xC7 <= lead <= 0xC9:
        code = pos + 1 + _PREFIX_BYTES[lead]
        return buf[code], code + 1
    return None


def pack_int(value: int) -> bytes:
    """The shortest encoding of an integer in [-2^63, 2^64)."""
    if value >= 0:
        if value <= 0x7F:
            return value.to_bytes(1, "big")
        if value <= 0xFF:
            return b"\xcc" + value.to_bytes(1, "big")
        if value <= 0xFFFF:
            return b"\xcd" + value.to_bytes(2, "big")
        if value <= 0xFFFFFFFF:
            return b"\xce" + value.to_bytes(4, "big")
        return b"\xcf" + value.to_bytes(8, "big")
    if value >= -0x20:
        return value.to_bytes(1, "big", signed=True)
    if value >= -0x80:
        return b"\xd0" + value.to_bytes(1, "big", signed=True)
    if value >= -0x8000:
        return b"\xd1" + value.to_bytes(2, "big", signed=True)
    if value >= -0x80000000:
        return b"\xd2" + value.to_bytes(4, "big", signed=True)
    return b"\xd3" + value.to_bytes(8, "big", signed=True)


def pack_array_header(count: int) -> bytes:
    """The shortest header of an array of `count` elements."""
    if count <= 0x0F:
        return (0x90 | count).to_bytes(1, "big")
    if count <= 0xFFFF:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def pack_map_header(count: int) -> bytes:
    """The shortest header of a map of `count` pairs."""
    if count <= 0x0F:
        return (0x80 | count).to_bytes(1, "big")
    if count <= 0xFFFF:
        return b"\xde" + count.to_bytes(2, "big")
    return b"\xdf" + count.to_bytes(4, "big")


def pack_str(text: str) -> bytes:
    """The shortest encoding of a string. A lone surrogate becomes a question mark."""
    data = text.encode("utf-8", "replace")
    size = len(data)
    if size <= 0x1F:
        return (0xA0 | size).to_bytes(1, "big") + data
    if size <= 0xFF:
        return b"\xd9" + size.to_bytes(1, "big") + data
    if size <= 0xFFFF:
        return b"\xda" + size.to_bytes(2, "big") + data
    return b"\xdb" + size.to_bytes(4, "big") + data


def pack_ext(code: int, data: Buffer) -> bytes:
    """The shortest encoding of an ext value."""
    size = len(data)
    fixed = {1: b"\xd4", 2: b"\xd5", 4: b"\xd6", 8: b"\xd7", 16: b"\xd8"}.get(size)
    if fixed is not None:
        head = fixed
    elif size <= 0xFF:
        head = b"\xc7" + size.to_bytes(1, "big")
    elif size <= 0xFFFF:
        head = b"\xc8" + size.to_bytes(2, "big")
    else:
        head = b"\xc9" + size.to_bytes(4, "big")
    return b"".join((head, code.to_bytes(1, "big"), data))
