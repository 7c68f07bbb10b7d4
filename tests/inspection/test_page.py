"""Messages taken apart: every kind that passes a sidecar, whole and broken."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.inspection.page import Page, read_page
from sidecar.inspection.values import TIMES, Node
from sidecar.recording import Framing, Record
from sidecar.replay.decode import MessageKind
from tests.build import IMAGE, frames, image_request, item, media, prompt, request, tensor
from tests.cases import captures, goldens


def page_of(message: object, *aux: bytes, framing: Framing = Framing.NATIVE) -> Page:
    return read_page(Record(frames(message, *aux, framing=framing), framing=framing))


def text(page: Page, *path: str) -> str:
    node = page.field(*path)
    assert node is not None
    return node.text


def test_a_request_by_the_names_of_its_fields() -> None:
    page = page_of(image_request("r-7", stream=True))
    assert (page.title, page.kind, page.rids) == ("generate request", MessageKind.GENERATE, ("r-7",))
    assert text(page, "stream") == "true"
    assert text(page, "input_ids") == "[11, 12, 248056, 248056, 248056, 248056, 13, 14]"
    assert text(page, "multimodal_inputs", "mm_items", "item 0", "modality") == "1 (image)"
    assert "float32 [16, 24]" in text(page, "multimodal_inputs", "mm_items", "item 0", "feature")
    assert text(page, "sampling_params").startswith("max_new_tokens 32")
    assert page.problems == ()


def test_fields_at_their_defaults_are_marked() -> None:
    page = page_of(request(stream=True))
    marked = {node.name for node in page.fields if node.default}
    assert {"http_worker_ipc", "return_logprob", "logprob_start_len", "created_time"} <= marked
    assert not marked & {"tag", "rid", "input_ids", "sampling_params", "stream"}


def test_spans_say_what_stands_in_them() -> None:
    ids = prompt(1, (IMAGE, 4), 2, (IMAGE, 2), 3)
    items = [item(offsets=((1, 4),)), item(2, offsets=((6, 8),)), item(offsets=((7, 99),))]
    page = page_of(request(ids=ids, mm=media(*items)))
    assert page.prompt == 9
    assert [(span.item, span.modality, span.content) for span in page.spans] == [
        (0, "image", f"4{TIMES}[{IMAGE}]"),
        (1, "video", "3 ids in 2 runs"),
        (2, "image", "not within the prompt of 9"),
    ]


def test_spans_count_in_the_unpadded_prompt() -> None:
    ids = prompt(1, (IMAGE, 4), 2)
    page = page_of(request(ids=prompt(1, (5_000_000, 4), 2), unpadded=ids, mm=media(item(offsets=((1, 4),)))))
    assert page.spans[0].content == f"4{TIMES}[{IMAGE}]"
    assert any("materialized upstream" in note for note in page.notes)


def test_notes_on_media() -> None:
    two = [item(hash=5, pad=1_000_006), item(hash=5, pad=1_000_005, offsets=((6, 7),))]
    notes = page_of(request(mm=media(*two))).notes
    assert "items 0 and 1 have the same hash: the same content twice" in notes
    assert "item 0: the pad_value is 1000006, its hash makes 1000005" in notes
    assert "it brings no M-RoPE positions" in notes


def test_shared_memory_is_noted() -> None:
    handle = {"shm_name": "psm_1", "shape": [16, 24], "dtype": "float32"}
    page = page_of(request(mm=media(item(shm=handle))))
    assert "item 0 is in shared memory, which is not looked at here" in page.notes
    assert text(page, "multimodal_inputs", "mm_items", "item 0", "feature_shm", "shm_name") == "'psm_1'"


def test_notes_on_what_is_beyond() -> None:
    page = page_of(request(error="no", tail=[1, 2]), b"unused")
    assert "2 fields behind those that are known here; they pass as they are" in page.notes
    assert "it carries a validation_error" in page.notes
    assert "nothing refers to aux 1" in page.notes
    assert text(page, "field 26") == "2"


def test_an_aux_frame_that_is_used_is_not_noted() -> None:
    page = page_of(request(mm=media(item(feature=["float32", [16, 24], 1]))), bytes(16 * 24 * 4))
    assert not any("nothing refers" in note for note in page.notes)


def test_a_short_payload_is_shown_as_far_as_it_goes() -> None:
    payload = msgpack.packb(image_request("r-1"))
    page = page_of(payload[:150])
    assert page.rids == ("r-1",)
    assert text(page, "rid") == "'r-1'"
    assert page.field("multimodal_inputs") is None
    assert len(page.problems) == 1


def test_trailing_bytes_are_a_problem() -> None:
    (problem,) = page_of(msgpack.packb(request()) + b"\xc0").problems
    assert problem.startswith("1 bytes follow the array")


def test_a_damaged_field_does_not_hide_the_others() -> None:
    page = page_of(request(mm=media(item(), [9, "x", {}, [], ["float99", [1], 0]])))
    assert text(page, "multimodal_inputs", "mm_items", "item 1", "modality") == "9 (no known modality)"
    assert text(page, "multimodal_inputs", "mm_items", "item 1", "feature").startswith("not a tensor: the dtype")
    assert text(page, "multimodal_inputs", "mm_items", "item 0", "offsets") == "[[2, 5]]"


@pytest.mark.parametrize("mm", [5, "x", [], [5], [[5]], [[[]]], {"a": 1}, [[["x"]]]])
def test_media_of_any_shape_is_shown(mm: object) -> None:
    assert page_of(request(mm=mm)).field("multimodal_inputs") is not None


def test_a_typed_abort_names_its_rids() -> None:
    record = Record([b"\x01", msgpack.packb(["a", "b"])], framing=Framing.TYPED)
    page = read_page(record)
    assert (page.title, page.rids, page.frames[0]) == ("abort", ("a", "b"), ("type 01 (ABORT)", 1))
    assert [node.name for node in page.fields] == ["rid 0", "rid 1"]


def test_a_native_abort_and_a_control_message() -> None:
    assert page_of(["AbortReq", "a", None]).title == "abort"
    page = page_of(["FlushCacheReqInput", None, None])
    assert (page.title, page.tag) == ("control message", "FlushCacheReqInput")


def test_an_output_by_the_names_of_its_fields() -> None:
    output = ["BatchTokenIDOutSlim", ["r"], [[71]], ["stop"], [50], [2], [0], [[]], [[]], 0, 1, 0, 10, 4096]
    page = page_of(output)
    assert page.title == "output of the scheduler"
    assert text(page, "finished_reasons") == "['stop']"
    assert text(page, "kv_total_pages") == "4096"


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ({"status": "HELLO", "local": True, "headless": False}, "handshake"),
        ({"addresses": {"inputs": ["ipc:///x"]}, "parallel_config": {}}, "handshake"),
        ({"max_model_len": 32768}, "a map without token_ids, such as an engine's ready message"),
        ({"request_id": "r", "token_ids": [1, 2]}, "generate request"),
        (b"ENGINE_CORE_DEAD", "the engine is gone"),
    ],
)
def test_other_messages(message: object, title: str) -> None:
    assert page_of(message).title == title


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x93", b"\xdd\xff\xff\xff\xff", b"\xdc", b"\x91" * 100_000, b"\xdf\xff\xff\xff\xff\xa1a"],
)
def test_what_is_no_message_has_a_problem(payload: bytes) -> None:
    page = page_of(payload)
    assert page.title == "unreadable message"
    assert page.problems


def test_no_frames_at_all() -> None:
    for framing in Framing:
        assert read_page(Record([], framing=framing)).problems


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=80), st.sampled_from(Framing))
def test_any_bytes_have_a_page(data: bytes, framing: Framing) -> None:
    for payload in (data, msgpack.packb(request())[:60] + data):
        page = read_page(Record([b"\x00", payload], framing=framing))
        assert page.nbytes == len(payload) + 1


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 420), st.binary(min_size=1, max_size=4))
def test_a_damaged_request_has_a_page(at: int, damage: bytes) -> None:
    payload = msgpack.packb(image_request("r", count=24))
    page = page_of(payload[:at] + damage + payload[at + len(damage) :])
    assert page.frames == (("payload", max(len(payload), at + len(damage))),)


@pytest.mark.parametrize("name", sorted(goldens()))
def test_every_request_of_the_engine_is_readable(name: str) -> None:
    golden = goldens()[name]
    page = read_page(Record(golden.frames))
    assert page.fields
    assert bool(page.problems) == (name in {"err_wire_truncated", "err_wire_trailing_bytes"})


@pytest.mark.parametrize("number", range(len(captures())))
def test_every_message_of_the_gateway_is_readable(number: int) -> None:
    capture = captures()[number]
    page = read_page(Record(capture.frames, framing=Framing.TYPED))
    assert page.problems == ()
    assert page.rids
    assert not _broken(page.fields)


def _broken(nodes: tuple[Node, ...]) -> bool:
    return any("not a tensor" in node.text or _broken(node.children) for node in nodes)


def test_the_positions_of_a_request_are_a_tensor() -> None:
    page = page_of(request(mm=media(item(), positions=tensor([[0, 1], [0, 1], [0, 1]]), scalar=0)))
    assert text(page, "multimodal_inputs", "mrope_positions").startswith("int64 [3, 2], 48 bytes inline")
