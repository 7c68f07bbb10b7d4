"""The engine's outputs: which requests a batch ends, and the terminal outputs that are sent in its place.

`BatchTokenIDOutSlim` is a tagged array of columns: 1 rids · 2 output_ids · 3 finished_reasons ·
4 prompt_tokens · 5 completion_tokens · 6 cached_tokens · 7, 8 logprobs · 9 engine_index, and four
numbers of the engine's load that a shorter array leaves out. A finished reason is `""` while a request runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgpack

from sidecar.wire.msgpack import Buffer
from sidecar.wire.tokenspeed import OUTPUT_TAG

ABORT: Final = "abort"
"""The finished reason of a request that the engine does not complete."""

_MIN_FIELDS: Final = 4


class Outputs(NamedTuple):
    """The rids of a batch of outputs, and those of them for which it is the last one."""

    rids: Sequence[str]
    finished: Sequence[str]


def read_outputs(payload: Buffer) -> Outputs | None:
    """Whose outputs a message holds; None for a message that is no `BatchTokenIDOutSlim`.

    Only the columns that say so are decoded; tokens and logprobs are skipped.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=len(payload) or 1)
    try:
        unpacker.feed(payload)
        if unpacker.read_array_header() < _MIN_FIELDS or unpacker.unpack() != OUTPUT_TAG:
            return None
        rids = unpacker.unpack()
        unpacker.skip()
        reasons = unpacker.unpack()
    except Exception:  # whatever the engine sends is passed on; here it is only looked at
        return None
    if not _are_strings(rids) or not _are_strings(reasons) or len(rids) != len(reasons):
        return None
    return Outputs(rids, [rid for rid, reason in zip(rids, reasons, strict=True) if reason])


def abort_outputs(rids: Sequence[str], engine_index: int) -> bytes:
    """One batch that ends these requests with the reason `abort`, as the rank `engine_index` would.

    It has no token and no load numbers: a gateway takes a ten-field array and keeps the load it knows.
    """
    nothing: list[list[int]] = [[] for _ in rids]
    zeros = [0] * len(rids)
    packed: bytes = msgpack.packb(
        [OUTPUT_TAG, list(rids), nothing, [ABORT] * len(rids), zeros, zeros, zeros, nothing, nothing, engine_index],
        unicode_errors="surrogatepass",
    )
    return packed


def _are_strings(column: Any) -> bool:
    return isinstance(column, list) and all(isinstance(item, str) for item in column)
