"""What can be made out in a request that was refused: its fields, and the segments that it names."""

from __future__ import annotations

from sidecar.errors import Rejection
from sidecar.wire.ids import find_ids
from sidecar.wire.msgpack import Buffer, read_array_header, read_str, skip
from sidecar.wire.spans import array_view, map_view
from sidecar.wire.tokenspeed import Item, Request


def readable_fields(payload: Buffer, last: Request) -> dict[int, tuple[int, int]]:
    """Where the fields up to `last` stand, as far as they can be made out."""
    end = len(payload)
    fields: dict[int, tuple[int, int]] = {}
    try:
        count, pos = read_array_header(payload, 0, end)
        for field in range(min(count, last + 1)):
            ids = find_ids(payload, pos, end) if field in (Request.INPUT_IDS, Request.INPUT_IDS_UNPADDED) else None
            after = ids.end if ids is not None else skip(payload, pos, end)
            fields[field] = pos, after
            pos = after
    except Rejection:
        pass
    return fields


def read_handles(payload: Buffer) -> list[str]:
    """The names of all shared-memory segments that can be made out in a request that was refused."""
    field = readable_fields(payload, Request.MULTIMODAL_INPUTS).get(Request.MULTIMODAL_INPUTS)
    if field is None:
        return []
    pos, end = field
    names = []
    try:
        media_count, pos = read_array_header(payload, pos, end)
        item_count, pos = read_array_header(payload, pos, end) if media_count > 0 else (-1, pos)
        for _ in range(item_count):
            after = skip(payload, pos, end)
            names += _names_in_item(payload, pos, after)
            pos = after
    except Rejection:
        pass
    return names


def _names_in_item(payload: Buffer, pos: int, end: int) -> list[str]:
    try:
        item = array_view(payload, pos, end)
        if item is None or item.is_nil(Item.FEATURE_SHM):
            return []
        view = map_view(payload, item.bounds[Item.FEATURE_SHM], end)
    except Rejection:
        return []
    place = view.entries.get("shm_name") if view is not None else None
    name = read_str(payload, place[1], place[2]) if place is not None else None
    return [name] if name is not None else []
