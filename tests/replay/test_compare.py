"""Two recordings compared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from sidecar.recording import Direction, Framing, Reader, Record, Writer
from sidecar.replay.compare import Comparison, Ignore, compare, differences_of
from sidecar.replay.rewrite import abort_frames
from tests.build import frames, grid, image_request, item, media, request, tensor

DATA = Path(__file__).parent.parent / "data/recordings"


def changed(record: Record, path: tuple[Any, ...], value: Any) -> Record:
    fields = msgpack.unpackb(record.frames[0], strict_map_key=False)
    node = fields
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    return Record([msgpack.packb(fields), *record.frames[1:]], record.direction, record.framing)


def image(rid: str = "r") -> Record:
    return Record(frames(image_request(rid)))


def found(a: Record, b: Record) -> dict[str, str]:
    return dict(differences_of(a, b))


def test_what_is_equal() -> None:
    a = image()
    assert found(a, a) == {}
    padded = changed(a, (0,), "TokenizedGenerateReqInput")
    longer = msgpack.unpackb(padded.frames[0], strict_map_key=False)
    assert found(a, Record([msgpack.packb([*longer, None, None])])) == {}
    assert found(a, Record([b"\x00", *a.frames], framing=Framing.TYPED)) == {}


def test_how_a_tensor_travels_is_no_difference() -> None:
    feature = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)
    inline = Record(frames(request("r", mm=media(item(feature=tensor(feature))))))
    aux = Record([*frames(request("r", mm=media(item(feature=tensor(feature, aux=1))))), feature.tobytes()])
    spelled = Record([*frames(request("r", mm=media(item(feature=["<f4", [16, 24], 1])))), feature.tobytes()])
    assert found(inline, aux) == found(aux, spelled) == {}


@pytest.mark.parametrize(
    ("path", "value", "where", "what"),
    [
        ((15,), 7.5, "created_time", r"0\.0 \| 7\.5"),
        ((23,), "refused", "validation_error", r"nil \| 'refused'"),
        ((5, 3), 0.5, "sampling_params.temperature", r".* \| 0\.5"),
        ((22, 0, 0, 1), 7, "multimodal_inputs.mm_items[0].hash", r".* \| 7"),
        (
            (22, 0, 0, 6),
            {},
            "multimodal_inputs.mm_items[0].model_specific_data.image_grid_thw",
            r"tensor int64 .* \| nil",
        ),
        ((22, 5), -3, "multimodal_inputs.mrope_position_delta_scalar", r"nil \| -3"),
        ((3,), "x" * 200, "input_text", r"nil \| .*… \(\d+ characters\)"),
        ((22, 0), [], "multimodal_inputs.mm_items[0]", r"a list of 10 \| nil"),
        ((25,), "new", "field[25]", r"nil \| 'new'"),
    ],
)
def test_fields_are_named(path: tuple[Any, ...], value: Any, where: str, what: str) -> None:
    a = image()
    fields = msgpack.unpackb(a.frames[0], strict_map_key=False)
    a = Record([msgpack.packb([*fields, *[None] * (26 - len(fields))])])
    differences = found(a, changed(a, path, value))
    assert list(differences) == [where]
    assert re.fullmatch(what, differences[where])


def test_ids_name_the_first_that_differs_and_their_number() -> None:
    a = Record(frames(request("r", ids=list(range(100, 150)))))
    b = Record(frames(request("r", ids=[*range(100, 120), 7, *range(121, 149), 8])))
    assert found(a, b) == {"input_ids": "2 of 50 ids differ, the first at [20]: 120 | 7"}
    short = Record(frames(request("r", ids=list(range(100, 140)))))
    assert found(a, short) == {"input_ids": "10 of 50 ids differ, the first at [40]: 140 | nothing; 50 | 40 ids"}


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (np.zeros(3, "<f4"), np.zeros(3, "<f8"), r"dtype float32 \| float64"),
        (np.zeros(3, "<f4"), np.zeros((3, 1), "<f4"), r"shape \[3\] \| \[3, 1\]"),
        (
            np.array([[1, 2], [3, 4]], "<f4"),
            np.array([[1, 2.5], [3, 7]], "<f4"),
            r"float32 \[2, 2\]: 2 of 4 values differ, the largest difference is 3, the first at \[0, 1\]: 2\.0 \| 2\.5",
        ),
        (np.array([np.nan, 1], "<f4"), np.array([np.nan, 2], "<f4"), r".*1 of 2 values differ.*"),
        (np.array([0.0], "<f4"), np.array([-0.0], "<f4"), r"float32 \[1\]: equal values in other bits.*"),
        (np.array([2**63 - 1], "<i8"), np.array([0], "<i8"), r"int64 \[1\]: 1 of 1 values differ.*"),
    ],
)
def test_tensors_differ_in_words(one: Any, other: Any, what: str) -> None:
    a, b = (Record(frames(request("r", mm=media(item(feature=tensor(t)))))) for t in (one, other))
    assert re.fullmatch(what, found(a, b)["multimodal_inputs.mm_items[0].feature"])


def test_fp8_and_broken_tensors() -> None:
    def with_feature(value: Any) -> Record:
        return Record(frames(request("r", mm=media(item(feature=value)))))

    a = with_feature(["float8_e4m3fn", [2], msgpack.ExtType(3, b"ab")])
    b = with_feature(["float8_e4m3fn", [2], msgpack.ExtType(3, b"ac")])
    assert "1 of 2 values differ" in found(a, b)["multimodal_inputs.mm_items[0].feature"]
    broken = with_feature(["int64", [2], msgpack.ExtType(3, b"ab")])
    assert "a broken tensor" in found(a, broken)["multimodal_inputs.mm_items[0].feature"]


def test_other_kinds_of_messages() -> None:
    a, b = (Record(abort_frames(rid, Framing.NATIVE)) for rid in "ab")
    assert found(a, a) == {}
    assert found(a, b) == {"rids": "['a'] | ['b']"}
    assert found(a, image()) == {"kind": "abort AbortReq | generate TokenizedGenerateReqInput"}
    unreadable = Record([b"\xc1"]), Record([b"\xc1\xc1"])
    assert found(unreadable[0], unreadable[0]) == {}
    assert found(*unreadable) == {"bytes": "1 | 2 bytes, unreadable"}
    preprocessed = [Record([msgpack.packb({"token_ids": [1], "request_id": "r", "n": n})]) for n in (1, 2)]
    assert found(*preprocessed) == {"n": "1 | 2"}
    cut = Record([image().frames[0][:-3]])
    assert "undecodable" in found(image(), cut)["payload"]


def test_requests_are_matched_by_rid_and_then_in_order() -> None:
    a = [image("a"), image("b"), image("b"), Record(abort_frames("a", Framing.NATIVE))]
    result = compare(a, [a[3], a[1], a[0], a[2]])
    assert (result.matched, result.equal, result.same) == (4, 4, True)
    result = compare(a, [*a[1:], image("c")])
    assert (result.only_a, result.only_b) == (["generate a"], ["generate c"])
    assert not result.same
    result = compare(a, [changed(a[1], (15,), 1.0), changed(a[2], (15,), 2.0)])
    assert [name for name, _ in result.differing] == ["generate b", "generate b (time 2)"]


def test_by_order_and_by_mapped_rids() -> None:
    a, b = [image("a.1"), image("b.1")], [image("a.2"), image("b.2")]
    assert compare(a, b).matched == 0
    assert compare(a, b, rid_map=lambda rid: rid.partition(".")[0]).same
    assert list(compare(a, b, by_order=True).groups) == ["rid"]


def test_outputs_are_left_out_unless_asked_for() -> None:
    a = [image(), Record([msgpack.packb(["BatchTokenIDOutSlim", ["r"], [[1]], ["stop"]])], Direction.OUTPUT)]
    assert compare(a, a[:1]).same
    assert compare(a, a, direction=Direction.OUTPUT).matched == 1
    assert compare([Record(image().frames, Direction.EGRESS)], a, direction=Direction.INGRESS).only_b == ["generate r"]


def test_what_may_differ() -> None:
    a = image()
    b = changed(changed(a, (15,), 1.0), (22, 0, 0, 1), 7)
    for patterns, groups in (
        ([], ["created_time", "multimodal_inputs.mm_items[].hash"]),
        (["created_time"], ["multimodal_inputs.mm_items[].hash"]),
        (["hash"], ["created_time"]),
        (["multimodal_inputs.mm_items*.hash"], ["created_time"]),
        (["multimodal_inputs.*", "created_time"], []),
    ):
        assert list(compare([a], [b], ignore=Ignore(patterns)).groups) == groups


def test_another_hash_mode_shows_as_hashes_and_pads() -> None:
    with Reader(DATA / "canonical.rec") as a, Reader(DATA / "tokenspeed.rec") as b:
        result = compare(a, b)
    assert set(result.groups) == {
        "input_ids",
        "multimodal_inputs.mm_items[].hash",
        "multimodal_inputs.mm_items[].pad_value",
    }
    assert (result.matched, result.only_a, result.only_b) == (6, [], [])


def test_files_are_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.rec"
    with Writer(path, compress=False) as writer:
        for number in range(40):
            writer.write(Record([*frames(request(f"r{number}")), bytes(1 << 20)]))
    import tracemalloc

    tracemalloc.start()
    with Reader(path) as a, Reader(path) as b:
        assert compare(a, b).equal == 40
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 << 20


def test_examples_are_bounded_and_counts_are_not() -> None:
    a = [image(f"r{n}") for n in range(30)]
    b = [changed(record, (15,), 1.0) for record in a]
    result = compare(a, b, examples=4)
    assert isinstance(result, Comparison)
    assert (len(result.differing), result.groups["created_time"], result.equal) == (4, 30, 0)


def test_a_missing_grid_is_a_difference_of_one_entry() -> None:
    a = Record(frames(request("r", mm=media(item(data={"image_grid_thw": grid((1, 4, 4)), "fps": 2})))))
    b = Record(frames(request("r", mm=media(item(data={"image_grid_thw": grid((1, 4, 6)), "fps": 2})))))
    assert list(found(a, b)) == ["multimodal_inputs.mm_items[0].model_specific_data.image_grid_thw"]
