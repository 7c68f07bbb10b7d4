"""The form that nearly every text request has, recognised in one straight run over its bytes.

A frontend's text requests differ in their rid and their ids; what stands behind the ids is one of a
handful of byte strings. Whoever has checked such a tail once need not check it again: see
`dialects.express`.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar

from sidecar.errors import Rejection
from sidecar.wire.ids import find_ids, prove_ids
from sidecar.wire.msgpack import pack_str
from sidecar.wire.native import scan
from sidecar.wire.tokenspeed import GENERATE_TAG

_TAG: Final = pack_str(GENERATE_TAG)
MAX_TAIL_BYTES: Final = 512
"""A longer tail holds more than sampling params and flags, and would not come again."""

T = TypeVar("T")

_TWO_NILS: Final = b"\xc0\xc0"

TextParts: TypeAlias = tuple[str, int, int, T]
"""(rid, number of fields, end of the ids, what is known of the bytes behind them)."""


def match_text(
    payload: bytes, tails: dict[bytes, T], limit: int | None = None, longest: int | None = None
) -> TextParts[T] | None:
    """The parts of a request with a short rid, no worker address, no text, good ids and a tail that is known.

    A rid is short up to 255 bytes; ids are good if there are 1 to `longest` of them and all are integers in
    [0, limit), and a tail has up to `MAX_TAIL_BYTES`. None if it has another form, however well-formed that
    may be.
    """
    if scan is not None:
        return scan.text(payload, _TAG, tails, MAX_TAIL_BYTES, limit, longest)
    try:
        lead = payload[0]
        if lead >> 4 == 0x9:
            pos, fields = 1, lead & 0x0F
        elif lead == 0xDC:
            pos, fields = 3, payload[1] << 8 | payload[2]
        elif lead == 0xDD:
            pos, fields = 5, int.from_bytes(payload[1:5], "big")
        else:
            return None
        if not payload.startswith(_TAG, pos):
            return None
        pos += len(_TAG)
        lead = payload[pos]
        if lead == 0xD9:
            start = pos + 2
            end = start + payload[pos + 1]
        elif lead >> 5 == 0b101:
            start = pos + 1
            end = start + (lead & 0x1F)
        else:
            return None
        if not payload.startswith(_TWO_NILS, end):
            return None
        ids = find_ids(payload, end + 2, len(payload))
        if ids is None or ids.n < 1 or (longest is not None and ids.n > longest):
            return None
        known = tails.get(payload[ids.end :]) if len(payload) - ids.end <= MAX_TAIL_BYTES else None
        if known is None:
            return None
        if limit is not None:
            prove_ids(ids, limit, "input_ids")
        elif not {int}.issuperset(map(type, ids.tolist())):
            return None
        return payload[start:end].decode(), fields, ids.end, known
    except (IndexError, UnicodeDecodeError, Rejection):
        return None


def join_tail(payload: bytes, end: int, /, *parts: bytes) -> bytes:
    """The first `end` bytes of a payload, and at most 8 parts behind them."""
    return b"".join((payload[:end], *parts))


replace_tail: Final = scan.join if scan is not None else join_tail
"""`join_tail`, without a copy of its own of what stays."""
