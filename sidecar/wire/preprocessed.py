"""The map-encoded preprocessed request: token ids and raw media under string keys.

The body is the one that Dynamo's workers take (`PreprocessedRequest`); the transport is ours. Only the
keys that the rules ask for are looked at, and every other entry is a span.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from sidecar.errors import Reason, Rejection
from sidecar.wire.ids import IdList, find_ids
from sidecar.wire.msgpack import NIL, Buffer, read_array_header, read_map_header, read_str, skip
from sidecar.wire.spans import MapView, map_view

TOKEN_IDS: Final = "token_ids"
MEDIA: Final = "multi_modal_data"
REQUEST_ID: Final = "request_id"
VALIDATION_ERROR: Final = "validation_error"
EXTRA_ARGS: Final = "extra_args"

IMAGE_KEYS: Final = ("image_url", "image")

RENDERED_KEYS: Final = frozenset(
    {
        "expanded_token_ids",
        "mm_placeholders",
        "mm_placeholders_by_modality",
        "mm_hashes",
        "mm_hashes_by_modality",
        "mm_kwargs_shm",
        "mm_kwargs_nixl",
    }
)
"""Entries of `extra_args` that say that the media has been processed before it came here."""

_MAX_SCAN_PAIRS: Final = 256


class PreprocessedView(NamedTuple):
    """A preprocessed request. `media` counts the items under each key of `multi_modal_data`."""

    map: MapView
    rid: str | None
    ids: IdList | None
    media: Mapping[str, int]
    rendered: bool
    error: str | None

    @property
    def images(self) -> int:
        """How many images the request carries."""
        return sum(self.media.get(key, 0) for key in IMAGE_KEYS)


def has_token_ids(payload: Buffer) -> bool:
    """Whether a payload is a map with the key `token_ids`: what tells this dialect from the others."""
    end = len(payload)
    try:
        count, pos = read_map_header(payload, 0, end)
        for _ in range(min(count, _MAX_SCAN_PAIRS)):
            after = skip(payload, pos, end)
            if read_str(payload, pos, after) == TOKEN_IDS:
                return True
            pos = _skip_value(payload, after, end, 1 << 10)
    except Rejection:
        return False
    return False


def read_request_id(payload: Buffer) -> str | None:
    """The `request_id` of a map as far as it can be read; None if there is none."""
    end = len(payload)
    try:
        count, pos = read_map_header(payload, 0, end)
        for _ in range(count):
            after = skip(payload, pos, end)
            value_end = _skip_value(payload, after, end, 1 << 10)
            if read_str(payload, pos, after) == REQUEST_ID:
                return read_str(payload, after, value_end)
            pos = value_end
    except Rejection:
        return None
    return None


def _skip_value(payload: Buffer, pos: int, end: int, max_depth: int) -> int:
    """The position after a value; an id list, however long, is stepped over in C."""
    ids = find_ids(payload, pos, end, max_depth) if pos < end and payload[pos] in (0xDC, 0xDD) else None
    return ids.end if ids is not None else skip(payload, pos, end, max_depth)


def read_preprocessed(payload: Buffer, max_depth: int) -> PreprocessedView:
    """The view of a map with `token_ids`.

    Raises `Rejection(malformed_request)` for a map that is no whole message or has a key twice or a
    field of a wrong type, and `Rejection(malformed_multimodal)` for media that is no map of lists.
    """
    end = len(payload)
    count, body = read_map_header(payload, 0, end)
    entries: dict[str, tuple[int, int, int]] = {}
    pos = body
    ids = None
    for _ in range(count):
        at = skip(payload, pos, end, max_depth)
        key = read_str(payload, pos, at)
        if key is None or key in entries:
            raise _bad(f"the map has a key that is no string or comes twice (byte {pos})")
        if key == TOKEN_IDS:
            ids = find_ids(payload, at, end, max_depth)
            after = ids.end if ids is not None else skip(payload, at, end, max_depth)
            if ids is None and payload[at:after] != NIL:
                raise _bad("token_ids is no list")
        else:
            after = skip(payload, at, end, max_depth)
        entries[key] = (pos, at, after)
        pos = after
    if pos != end:
        raise _bad(f"{end - pos} bytes follow the request, which ends at byte {pos}")
    view = MapView(payload, 0, pos, body, entries)
    return PreprocessedView(
        view,
        _text(view, REQUEST_ID),
        ids,
        _read_media(view, max_depth),
        _is_rendered(view, max_depth),
        _text(view, VALIDATION_ERROR),
    )


def _text(view: MapView, key: str) -> str | None:
    place = view.entries.get(key)
    if place is None or view.buf[place[1]] == 0xC0:
        return None
    text = read_str(view.buf, place[1], place[2])
    if text is None:
        raise _bad(f"{key} is no string")
    return text


def _read_media(view: MapView, max_depth: int) -> dict[str, int]:
    place = view.entries.get(MEDIA)
    if place is None or view.buf[place[1]] == 0xC0:
        return {}
    media = map_view(view.buf, place[1], place[2], max_depth)
    if media is None:
        raise Rejection(Reason.MALFORMED_MULTIMODAL, f"{MEDIA} is no map")
    counts = {}
    for key, (_, at, after) in media.entries.items():
        if view.buf[at] == 0xC0:
            continue
        count, _ = read_array_header(view.buf, at, after)
        if count < 0:
            raise Rejection(Reason.MALFORMED_MULTIMODAL, f"{MEDIA}: {key!r:.40} is no list")
        counts[key] = count
    return counts


def _is_rendered(view: MapView, max_depth: int) -> bool:
    place = view.entries.get(EXTRA_ARGS)
    if place is None:
        return False
    extra = map_view(view.buf, place[1], place[2], max_depth)
    if extra is None:
        return False
    return any(view.buf[extra.entries[key][1]] != 0xC0 for key in RENDERED_KEYS & extra.entries.keys())


def _bad(what: str) -> Rejection:
    return Rejection(Reason.MALFORMED_REQUEST, what)
