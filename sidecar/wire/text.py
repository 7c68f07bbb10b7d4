"""The form that nearly every text request has, recognised in one straight run over its first bytes.

A frontend's text requests differ in their rid, their ids and sometimes their seed; what stands behind
the ids is one of a handful of byte strings. Whoever has checked such a tail once need not check it
again: see `dialects.tokenspeed`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sidecar.errors import Rejection
from sidecar.wire.ids import IdList, find_ids
from sidecar.wire.msgpack import pack_str
from sidecar.wire.native import scan
from sidecar.wire.tokenspeed import GENERATE_TAG

_TAG: Final = pack_str(GENERATE_TAG)
MAX_TAIL_BYTES: Final = 512
"""A longer tail holds more than sampling params and flags, and would not come again."""

_TWO_NILS: Final = b"\xc0\xc0"


class TextRequest(NamedTuple):
    """A request of `fields` fields with a short rid, no worker address and no text: only ids.

    `ids` are found, not proved. `tail` are the fields behind them, which nobody has looked at; None if
    they are longer than those of a text request.
    """

    rid: str
    ids: IdList
    fields: int
    tail: bytes | None


def match_text(payload: bytes) -> TextRequest | None:
    """The parts of a payload of that form, None if it has another, however well-formed that may be."""
    if scan is not None:
        found = scan.text(payload, _TAG, MAX_TAIL_BYTES)
        if found is None:
            return None
        rid, fields, start, body, end, n, least, most, tail = found
        return TextRequest(rid, IdList(payload, start, body, end, n, (least, most)), fields, tail)
    try:
        lead = payload[0]
        if lead >> 4 == 0x9:
            pos, fields = 1, lead & 0x0F
        elif lead == 0xDC:
            pos, fields = 3, payload[1] << 8 | payload[2]
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
        if ids is None:
            return None
        tail = payload[ids.end :] if len(payload) - ids.end <= MAX_TAIL_BYTES else None
        return TextRequest(payload[start:end].decode(), ids, fields, tail)
    except (IndexError, UnicodeDecodeError, Rejection):
        return None
