"""What the real engine makes of messages: alone, and behind the sidecar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.outcome import Result
from sidecar.pipeline import run
from sidecar.wire.framing import Framing
from tests.build import context_of, flat, policy
from tests.cases import captures, goldens
from tests.fuzz.runner import Fuzzer, differs
from tests.hostile import HOSTILE, Hostile, Segments
from tests.interop.engine.client import Engine
from tests.test_goldens import EQUAL, changes

CASES = [
    pytest.param(hostile, framing, id=f"{hostile.name} ({framing})")
    for hostile in HOSTILE
    for framing in Framing
    if framing is Framing.NATIVE or not hostile.native_only
]


@contextmanager
def real_segments(sizes: Mapping[str, int]) -> Iterator[None]:
    """Segments of these names and sizes below /dev/shm."""
    paths = [Path("/dev/shm", name) for name in sizes]
    for path, size in zip(paths, sizes.values(), strict=True):
        path.write_bytes(b"\0" * size)
    try:
        yield
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.name)
def test_what_is_said_to_end_an_engine_does(hostile: Hostile, engine: Engine) -> None:
    messages = [*hostile.before(Framing.NATIVE), hostile.frames(Framing.NATIVE)]
    with real_segments(hostile.segments):
        answer = engine.receive(
            messages, Framing.NATIVE, hostile.spec, max_model_len=hostile.rules.get("max_model_len")
        )
    assert ("died" in answer) is hostile.stops, answer


@pytest.mark.parametrize(("hostile", "framing"), CASES)
def test_behind_the_sidecar_it_ends_as_an_abort(hostile: Hostile, framing: Framing, engine: Engine) -> None:
    rules = context_of(hostile.spec, policy(framing, **hostile.rules), probe=Segments(hostile.segments))
    messages = []
    for message in (*hostile.before(framing), hostile.frames(framing)):
        messages += [flat(frames) for frames in run(message, rules).messages]
    answer = engine.receive(messages, framing, hostile.spec, max_model_len=hostile.rules.get("max_model_len"))
    assert "died" not in answer, answer
    outcomes = [result["outcome"] for result in answer["results"]]
    assert outcomes == ["generate"] * len(messages)
    ended = [(rids, reasons[0]["type"]) for _, rids, reasons, *_ in answer["terminal"]]
    assert ended == ([] if hostile.reason is None else [(["r"], "abort")])


APART = ("gate_decode_lmo", "q35_shm_with_hash")
"""Stripped by the sidecar on purpose; in a segment that only the frontend had."""


@pytest.mark.parametrize("name", [name for name in EQUAL if name not in APART])
def test_the_goldens_are_what_this_engine_computes(name: str, engine: Engine) -> None:
    golden = goldens()[name]
    rules = golden.context(**changes(Framing.TYPED))
    out = flat(run([b"\0", *golden.frames], rules).messages[0])
    (ours,) = engine.receive([out], Framing.TYPED, facts=True)["results"]
    own: dict[str, Any] = engine.materialize(golden.frames, golden.config)["result"]
    if own["media"] is None:
        assert (ours["input_ids"], ours["media"]) == (own["input_ids"], None)
    else:
        assert differs(own, ours) == ""


@pytest.mark.parametrize("entry", captures(), ids=lambda entry: f"{entry.case}/{entry.message}")
def test_what_the_gateway_sends_reaches_the_engine(entry: Any, engine: Engine) -> None:
    outcome = run(entry.frames, entry.context())
    assert outcome.result is Result.FORWARDED
    answer = engine.receive([flat(outcome.messages[0])], Framing.TYPED, entry.spec)
    assert "died" not in answer, answer
    assert answer["results"][0]["outcome"] == ("control" if entry.abort else "generate")


def test_mutated_messages(engine: Engine) -> None:
    with Fuzzer(seed=77, engine=engine) as fuzzer:
        for _ in range(5000):
            fuzzer.step()
    assert fuzzer.accounted
