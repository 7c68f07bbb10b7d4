"""A generate request of the TokenSpeed dialect, as spans: where each field stands and what type it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgpack

from sidecar.errors import Reason, Rejection
from sidecar.wire.ids import IdList, find_ids
from sidecar.wire.media import MediaView, read_media
from sidecar.wire.msgpack import (
    MAX_VALUES,
    NIL,
    Buffer,
    read_array_header,
    read_int,
    read_str,
    skip,
    too_many,
    truncated,
)
from sidecar.wire.plain import unpack_plain
from sidecar.wire.spans import ArrayView, element_bounds
from sidecar.wire.tokenspeed import GENERATE_TAG, REQUEST_DEFAULTS, REQUEST_MIN_FIELDS, Request

_TAG: Final = b"\xb9" + GENERATE_TAG.encode()

_STR: Final = frozenset([*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB])
_INT: Final = frozenset([*range(0x80), *range(0xE0, 0x100), *range(0xCC, 0xD4)])
_BOOL: Final = frozenset([0xC2, 0xC3])
_ARRAY: Final = frozenset([*range(0x90, 0xA0), 0xDC, 0xDD])
_NUMBER: Final = _INT | {0xCA, 0xCB}
_ANY: Final = frozenset(range(256))
_OPTIONAL: Final = frozenset([0xC0])

_TYPES: Final[Mapping[int, tuple[frozenset[int], str]]] = {
    Request.HTTP_WORKER_IPC: (_STR | _OPTIONAL, "a string or nil"),
    Request.INPUT_TEXT: (_STR | _OPTIONAL, "a string or nil"),
    Request.INPUT_IDS: (_ARRAY | _OPTIONAL, "a list of ids or nil"),
    Request.SAMPLING_PARAMS: (_ARRAY, "an array"),
    Request.RETURN_LOGPROB: (_BOOL, "a bool"),
    Request.LOGPROB_START_LEN: (_INT, "an integer"),
    Request.TOP_LOGPROBS_NUM: (_INT, "an integer"),
    Request.TOKEN_IDS_LOGPROB: (_ARRAY | _OPTIONAL, "a list of ids or nil"),
    Request.STREAM: (_BOOL, "a bool"),
    Request.INPUT_EMBEDS: (_ARRAY | _OPTIONAL, "a list or nil"),
    Request.SESSION_PARAMS: (_ARRAY | _OPTIONAL, "an array or nil"),
    Request.CUSTOM_LOGIT_PROCESSOR: (_STR | _OPTIONAL, "a string or nil"),
    Request.RETURN_HIDDEN_STATES: (_BOOL, "a bool"),
    Request.CREATED_TIME: (_NUMBER, "a number"),
    Request.BOOTSTRAP_HOST: (_STR | _OPTIONAL, "a string or nil"),
    Request.BOOTSTRAP_PORT: (_INT | _OPTIONAL, "an integer or nil"),
    Request.BOOTSTRAP_ROOM: (_INT | _OPTIONAL, "an integer or nil"),
    Request.INPUT_MULTI_IDS: (_ARRAY | _OPTIONAL, "a list or nil"),
    Request.INPUT_EXTRA_INFOS: (_ARRAY | _OPTIONAL, "a list or nil"),
    Request.INPUT_IDS_UNPADDED: (_ARRAY | _OPTIONAL, "a list of ids or nil"),
    Request.MULTIMODAL_INPUTS: (_ANY, "anything"),
    Request.VALIDATION_ERROR: (_STR | _OPTIONAL, "a string or nil"),
    Request.DATA_PARALLEL_RANK: (_INT | _OPTIONAL, "an integer or nil"),
}
"""The types of the engine's own struct, as sets of lead bytes: it ends when a field has another."""

_LAST_FIELD: Final = Request.DATA_PARALLEL_RANK
_MAX_PASSED: Final = 256
_passed: Final[set[bytes]] = set()
_SCALAR: Final = frozenset(_INT | _BOOL | _OPTIONAL | _NUMBER)


class RequestView(NamedTuple):
    """A generate request whose every field has a place and the type that the engine decodes.

    `ids`, `unpadded` and `media` are None where the field is nil; the lists' elements are not yet proved
    to be ids.
    """

    buf: Buffer
    array: ArrayView
    rid: str
    ids: IdList | None
    unpadded: IdList | None
    media: MediaView | None

    def text(self, field: Request) -> str | None:
        """The value of a string field; None where it is nil or the array is shorter."""
        array = self.array
        if array.is_nil(field):
            return None
        return read_str(self.buf, array.bounds[field], array.bounds[field + 1])

    def flag(self, field: Request) -> bool:
        """The value of a bool field; False where the array is shorter."""
        return field < len(self.array) and self.buf[self.array.bounds[field]] == 0xC3

    def integer(self, field: Request) -> int | None:
        """The value of an integer field; the default of the wire where the array is shorter."""
        if field >= len(self.array):
            default: int | None = REQUEST_DEFAULTS.get(field)
            return default
        return read_int(self.buf, self.array.bounds[field])


def default_field(field: int) -> bytes:
    """The encoding of what a field has when the array ends before it."""
    try:
        value = REQUEST_DEFAULTS.get(Request(field))
    except ValueError:
        return NIL
    packed: bytes = msgpack.packb(value)
    return packed


def read_rid(payload: Buffer) -> tuple[str | None, int, int]:
    """(rid, position of its value, position after it) of a payload; rid is None if it cannot be read.

    A tag that is another string does not matter here: the rid is what makes an answer possible.
    """
    end = len(payload)
    try:
        count, pos = read_array_header(payload, 0, end)
        if count < 2 or payload[pos] not in _STR:
            return None, 0, 0
        at = skip(payload, pos, end)
        after = skip(payload, at, end)
    except Rejection:
        # A header that claims more elements than there are bytes still has a first and a second one.
        return _read_rid_of_short_payload(payload)
    return read_str(payload, at, after), at, after


def _read_rid_of_short_payload(payload: Buffer) -> tuple[str | None, int, int]:
    end = len(payload)
    lead = payload[0] if end else 0
    pos = 1 if 0x92 <= lead <= 0x9F else 3 if lead == 0xDC else 5 if lead == 0xDD else end
    try:
        if pos >= end or payload[pos] not in _STR:
            return None, 0, 0
        at = skip(payload, pos, end)
        after = skip(payload, at, end)
    except Rejection:
        return None, 0, 0
    return read_str(payload, at, after), at, after


def read_request(
    payload: Buffer,
    rid: str,
    aux: Sequence[Buffer] = (),
    *,
    max_items: int,
    max_depth: int,
) -> RequestView:
    """The view of a generate request whose rid has been read.

    Raises `Rejection(malformed_request)` for a wrong tag, too few fields, a field of a type that the
    engine's decoder refuses, or bytes after the array, `Rejection(too_large)` for deep nesting, and what
    `read_media` raises.
    """
    end = len(payload)
    count, body = read_array_header(payload, 0, end)
    if count < REQUEST_MIN_FIELDS:
        raise Rejection(
            Reason.MALFORMED_REQUEST,
            f"the request has {count} fields; the engine needs {REQUEST_MIN_FIELDS}, the tag to the sampling params",
        )
    if count > MAX_VALUES:
        raise too_many(0)
    if payload[body : body + len(_TAG)] != _TAG:
        raise Rejection(Reason.MALFORMED_REQUEST, f"the tag is not {GENERATE_TAG}")
    bounds = element_bounds(payload, body, end, Request.INPUT_IDS, max_depth)
    found, pos = _read_list(payload, bounds[-1], end, max_depth)
    bounds.append(pos)
    bounds += element_bounds(payload, pos, end, min(count, Request.INPUT_IDS_UNPADDED) - len(bounds) + 1, max_depth)[1:]
    unpadded, media, media_error = None, None, None
    if count > Request.INPUT_IDS_UNPADDED:
        unpadded, pos = _read_list(payload, bounds[-1], end, max_depth)
        bounds.append(pos)
    if count > Request.MULTIMODAL_INPUTS:
        pos = bounds[-1]
        try:
            media = read_media(payload, pos, end, aux, max_items=max_items, max_depth=max_depth)
            bounds.append(media.array.end if media is not None else pos + 1)
        except Rejection as rejection:
            # What is wrong with the media is said if the rest of the request can be read.
            media_error = rejection
            bounds.append(skip(payload, pos, end, max_depth))
        bounds += element_bounds(payload, bounds[-1], end, count - len(bounds) + 1, max_depth)[1:]
    pos = bounds[-1]
    if pos != end:
        raise Rejection(Reason.MALFORMED_REQUEST, f"{end - pos} bytes follow the request, which ends at byte {pos}")
    array = ArrayView(payload, 0, bounds)
    _check_types(array)
    if media_error is not None:
        raise media_error
    return RequestView(payload, array, rid, found, unpadded, media)


def _read_list(payload: Buffer, pos: int, end: int, max_depth: int) -> tuple[IdList | None, int]:
    """The id list at `pos`, None if another type stands there, and the position after it."""
    if pos >= end:
        raise truncated(pos, end)
    found = find_ids(payload, pos, end, max_depth)
    return found, found.end if found is not None else skip(payload, pos, end, max_depth)


def field_is_well_formed(field: Request, span: Buffer) -> bool:
    """Whether one field, cut out of a request, has the type that the engine decodes."""
    if span[0] not in _TYPES[field][0]:
        return False
    check = _CONTENTS.get(field)
    if check is None or span[0] in _SCALAR:
        return True
    try:
        check(span, 0, len(span), field)
    except Rejection:
        return False
    return True


def _check_types(array: ArrayView) -> None:
    """Check that every field has the type that the engine decodes.

    A frontend's requests begin their fields with the same few strings of lead bytes; one whose fields'
    contents need no look is checked once. 1.5 against 7.8 us.
    """
    buf, bounds = array.buf, array.bounds
    begins = bytes([buf[at] for at in bounds[Request.HTTP_WORKER_IPC : min(len(array), _LAST_FIELD + 1)]])
    if begins in _passed:
        return
    plain = True
    for field, lead in enumerate(begins, Request.HTTP_WORKER_IPC):
        leads, what = _TYPES[field]
        if lead not in leads:
            raise _bad_content(field, f"begins with byte {lead:#04x}; expected {what}")
        check = _CONTENTS.get(field) if lead not in _SCALAR else None
        if check is not None:
            plain = False
            check(buf, bounds[field], bounds[field + 1], field)
    if plain and len(_passed) < _MAX_PASSED:
        _passed.add(begins)


def _bad_content(field: int, what: str) -> Rejection:
    return Rejection(Reason.MALFORMED_REQUEST, f"field {field} ({Request(field).name.lower()}) {what}")


def _check_text(buf: Buffer, pos: int, end: int, field: int) -> None:
    if read_str(buf, pos, end) is None:
        raise _bad_content(field, "is not UTF-8")


def _check_int_list(buf: Buffer, pos: int, end: int, field: int) -> None:
    count, body = read_array_header(buf, pos, end)
    bounds = element_bounds(buf, body, end, count)
    if any(buf[at] not in _INT for at in bounds[:-1]):
        raise _bad_content(field, "holds something that is no integer")


def _check_int_lists(buf: Buffer, pos: int, end: int, field: int) -> None:
    count, body = read_array_header(buf, pos, end)
    bounds = element_bounds(buf, body, end, count)
    for at, after in pairwise(bounds):
        if buf[at] not in _ARRAY:
            raise _bad_content(field, "holds something that is no list of integers")
        _check_int_list(buf, at, after, field)


def _check_session(buf: Buffer, pos: int, end: int, field: int) -> None:
    """`SessionParams`: id, rid (strings), offset (integer), replace (bool), each of which may be nil."""
    count, body = read_array_header(buf, pos, end)
    bounds = element_bounds(buf, body, end, count)
    for index, leads in enumerate((_STR, _STR, _INT, _BOOL)[:count]):
        at = bounds[index]
        if buf[at] not in leads | _OPTIONAL:
            raise _bad_content(field, f"has a wrong type at position {index}")
        if leads is _STR and buf[at] in _STR and read_str(buf, at, bounds[index + 1]) is None:
            raise _bad_content(field, f"is not UTF-8 at position {index}")


def _check_plain(buf: Buffer, pos: int, end: int, field: int) -> None:
    """Values that the engine decodes without a type: strings of UTF-8, string keys, no ext values."""
    try:
        unpack_plain(buf[pos:end])
    except ValueError as error:
        raise _bad_content(field, f"cannot be decoded ({type(error).__name__})") from None


def _check_plain_maps(buf: Buffer, pos: int, end: int, field: int) -> None:
    _check_plain(buf, pos, end, field)
    count, body = read_array_header(buf, pos, end)
    for at in element_bounds(buf, body, end, count)[:-1]:
        if not (0x80 <= buf[at] <= 0x8F or 0xDE <= buf[at] <= 0xDF):
            raise _bad_content(field, "holds something that is no map")


_CONTENTS: Final[Mapping[int, Callable[[Buffer, int, int, int], None]]] = {
    Request.HTTP_WORKER_IPC: _check_text,
    Request.INPUT_TEXT: _check_text,
    Request.TOKEN_IDS_LOGPROB: _check_int_list,
    Request.INPUT_EMBEDS: _check_plain,
    Request.SESSION_PARAMS: _check_session,
    Request.CUSTOM_LOGIT_PROCESSOR: _check_text,
    Request.BOOTSTRAP_HOST: _check_text,
    Request.INPUT_MULTI_IDS: _check_int_lists,
    Request.INPUT_EXTRA_INFOS: _check_plain_maps,
    Request.VALIDATION_ERROR: _check_text,
}
