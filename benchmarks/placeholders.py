"""Kimi-K3's pads to native text: the span search against a walk over the ids, in one run.

python -m benchmarks.placeholders
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import msgpack

from sidecar.materialize.placeholders import NativePlaceholder, replace_pads
from sidecar.wire.ids import IdList, find_ids

NATIVE = NativePlaceholder(163605, tuple(range(1000, 1009)))


def walk(payload: bytes) -> bytes:
    """What a consumer without spans does: decode, look at every id, build the list anew, encode."""
    out: list[int] = []
    for token in msgpack.unpackb(payload):
        if token == NATIVE.pad_id:
            out.extend(NATIVE.ids)
        else:
            out.append(token)
    packed: bytes = msgpack.packb(out)
    return packed


def spans(ids: IdList, images: int) -> bytes:
    """The sidecar's way, from a list whose bounds are known (every request's are) to the list's bytes."""
    converted = replace_pads(ids, images, NATIVE)
    assert converted is not None
    return bytes(converted.span)


def median(function: Callable[[], object], rounds: int = 21) -> float:
    """The median duration of a call, in milliseconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1000)
    return sorted(times)[rounds // 2]


def main() -> None:
    """Print the two medians and their ratio for a prompt of 128k ids."""
    rng = random.Random(0)
    for pads in (1, 8, 64):
        ids = [rng.randrange(163000) for _ in range(131072)]
        for place in rng.sample(range(len(ids)), pads):
            ids[place] = NATIVE.pad_id
        payload = msgpack.packb(ids)
        found = find_ids(payload, 0, len(payload))
        assert found is not None
        assert spans(found, pads) == walk(payload)
        ours, theirs = median(lambda p=found, n=pads: spans(p, n)), median(lambda p=payload: walk(p))
        print(f"128k ids, {pads:2} pads: spans {ours:6.2f} ms, walk {theirs:6.2f} ms, ratio {theirs / ours:5.1f}")


if __name__ == "__main__":
    main()
