"""What is measured is what it is called, and nothing of it is refused."""

from __future__ import annotations

import msgpack
import pytest

from benchmarks import growth, peers
from benchmarks.contexts import call, context, model
from benchmarks.requests import CASES, PATCH_BYTES, images, segment, text, video
from benchmarks.stages import new_bytes
from sidecar.model import ModelSpec
from sidecar.wire.tokenspeed import Request


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return model()


def prompt(frames: list[bytes]) -> list[int]:
    ids: list[int] = msgpack.unpackb(frames[0], strict_map_key=False)[Request.INPUT_IDS]
    return ids


@pytest.mark.parametrize("name", [name for name in CASES if "128" not in name and "120k" not in name])
def test_a_case_is_forwarded_as_often_as_it_is_measured(name: str, spec: ModelSpec) -> None:
    with segment():
        process = call(CASES[name](), context(spec))
        first, second = process(), process()
    assert [bytes(frame) for frame in first.messages[0]] == [bytes(frame) for frame in second.messages[0]]


def test_a_refused_request_is_not_measured(spec: ModelSpec) -> None:
    with pytest.raises(ValueError, match="refused"):
        call(images(1, 2000, side=8, form="shared memory"), context(spec))


def test_prompts_have_the_lengths_that_they_are_named_after() -> None:
    assert len(prompt(text(1000))) == 1000
    assert len(prompt(images(2, 5000, side=16))) == 5000
    assert len(prompt(video(3, 2000, side=8))) == 2000


def test_a_request_without_a_hash_has_features_of_its_own() -> None:
    first, second = images(2, 1000, side=8, hashed=False)[1:]
    assert len(first) == len(second) == 64 * PATCH_BYTES
    assert first != second


@pytest.mark.parametrize("series", growth.SERIES, ids=lambda series: series.name)
def test_series_grow(series: growth.Series, spec: ModelSpec) -> None:
    call(series.build(series.sizes[1]), context(spec))
    assert list(series.sizes) == sorted(set(series.sizes))


@pytest.mark.parametrize("name", ["1 KB", "64 KB", "1 MB"])
def test_messages_for_sockets_differ_in_their_rids_and_have_their_size(name: str, spec: ModelSpec) -> None:
    size = peers.SIZES[name]
    made = list(peers.messages(size, 7, 3))
    rids = [msgpack.unpackb(frames[0], strict_map_key=False)[Request.RID] for frames in made]
    assert rids == [f"chatcmpl-benchmark-{number:012}" for number in (7, 8, 9)]
    number, unit = name.split()
    assert sum(map(len, made[0])) == pytest.approx(int(number) * {"KB": 1000, "MB": 1_000_000}[unit], rel=0.05)
    call(made[0], context(spec))


def test_new_bytes_are_neither_received_frames_nor_slices_of_them(spec: ModelSpec) -> None:
    frames = images(1, 1200, side=16, form="inline")
    outcome = call(frames, context(spec))()
    hoisted = next(frame for frame in outcome.messages[0] if len(frame) == 256 * PATCH_BYTES)
    made = new_bytes(outcome, frames)
    assert len(made) == len(outcome.messages[0]) - 1
    assert not any(view.nbytes == len(hoisted) for view in made)
    assert new_bytes(call(text(100), context(spec))(), text(100)) != []  # equal bytes, but other objects
