"""Token substitution: each span of the prompt under its item's pad value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sidecar.wire.ids import IdList, IdRun, encode_run
from sidecar.wire.msgpack import Buffer


def substitute(ids: IdList, runs: Sequence[IdRun], fills: Iterable[tuple[int, int]]) -> bytes:
    """The encoding of the list with each run replaced by `fill = (id, count)`.

    `runs` are ascending stretches of the list's bytes and `fills` their replacements, whose counts are
    those of the runs: the list keeps its length, its header and every other byte.
    """
    view = memoryview(ids.buf)
    chunks: list[Buffer] = []
    pos = ids.start
    for run, (token_id, count) in zip(runs, fills, strict=True):
        chunks.append(view[pos : run.start])
        chunks.append(encode_run(token_id, count))
        pos = run.end
    chunks.append(view[pos : ids.end])
    return b"".join(chunks)
