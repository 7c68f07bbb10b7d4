"""Values that the engine decodes without a type, as Python objects: what it would refuse is refused here."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from sidecar.wire.msgpack import Buffer

_TIMESTAMPS: Final = (b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff")
"""How an ext value of code -1 begins: a date to the engine's decoder, which fails outside the years 1 to 9999."""


def unpack_plain(span: Buffer) -> Any:
    """The value that a span encodes.

    Raises `ValueError` for strings that are not UTF-8, keys that are no strings, and ext values of any
    code, timestamps included.
    """
    raw = bytes(span)
    try:
        value = msgpack.unpackb(raw, strict_map_key=True, ext_hook=_refuse_ext)
    except msgpack.UnpackException as error:
        raise ValueError(str(error)) from None
    if any(mark in raw for mark in _TIMESTAMPS):
        _refuse_timestamps(value)
    return value


def _refuse_ext(code: int, data: bytes) -> Any:
    raise ValueError(f"ext code {code}")


def _refuse_timestamps(value: Any) -> None:
    pending = [value]
    while pending:
        node = pending.pop()
        if type(node) is dict:
            pending.extend(node.values())
        elif type(node) is list:
            pending.extend(node)
        elif type(node) is msgpack.Timestamp:
            raise ValueError("a timestamp")
