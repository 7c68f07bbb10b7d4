"""A recording with something of everything for the default model: text, images, a video, aborts, refusals, noise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgpack

from sidecar.recording import Direction, Framing, Record, Writer
from tests.build import IMAGE, NORMALIZED, VIDEO, frames, grid, item, media, patches, prompt, request, tensor

WIDTH: Final = 1536
"""Values a patch of the default model."""


def picture(seed: int, start: int, tokens: int, modality: int = 1) -> list[Any]:
    """An image or one-step video of 4 patches a token, without a hash."""
    name = "image_grid_thw" if modality == 1 else "video_grid_thw"
    return item(
        modality,
        offsets=((start, start + tokens - 1),),
        feature=tensor(patches(4 * tokens, seed, WIDTH)),
        data={name: grid((1, 4, tokens))},
    )


def messages() -> Iterator[list[bytes]]:
    """The messages of the recording, in native framing."""
    yield frames(request("text", list(range(100, 400)), NORMALIZED))
    for seed in range(3):
        yield frames(request(f"image-{seed}", prompt(1, (IMAGE, 48), 2), NORMALIZED, media(picture(seed, 1, 48))))
    two = media(picture(7, 1, 16), picture(8, 18, 16))
    yield frames(request("two-images", prompt(1, (IMAGE, 16), 2, (IMAGE, 16), 3), NORMALIZED, two))
    video = media(picture(9, 1, 32, modality=2))
    yield frames(request("video", prompt(1, (VIDEO, 32), 2), NORMALIZED, video))
    yield frames(request("wrong-span", prompt(1, (IMAGE, 49), 2), NORMALIZED, media(picture(1, 1, 48))))
    yield frames(request("no-prompt", [], NORMALIZED))
    yield frames(["AbortReq", "finished-long-ago", None])
    yield frames(["FlushCacheReqInput", None, None])
    yield [msgpack.packb(["TokenizedGenerateReqInput"])]


def write(path: Path) -> Path:
    """Write the recording."""
    with Writer(path) as writer:
        for message in messages():
            writer.write(Record.now(message, Direction.INGRESS, Framing.NATIVE))
    return path
