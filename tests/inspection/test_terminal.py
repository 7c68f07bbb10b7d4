"""Pages on a terminal and as JSON: whatever the message, it can be printed."""

from __future__ import annotations

import io
import json

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from sidecar.inspection.document import document
from sidecar.inspection.page import read_page
from sidecar.inspection.terminal import print_bytes, print_line, print_page, print_verdict
from sidecar.inspection.verdict import Judge
from sidecar.recording import Direction, Framing, Record
from sidecar.settings import load
from tests.build import QWEN, frames, image_request, item, media, request
from tests.cases import captures, goldens

JUDGE = Judge(load(None, {}, []).settings, QWEN, rules="rules", memory=False)


def page_text(record: Record, width: int = 100, *, everything: bool = False) -> str:
    """The page as text."""
    page = read_page(record)
    console = Console(file=io.StringIO(), width=width)
    verdict = JUDGE.judge(record, page)
    print_page(console, 1, record, page, verdict, positions=True, everything=everything)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def in_every_form(record: Record) -> None:
    """Print a message in all forms that there are. JSON is checked to be JSON."""
    assert page_text(record)
    page = read_page(record)
    verdict = JUDGE.judge(record, page)
    console = Console(file=io.StringIO(), width=100)
    print_line(console, 1, record, page, verdict)
    print_bytes(console, record, page)
    print_verdict(console, page, verdict)
    assert json.loads(json.dumps(document(1, record, page, verdict, positions=True), allow_nan=False))


def test_a_narrow_terminal() -> None:
    for width in (20, 40, 80):
        assert "image-1" in page_text(Record(frames(image_request("image-1"))), width).replace("\n", "")


def test_everything_that_was_recorded() -> None:
    for number, golden in enumerate(goldens().values()):
        assert page_text(Record(golden.frames))
        if golden.out and number % 10 == 0:
            assert page_text(Record(golden.out, Direction.EGRESS))
    for capture in captures():
        in_every_form(Record(capture.frames, framing=Framing.TYPED))


def test_fields_at_their_defaults_are_shown_on_demand() -> None:
    record = Record(captures()[0].frames, framing=Framing.TYPED)
    assert "http_worker_ipc" not in page_text(record)
    assert "http_worker_ipc" in page_text(record, everything=True)


def test_many_spans_and_frames_are_counted() -> None:
    spans = tuple((i, i) for i in range(40))
    record = Record(frames(request(ids=[248056] * 40, mm=media(item(offsets=spans, data={}))), *[b"x"] * 20))
    out = page_text(record)
    assert "and 24 more spans" in out
    assert "and 15 more frames" in out


def test_a_preprocessed_request() -> None:
    message = {
        "request_id": "r",
        "token_ids": [1, 248056, 2],
        "multi_modal_data": {"image": [b"png"]},
        "other": {"a": 1},
    }
    out = page_text(Record([msgpack.packb(message)]))
    assert "bin, 3 bytes" in out
    assert "other" in out


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 420), st.binary(max_size=6), st.integers(0, 60), st.sampled_from(Direction))
def test_a_damaged_request_can_be_printed(at: int, damage: bytes, cut: int, direction: Direction) -> None:
    payload = msgpack.packb(image_request("r", count=24))
    damaged = payload[:at] + damage + payload[at + len(damage) :]
    in_every_form(Record([damaged[: len(damaged) - cut]], direction))


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=25)
@given(VALUES, st.sampled_from(["message", "ids", "media", "metadata", "tail"]))
def test_any_value_in_any_field_can_be_printed(value: object, place: str) -> None:
    messages = {
        "message": value,
        "ids": request(ids=value),
        "media": request(mm=value),
        "metadata": request(mm=media(item(data=value))),
        "tail": request(tail=[value]),
    }
    in_every_form(Record([msgpack.packb(messages[place])]))
