"""Whose outputs a batch holds, which requests it ends, and the batches that end requests in the engine's place."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.wire.outputs import Outputs, abort_outputs, read_outputs
from sidecar.wire.tokenspeed import ENGINE_DEAD, OUTPUT_TAG

LOAD = [3, 0, 30, 4096]


def batch(rids: list[Any], reasons: list[Any], *tail: Any) -> bytes:
    n = len(rids)
    columns = [[[7] for _ in rids], reasons, [5] * n, [1] * n, [0] * n, [[] for _ in rids], [[] for _ in rids]]
    packed: bytes = msgpack.packb([OUTPUT_TAG, rids, *columns, *tail])
    return packed


@pytest.mark.parametrize("tail", [(), (0,), (1, *LOAD), (1, *LOAD, "new", [1])])
def test_the_finished_rids_of_a_batch(tail: tuple[Any, ...]) -> None:
    payload = batch(["a", "b", "c", "d"], ["", "stop", "", "abort"], *tail)
    assert read_outputs(payload) == Outputs(["a", "b", "c", "d"], ["b", "d"])
    assert read_outputs(memoryview(payload)) == Outputs(["a", "b", "c", "d"], ["b", "d"])


def test_a_batch_of_nothing() -> None:
    assert read_outputs(batch([], [])) == Outputs([], [])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        ENGINE_DEAD,
        b"\xc1garbage",
        msgpack.packb([]),
        msgpack.packb({}),
        msgpack.packb([OUTPUT_TAG]),
        msgpack.packb([OUTPUT_TAG, ["a"], [[1]]]),
        msgpack.packb(["BatchStrOut", ["a"], [[1]], [""]]),
        msgpack.packb([OUTPUT_TAG, ["a"], [[1]], ["", "stop"]]),
        msgpack.packb([OUTPUT_TAG, [1], [[1]], [""]]),
        msgpack.packb([OUTPUT_TAG, ["a"], [[1]], [None]]),
        msgpack.packb([OUTPUT_TAG, "a", [[1]], "x"]),
        batch(["a"], ["stop"])[:30],
    ],
)
def test_what_is_no_batch_of_outputs(payload: bytes) -> None:
    assert read_outputs(payload) is None


@given(st.binary(max_size=80))
def test_any_bytes_are_looked_at_without_an_error(data: bytes) -> None:
    read_outputs(data)


@given(st.lists(st.text(max_size=30), max_size=20), st.integers(0, 65535))
def test_abort_outputs_end_each_request(rids: list[str], index: int) -> None:
    payload = abort_outputs(rids, index)
    assert read_outputs(payload) == Outputs(rids, rids)
    fields = msgpack.unpackb(payload)
    assert fields[0] == OUTPUT_TAG
    assert fields[9] == index
    assert all(len(column) == len(rids) for column in fields[1:9])


def test_an_abort_output_is_what_the_engine_sends_but_for_the_load() -> None:
    # As engine 0.1.1 encodes the end of a request that was refused.
    engine = ["BatchTokenIDOutSlim", ["r"], [[]], ["abort"], [0], [0], [0], [[]], [[]], 2]
    assert msgpack.unpackb(abort_outputs(["r"], 2)) == engine
