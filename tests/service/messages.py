"""Messages as frontends send them, ready packed."""

from __future__ import annotations

import asyncio
from functools import lru_cache

import msgpack

from tests.build import IMAGE, grid, item, media, patches, prompt, request, tensor

SLOW_GRID = (1, 22, 32)
SLOW_TOKENS = 22 * 32 // 4


def text(rid: str, **fields: object) -> bytes:
    """A text request."""
    return msgpack.packb(request(rid, prompt(11, 12, 13), **fields))


@lru_cache(maxsize=64)
def slow(rid: str, seed: int = 0) -> bytes:
    """A request with an image of 67 kB that has no hash, so that it goes to the pool."""
    image = item(
        offsets=((1, SLOW_TOKENS),),
        feature=tensor(patches(22 * 32, seed)),
        data={"image_grid_thw": grid(SLOW_GRID)},
    )
    return msgpack.packb(request(rid, prompt(11, (IMAGE, SLOW_TOKENS), 12), mm=media(image)))


def abort(rid: str) -> bytes:
    """A native abort."""
    return msgpack.packb(["AbortReq", rid, None])


def control(tag: str = "FlushCacheReqInput") -> bytes:
    """A control message."""
    return msgpack.packb([tag, None, None])


async def settle() -> None:
    """Let the loop run what was scheduled."""
    for _ in range(3):
        await asyncio.sleep(0)
