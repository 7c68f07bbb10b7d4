"""The form that nearly every text request has, recognised in one straight run over its bytes.

A frontend's text requests differ in their rid and their ids; what stands behind the ids is one of a
handful of byte strings. Whoever has checked such a tail once need not check it again: see
`dialects.express`.
"""

from __future__ import annotations

import zlib
from typing import Final

from sidecar.errors import Rejection
from sidecar.wire.ids import find_ids, prove_ids
from sidecar.wire.msgpack import pack_int, pack_str
from sidecar.wire.native import Tail, scan
from sidecar.wire.tokenspeed import GENERATE_TAG

_TAG: Final = pack_str(GENERATE_TAG)
MAX_TAIL_BYTES: Final = 512
"""A longer tail holds more than sampling params and flags, and would not come again."""

_TWO_NILS: Final = b"\xc0\xc0"


def pass_text(
    payload: bytes, tails: dict[bytes, Tail], limit: int | None = None, longest: int | None = None
) -> tuple[str, bytes] | None:
    """What becomes of a request with a short rid, no worker address, no text, good ids and a tail that is known.

    Returns (rid, payload that leaves). A rid is short up to 255 bytes; ids are good if there are 1 to
    `longest` of them and all are integers in [0, limit), and a tail has up to `MAX_TAIL_BYTES`. None if it
    has another form, however well-formed that may be.
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
        rid = payload[start:end].decode()
    except (IndexError, UnicodeDecodeError, Rejection):
        return None
    if known.fields != fields:
        return None
    if known.edited is None:
        return rid, payload
    before, number, behind = known.edited
    return rid, b"".join((payload[: ids.end], before, pack_crc(rid) if number is None else number, behind))


def pack_crc(text: str) -> bytes:
    """The shortest encoding of the CRC-32 of a string."""
    return pack_int(zlib.crc32(text.encode()))
