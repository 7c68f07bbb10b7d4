"""The requests that are measured: native framing, Qwen3.5's ids, grids and features.

Ids are drawn evenly from the vocabulary, so three quarters take five bytes and the rest three. A
feature is bfloat16 [patches, 1536], 3,072 bytes a patch, four patches a token.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import msgpack

RID: Final = "chatcmpl-cPlp7jYStBs97me5LXuwyZBB-01a22bad-71dd-7028-b86a-572eb4bb6fe2"
IMAGE_ID: Final = 248056
VIDEO_ID: Final = 248057
VOCABULARY: Final = 248000
PATCH_BYTES: Final = 1536 * 2
MERGED: Final = 4
"""Patches a token."""

IMAGE, VIDEO = 1, 2
SIDE: Final = 64
"""Patches on a side of the usual image: 1,024 tokens, 12.6 MB."""

_GRID_NAMES: Final = {IMAGE: "image_grid_thw", VIDEO: "video_grid_thw"}
_RAW: Final = 3

Grid = tuple[int, int, int]


def text_ids(count: int, rng: Random) -> list[int]:
    """Ids of text."""
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def sampling(seed: int | None = 5) -> list[Any]:
    """Normalized sampling params. One without a seed has to be edited: the sidecar resolves it."""
    params: list[Any] = [32, None, None, 1.0, 1.0, 1, 0.0, 0.0, 0.0, 1.0, 0, None, None, None, None, False, True, True]
    return [*params, False, None, None, None, None, seed, None, 1, [], 0, True]


def encode(ids: Sequence[int], items: Sequence[Any] | None, *, rid: str = RID, seed: int | None = 5) -> bytes:
    """A payload: 11 fields for text, as gateways send it, and 25 for media."""
    head = ["TokenizedGenerateReqInput", rid, None, None, ids, sampling(seed), False, -1, 0, None, False]
    if items is None:
        return bytes(msgpack.packb(head))
    media = [items, None, None, None, None, None, None]
    rest = [None, None, None, False, 0.0, None, None, None, None, None, None, media, None, None]
    return bytes(msgpack.packb([*head, *rest]))


@dataclass
class Builder:
    """Media as it is added, with text in between."""

    rng: Random = field(default_factory=lambda: Random(0))
    ids: list[int] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    aux: list[bytes] = field(default_factory=list)

    def text(self, count: int) -> None:
        """Add so many ids of text."""
        self.ids += text_ids(count, self.rng)

    def spans(self, placeholder: int, tokens: int, count: int, gap: int) -> list[list[int]]:
        """Add spans of placeholders with text between them; their inclusive bounds."""
        bounds = []
        for k in range(count):
            if k:
                self.text(gap)
            start = len(self.ids)
            self.ids += [placeholder] * tokens
            bounds.append([start, len(self.ids) - 1])
        return bounds

    def item(self, modality: int, spans: list[list[int]], grid: Grid, feature: Any, handle: Any, hashed: bool) -> None:
        """Add an item."""
        name = _GRID_NAMES[modality]
        sizes = b"".join(side.to_bytes(8, "little") for side in grid)
        digest = self.rng.getrandbits(63) if hashed else None
        metadata = {name: ["int64", [1, 3], msgpack.ExtType(_RAW, sizes)]}
        self.items.append([modality, digest, None, spans, feature, handle, metadata, None, None, None])

    def image(self, side: int, data: bytes, form: str = "aux", hashed: bool = True, segment: str = "") -> None:
        """Add an image of side × side patches; `form` is "aux", "inline" or "shared memory"."""
        self.media(IMAGE, (1, side, side), data, form, hashed, segment)

    def media(
        self, modality: int, grid: Grid, data: bytes, form: str, hashed: bool, segment: str = "", gap: int = 0
    ) -> None:
        """Add an item of one span a frame, `gap` ids of text between them."""
        frames, height, width = grid
        placeholder = IMAGE_ID if modality == IMAGE else VIDEO_ID
        spans = self.spans(placeholder, height * width // MERGED, frames, gap)
        shape = [frames * height * width, PATCH_BYTES // 2]
        feature = handle = None
        if form == "aux":
            self.aux.append(data)
            feature = ["bfloat16", shape, len(self.aux)]
        elif form == "inline":
            feature = ["bfloat16", shape, msgpack.ExtType(_RAW, data)]
        else:
            handle = {"shm_name": segment, "shape": shape, "dtype": "bfloat16"}
        self.item(modality, spans, grid, feature, handle, hashed)

    def frames(self, *, rid: str = RID, seed: int | None = 5) -> list[bytes]:
        """The message."""
        return [encode(self.ids, self.items, rid=rid, seed=seed), *self.aux]


def text(tokens: int, *, rid: str = RID, seed: int | None = 5) -> list[bytes]:
    """A request without media."""
    return [encode(text_ids(tokens, Random(0)), None, rid=rid, seed=seed)]


def images(count: int, tokens: int, *, side: int = SIDE, form: str = "aux", hashed: bool = True) -> list[bytes]:
    """`count` images of side × side patches, evenly spread over a prompt of `tokens` ids.

    With hashes all features are one buffer: nobody reads them. Without, each has bytes of its own.
    """
    built = Builder()
    size = side * side * PATCH_BYTES
    shared = bytes(size)
    gap = (tokens - count * side * side // MERGED) // (count + 1)
    for _ in range(count):
        built.text(gap)
        data = shared if hashed else built.rng.randbytes(size)
        built.image(side, data, form, hashed, segment=segment_name())
    built.text(tokens - len(built.ids))
    return built.frames()


def video(frames: int, tokens: int, *, side: int = 32) -> list[bytes]:
    """One video of `frames` grid rows of side × side patches, a span each, evenly spread over the prompt."""
    built = Builder()
    gap = (tokens - frames * side * side // MERGED) // (frames + 1)
    built.text(gap)
    built.media(VIDEO, (frames, side, side), bytes(frames * side * side * PATCH_BYTES), "aux", True, gap=gap)
    built.text(tokens - len(built.ids))
    return built.frames()


def segment_name() -> str:
    """The shared-memory segment of this process."""
    return f"psm_benchmark_{os.getpid()}"


@contextmanager
def segment(size: int = SIDE * SIDE * PATCH_BYTES) -> Iterator[str]:
    """A segment of the size of the usual image, so that its handle is sound."""
    path = Path("/dev/shm", segment_name())
    path.touch(0o600)
    os.truncate(path, size)
    try:
        yield path.name
    finally:
        path.unlink()


CASES: Final[dict[str, Callable[[], list[bytes]]]] = {
    "text, 1k": lambda: text(1000),
    "text, 128k": lambda: text(128_000),
    "image, aux": lambda: images(1, 4096),
    "image, aux, no hash": lambda: images(1, 4096, hashed=False),
    "image, inline": lambda: images(1, 4096, form="inline"),
    "image, inline, no hash": lambda: images(1, 4096, form="inline", hashed=False),
    "image, shared memory": lambda: images(1, 4096, form="shared memory"),
    "8 images in 32k": lambda: images(8, 32_768),
    "video, 128 frames in 40k": lambda: video(128, 40_960),
    "64 images in 120k": lambda: images(64, 120_000),
}
"""An image is 1,024 tokens and 12.6 MB, a frame 256 tokens and 3.1 MB. Built when they are needed."""
