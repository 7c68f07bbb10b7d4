"""The valid messages that are mutated: recorded ones, and built ones that fill every field."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import msgpack
import numpy as np

from sidecar.model import ModelSpec
from sidecar.pipeline import run
from sidecar.wire.framing import Framing
from tests.build import (
    BARE,
    IMAGE,
    KIMI,
    LLAMA4,
    NORMALIZED,
    QWEN,
    QWEN_CONFIG,
    TEXT,
    VIDEO,
    context,
    frames,
    grid,
    item,
    media,
    patches,
    prompt,
    request,
    sent,
    tensor,
)
from tests.cases import captures, goldens
from tests.fuzz.mutate import parse

MAX_SEED_BYTES = 60_000
"""Longer payloads are a feature's bytes for the most part, and slow to take apart."""


class Seed(NamedTuple):
    """A message without its framing, the model it is for, and that model's config where the engine has one."""

    name: str
    payload: bytes
    aux: list[bytes]
    spec: ModelSpec
    config: dict[str, Any] | None = None


@cache
def seeds() -> list[Seed]:
    """All of them, in one order."""
    return [seed for seed in _all() if len(seed.payload) <= MAX_SEED_BYTES]


def _all() -> Iterator[Seed]:
    for golden in goldens().values():
        try:
            parse(golden.frames[0])
        except ValueError:
            continue
        spec = golden.context().spec
        yield Seed(golden.name, golden.frames[0], golden.frames[1:], spec, golden.config)
        if golden.out:
            yield Seed(f"{golden.name}, materialized", golden.out[0], golden.out[1:], spec)
    for capture in captures():
        if not capture.abort:
            yield Seed(capture.case, capture.frames[1], capture.frames[2:], capture.spec)
    yield from _built()
    yield from _maps()


SAMPLING_FULL = (
    100, ["a", "stop"], [1, 2], 0.7, 0.9, 40, 0.05, 0.5, -0.5, 1.1, 2, None, "[a-z]+", None, None, True, False, True,
    True, 16, {"key": [1, {"a": None}]}, 3, {"17": -1.5, "3": 100}, 12345, 0, 1, None, 0, False,
)  # fmt: skip


def _built() -> Iterator[Seed]:
    pack = msgpack.packb
    everything: dict[str, Any] = {
        "http_worker_ipc": "ipc:///tmp/worker",
        "input_text": "text",
        "return_logprob": False,
        "logprob_start_len": 3,
        "token_ids_logprob": [1, 2],
        "stream": True,
        "input_embeds": [[0.5, 1], [2.5]],
        "session_params": [None, "parent", 3, True],
        "custom_logit_processor": "name",
        "created_time": 1.5,
        "bootstrap_host": "10.0.0.1",
        "bootstrap_port": 8998,
        "bootstrap_room": 2**63,
        "input_multi_ids": [[1], [2, 3]],
        "input_extra_infos": [{"a": {"b": [1.5, None, b"x"]}}],
        "data_parallel_rank": 1,
    }
    yield Seed(
        "text, every field",
        pack(request(ids=[1, 2, 3], sampling=SAMPLING_FULL, **everything, tail=[1, "x", [2]])),
        [],
        TEXT,
    )
    yield Seed("text, six fields", pack(request(ids=[1, 2, 3], sampling=(5,), count=6)), [], TEXT)
    image, video = patches(16), patches(32, 1)
    ids = prompt(1, (IMAGE, 4), 2, (VIDEO, 4), 3, (VIDEO, 4), 4)
    many = media(
        item(2, hash=9, offsets=((7, 10), (12, 15)), feature=["float32", [32, 24], 2],
             data={"video_grid_thw": grid((2, 4, 4)), "second_per_grid_ts": 0.5, "x": [[1, 2], [3, 4]], "y": True}),
        item(1, offsets=((1, 4),), feature=["<f4", [16, 24], 1], data={"image_grid_thw": [[1, 4, 4]]}, tail=[1]),
        im=IMAGE, video=VIDEO, tail=["later"],
    )  # fmt: skip
    ids = prompt(1, (IMAGE, 4), 2, 20, (VIDEO, 4), 3, (VIDEO, 4), 4)
    payload = pack(request(ids=ids, mm=many, **everything))
    aux = [image.tobytes(), video.tobytes()]
    yield Seed("image and video, every field", payload, aux, QWEN, dict(QWEN_CONFIG))
    out = sent(run([payload, *aux], context()))
    yield Seed("image and video, its own output", out[0], out[1:], QWEN)
    room = {"bootstrap_room": 7, "bootstrap_host": "10.0.0.1", "bootstrap_port": 8998, "later": [1]}
    yield Seed("handshake", pack(request(mm=media(item(hash=5, handshake=room)))), [], QWEN)
    encoded = tensor(np.zeros((4, 8), np.float32))
    item_encoded = item(hash=5, feature=None, encoded=encoded, deepstack=encoded)
    yield Seed("encoded", pack(request(mm=media(item_encoded))), [], QWEN)
    positions = tensor(np.arange(24).reshape(3, 8))
    yield Seed("positions", pack(request(mm=media(item(), positions=positions, scalar=-2))), [], QWEN)
    yield Seed("delta only", pack(request(mm=media(item(), delta=tensor([[3]]), scalar=3))), [], QWEN)
    yield Seed("delta only, decode", pack(request(mm=media(item(), delta=tensor([[-2]])))), [], QWEN)
    nothing = request(mm=media(positions=positions, delta=tensor([[0]]), scalar=0))
    yield Seed("no items", pack(nothing), [], QWEN)
    yield Seed("validation_error", pack(request(mm=media(item()), error="refused before")), [], QWEN)
    shm = {"shm_name": "psm_1", "shape": [16, 24], "dtype": "float32"}
    yield Seed("shared memory", pack(request(mm=media(item(hash=1, shm=shm)))), [], QWEN)
    kimi_ids = prompt(1, (163605, 4), 2, (163605, 4))
    kimi = media(*(
        item(hash=10 + k, offsets=((1 + 5 * k, 4 + 5 * k),), feature=tensor(np.ones((16, 3, 2, 2), np.float32)),
             data={"grid_thws": grid((1, 4, 4)), "patches_per_image": tensor([16])})
        for k in range(2)
    ))  # fmt: skip
    yield Seed("kimi", pack(request(ids=kimi_ids, mm=kimi)), [], KIMI)
    llama = media(
        item(offsets=((1, 4), (6, 9)), feature=tensor(np.ones((2, 3, 4, 4), np.float32)),
             data={"aspect_ratios": tensor([[1, 2]])})
    )  # fmt: skip
    yield Seed("llama", pack(request(ids=prompt(1, (200092, 4), 2, (200092, 4)), mm=llama)), [], LLAMA4)
    yield Seed("unknown model", pack(request(ids=prompt(1, 2, (77, 4)), mm=media(item(data={})))), [], BARE)
    for name, sampling in (("final sampling", NORMALIZED), ("open sampling", SAMPLING_FULL)):
        yield Seed(name, pack(request(ids=[5] * 20, sampling=sampling)), [], TEXT)


def _maps() -> Iterator[Seed]:
    """Requests of the preprocessed dialect."""
    pictures = {"image_url": [{"Url": "http://x/a.png"}, {"Decoded": {"shape": [1, 2], "data": b"x"}}]}
    entries: dict[str, Any] = {
        "token_ids": prompt(1, 163605, 2, 163605, 3),
        "request_id": "r",
        "multi_modal_data": pictures,
        "mm_processor_kwargs": {"a": 1},
        "extra_args": None,
        "stop_conditions": {"max_tokens": 5},
    }
    yield Seed("map with images", msgpack.packb(entries), [], KIMI)
    yield Seed("map of text", msgpack.packb({"token_ids": [1, 2], "sampling_options": {"n": 1}}), [], TEXT)
    rendered = {**entries, "extra_args": {"expanded_token_ids": [1]}, "validation_error": None}
    yield Seed("map, rendered", msgpack.packb(rendered), [b"aux"], KIMI)


def framed(seed: Seed, framing: Framing) -> list[bytes]:
    """The seed as frames."""
    return frames(seed.payload, *seed.aux, framing=framing)
