"""Verdicts: the pipeline's own words, on every recorded request and every golden."""

from __future__ import annotations

import dataclasses

import msgpack
import numpy as np
import pytest

from sidecar import pipeline
from sidecar.context import Context
from sidecar.inspection.page import read_page
from sidecar.inspection.values import TIMES
from sidecar.inspection.verdict import Judge, Verdict, describe
from sidecar.model import ModelSpec
from sidecar.recording import Direction, Framing, Record
from sidecar.settings import load
from tests.build import KIMI, QWEN, frames, image_request, item, media, request
from tests.cases import captures, goldens


def judge_for(spec: ModelSpec = QWEN, *sets: str, memory: bool = False, egress: Framing | None = None) -> Judge:
    settings = load(None, {}, list(sets)).settings
    return Judge(settings, spec, rules="rules", memory=memory, egress_framing=egress)


def verdict_of(record: Record, judge: Judge) -> Verdict:
    verdict = judge.judge(record, read_page(record))
    assert verdict is not None
    return verdict


@pytest.mark.parametrize("name", sorted(goldens()))
def test_every_refusal_of_a_golden_is_named_with_its_cause(name: str) -> None:
    golden = goldens()[name]
    record = Record(golden.frames)
    outcome = pipeline.run(golden.frames, golden.context())
    verdict = describe(record, read_page(record), outcome)
    assert verdict.reason == (outcome.reason or "")
    assert (verdict.action == "forward") == (outcome.result == "forwarded")
    if verdict.action != "forward":
        assert verdict.why == (outcome.message,)
        assert verdict.why[0]
    elif golden.out and outcome.delta is not None:
        assert verdict.positions is not None
        assert verdict.delta == outcome.delta


@pytest.mark.parametrize("number", range(len(captures())))
def test_every_message_of_the_gateway_passes(number: int) -> None:
    capture = captures()[number]
    record = Record(capture.frames, framing=Framing.TYPED)
    verdict = verdict_of(record, judge_for(capture.spec))
    assert verdict.action == "forward"
    changed = {change.path.rpartition(".")[2] for change in verdict.changes}
    fills = {"mrope_positions", "mrope_position_delta", "mrope_position_delta_scalar"}
    assert changed in (set(), fills)


def test_a_materialized_request_shows_what_changed() -> None:
    record = Record(frames(image_request()))
    verdict = verdict_of(record, judge_for())
    paths = [change.path for change in verdict.changes]
    assert "input_ids" in paths
    assert "input_ids_unpadded" in paths
    assert "multimodal_inputs.mm_items.item 0.hash" in paths
    assert any("computed from its content" in fact for fact in verdict.facts)
    assert verdict.positions is not None
    assert verdict.positions.shape == (3, 8)
    before = next(change for change in verdict.changes if change.path == "input_ids_unpadded")
    assert before.before == ""
    assert before.after == "[11, 12, 248056, 248056, 248056, 248056, 13, 14]"


def test_what_is_refused_says_why() -> None:
    record = Record(frames(request(mm=media(item(offsets=((2, 50),))))))
    verdict = verdict_of(record, judge_for())
    assert (verdict.action, verdict.reason) == ("refuse", "offsets_invalid")
    assert "[2, 50]" in verdict.why[0]


def test_a_configuration_decides() -> None:
    text = Record(frames(request()))
    assert verdict_of(text, judge_for()).action == "forward"
    assert verdict_of(text, judge_for(QWEN, "admission.text_requests=reject")).reason == "text_request"


def test_a_stream_remembers_and_a_collection_does_not() -> None:
    record = Record(frames(request("twice")), wall_ns=10**18)
    for memory, second in ((True, "drop"), (False, "forward")):
        judge = judge_for(memory=memory)
        assert verdict_of(record, judge).action == "forward"
        assert verdict_of(record, judge).action == second
    later = dataclasses.replace(record, wall_ns=10**18 + 31 * 10**9)
    judge = judge_for(memory=True)
    verdict_of(record, judge)
    assert verdict_of(later, judge).action == "forward"


def test_another_framing_on_the_way_out() -> None:
    record = Record(frames(request(), framing=Framing.TYPED), framing=Framing.TYPED)
    assert verdict_of(record, judge_for()).summary == "forward it as it came, byte for byte"
    assert "other framing" in verdict_of(record, judge_for(egress=Framing.NATIVE)).summary


def test_what_is_on_its_way_to_the_scheduler_is_judged_as_one_would() -> None:
    outcome = pipeline.run(frames(image_request()), Context.from_settings(load(None, {}, []).settings, QWEN))
    sound = Record(outcome.messages[0], Direction.EGRESS)
    assert verdict_of(sound, judge_for()).action == "sound"
    unsound = verdict_of(Record(frames(image_request()), Direction.EGRESS), judge_for())
    assert unsound.action == "unsound"
    assert any("not been materialized" in why for why in unsound.why)


def test_outputs_and_handshakes_have_no_verdict() -> None:
    for message in (["BatchTokenIDOutSlim", ["r"]], {"status": "HELLO"}):
        record = Record([msgpack.packb(message)], Direction.OUTPUT)
        assert judge_for().judge(record, read_page(record)) is None
    hello = Record([msgpack.packb({"status": "HELLO"})])
    assert judge_for().judge(hello, read_page(hello)) is None


def test_what_cannot_be_answered_is_dropped() -> None:
    verdict = verdict_of(Record([b"\x93\x01\x02\x03"]), judge_for())
    assert (verdict.action, verdict.reason) == ("drop", "malformed_request")


def test_positions_that_came_are_those_that_leave() -> None:
    positions = np.arange(24, dtype=np.int64).reshape(3, 8)
    tensor = ["int64", [3, 8], msgpack.ExtType(3, positions.tobytes())]
    record = Record(frames(request(mm=media(item(), positions=tensor, scalar=3))))
    verdict = verdict_of(record, judge_for())
    assert verdict.positions is not None
    assert np.array_equal(verdict.positions, positions)
    assert verdict.delta == 3


def test_a_model_without_positions_has_none() -> None:
    kimi = item(
        offsets=((2, 2),), data={"grid_thws": ["int64", [1, 3], msgpack.ExtType(3, np.array([1, 2, 2]).tobytes())]}
    )
    kimi[4] = ["float32", [4, 3, 2, 2], msgpack.ExtType(3, bytes(192))]
    record = Record(frames(request(ids=[1, 2, 163605, 3], mm=media(kimi))))
    verdict = verdict_of(record, judge_for(KIMI))
    assert verdict.action == "forward"
    assert verdict.positions is None


def test_changed_ids_are_shown_where_they_changed() -> None:
    ids = [*range(10), *[248056] * 4, *range(100, 110)]
    record = Record(frames(request(ids=ids, mm=media(item(offsets=((10, 13),), pad=1_000_009)))))
    change = next(change for change in verdict_of(record, judge_for()).changes if change.path == "input_ids")
    assert (change.before, change.after) == (f"4{TIMES}[248056] at 10", f"4{TIMES}[1000009]")


def test_what_would_leave() -> None:
    record = Record(frames(request("r", ids=[])))
    sent = verdict_of(record, judge_for()).sent
    assert sent is not None
    page = read_page(sent)
    assert (sent.direction, page.rids) == (Direction.EGRESS, ("r",))
    error = page.field("validation_error")
    assert error is not None
    assert not error.default
