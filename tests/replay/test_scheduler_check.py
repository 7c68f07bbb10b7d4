"""What the stand-in scheduler finds, and that it finds nothing in what the sidecar sends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.recording import Framing, Reader
from sidecar.replay.decode import MessageKind
from sidecar.replay.rewrite import abort_frames
from sidecar.replay.scheduler_check import SchedulerCheck, Verdict
from sidecar.wire.pads import pad_value
from sidecar.wire.tokenspeed import Modality
from tests.build import NORMALIZED, frames, item, media, raw, request, tensor

DATA = Path(__file__).parent.parent / "data/recordings"
PAD = pad_value(Modality.IMAGE, 7)
UNPADDED = [1, 2, 248056, 248056, 248056, 248056, 3]
PADDED = [1, 2, PAD, PAD, PAD, PAD, 3]


def sound(**changes: Any) -> list[Any]:
    """The fields of a request as it should reach a scheduler; `changes` are of the item or the request."""
    parts = {name: changes.pop(name) for name in list(changes) if name in ("positions", "delta", "scalar")}
    unpadded = changes.pop("unpadded", UNPADDED)
    ids = changes.pop("ids", PADDED)
    sampling = changes.pop("sampling", list(NORMALIZED))
    made = media(item(hash=7, pad=changes.pop("pad", PAD), **changes), **parts)
    fields = msgpack.unpackb(frames(request("r", ids=ids, mm=made))[0], strict_map_key=False)
    fields[5], fields[21] = sampling, unpadded
    return fields


def with_error(fields: list[Any], text: str) -> list[Any]:
    """The fields with a validation_error."""
    return [*fields[:23], *[None] * (23 - len(fields)), text]


def verdict(fields: Any, *aux: bytes, framing: Framing = Framing.NATIVE, **options: Any) -> Verdict:
    message = [msgpack.packb(fields), *aux]
    return SchedulerCheck(framing, **options).check([b"\x00", *message] if framing is Framing.TYPED else message)


def test_a_sound_request() -> None:
    positions = tensor(np.zeros((3, 7), "<i8"))
    fields = sound(positions=positions, delta=tensor(np.array([[-2]], "<i8")), scalar=-2)
    found = verdict(fields, mrope=True)
    assert found == Verdict(
        MessageKind.GENERATE, "TokenizedGenerateReqInput", ("r",), "image", 7, 1, True, "forwarded", "", ()
    )


@pytest.mark.parametrize("name", ["canonical.rec", "tokenspeed.rec"])
def test_what_the_sidecar_sends_is_sound(name: str) -> None:
    check = SchedulerCheck(Framing.NATIVE, mrope=True)
    with Reader(DATA / name) as reader:
        for record in reader:
            assert check.check(record.frames).problems == ()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (sound(ids=[]), "input_ids is empty"),
        (sound(ids=None), "input_ids is no list"),
        (sound(ids=[1, 1 << 31]), r"input_ids\[1\] is not an integer in \[0, 2\^31\)"),
        (sound(ids=[True]), r"input_ids\[0\]"),
        (sound(unpadded=UNPADDED[:-1]), "input_ids has 7 ids, input_ids_unpadded 6"),
        (sound(unpadded=None), "has not been materialized"),
        (sound(sampling=None), "sampling_params is no array"),
        (sound(sampling=[32]), "the seed is nil"),
        (sound(sampling=[*NORMALIZED[:23], 1 << 63, *NORMALIZED[24:]]), "the seed is not in"),
        (sound(sampling=[*NORMALIZED[:26], None, 0, True]), "stop_strs is nil"),
        (sound(sampling=[-1, *NORMALIZED[1:]]), "max_new_tokens is -1"),
        (sound(pad=5), "pad value 5 lies outside"),
        (sound(pad=None), "pad value None lies outside"),
        (sound(pad=PAD + 1), "do not hold the pad value throughout"),
        (sound(offsets=()), "no offsets"),
        (sound(offsets=((2, 7),)), r"offsets \[2, 7\] in a prompt of 7"),
        (sound(offsets=((5, 2),)), r"offsets \[5, 2\]"),
        (sound(offsets=((2, 5), (4, 5))), "overlap"),
        (sound(modality=4), "modality 4"),
        (sound(feature=None), "no feature, handle, encoding or handshake"),
        (sound(feature=["float32", [0, 4], raw(b"")]), r"a feature of shape \[0, 4\]"),
        (sound(feature=["float32", [4], raw(b"1")]), "takes 16 bytes, 1 are there"),
        (sound(feature=["float32", [4], 1]), "one of 0 aux frames"),
        (sound(data={"image_grid_thw": ["int64", [3], raw(b"1")]}), "image_grid_thw: .*takes 24 bytes"),
        (sound(positions=tensor(np.zeros((3, 6), "<i8"))), r"shape \[3, 6\]; expected \[3, 7\]"),
        (sound(positions=tensor(np.zeros(21, "<i8"))), r"shape \[21\]"),
        (sound(scalar=1.5), "the scalar delta is no integer"),
        (sound(scalar=3, delta=tensor(np.array([[4]], "<i8"))), "is 4, its scalar 3"),
        (sound(delta=tensor(np.zeros((0, 1), "<i8"))), "mrope_position_delta is empty"),
        (with_error(sound(), ""), "an empty string"),
        (sound()[:5], "5 fields; a scheduler needs 6"),
        (["AbortReq"], "no known tag, or no rid"),
        ([], "no known tag"),
    ],
)
def test_problems(fields: Any, problem: str) -> None:
    found = verdict(fields)
    assert any(re.search(problem, line) for line in found.problems), found.problems


def test_without_positions_a_model_with_mrope_is_served_wrong() -> None:
    assert verdict(sound()).problems == ()
    assert verdict(sound(), mrope=True).problems == ("the model uses M-RoPE and the positions are nil",)


def test_whoever_finalizes_later_takes_other_params() -> None:
    assert verdict(sound(sampling=[32]), framing=Framing.TYPED).problems == ()


def test_a_rejected_request_must_still_be_decodable() -> None:
    fields = msgpack.unpackb(frames(request("r", ids=[]))[0], strict_map_key=False)
    found = verdict(with_error(fields, "the grid is wrong"))
    assert (found.outcome, found.error, found.problems) == ("rejected", "the grid is wrong", ())
    carrying = verdict(with_error(sound(ids=[], unpadded=None), "wrong"))
    assert "a rejected request still carries media" in carrying.problems
    cut = [frames(request("r"))[0] + b"\x00"]
    assert SchedulerCheck(Framing.NATIVE).check(cut).problems == ("undecodable: 1 bytes after the payload",)


def test_a_live_rid_must_not_come_again() -> None:
    check = SchedulerCheck(Framing.NATIVE)
    message = [msgpack.packb(sound())]
    assert check.check(message).problems == ()
    assert check.check(message).problems == ("the rid is live already",)
    aborted = check.check(abort_frames("r", Framing.NATIVE))
    assert (aborted.kind, aborted.rids, aborted.problems) == (MessageKind.ABORT, ("r",), ())
    assert check.check(message).problems == ()
    assert SchedulerCheck(Framing.NATIVE, duplicates=True).check(message).problems == ()


def test_only_so_many_rids_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.replay.scheduler_check._REMEMBERED_RIDS", 2)
    check = SchedulerCheck(Framing.NATIVE)
    for rid in ("a", "b", "c", "a"):
        assert check.check(frames(request(rid, sampling=NORMALIZED))).problems == ()


def test_preprocessed_requests() -> None:
    check = SchedulerCheck(Framing.NATIVE)
    found = check.check(
        [msgpack.packb({"token_ids": [1, 2], "request_id": "r", "multi_modal_data": {"image_url": []}})]
    )
    assert (found.modality, found.tokens, found.outcome, found.problems) == ("image", 2, "forwarded", ())
    refused = check.check([msgpack.packb({"token_ids": [], "validation_error": "no"})])
    assert (refused.outcome, refused.error, refused.problems) == ("rejected", "no", ())
    assert check.check([msgpack.packb({"token_ids": [-1]})]).problems
    assert check.check([msgpack.packb({"token_ids": [1]}) + b"\x00"]).problems


@given(st.lists(st.binary(max_size=80), max_size=3), st.sampled_from(Framing))
def test_no_bytes_raise(message: list[bytes], framing: Framing) -> None:
    SchedulerCheck(framing, mrope=True).check(message)


FIELDS = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**40) | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.integers(2, 24), FIELDS, max_size=4), FIELDS, FIELDS)
def test_no_values_raise(changes: dict[int, Any], in_media: Any, in_item: Any) -> None:
    fields = [*sound(), None, None]
    fields[22][0][0][3] = in_item
    fields[22][3] = in_media
    for position, value in changes.items():
        fields[position] = value
    verdict(fields, mrope=True)
