"""The field tables, against the wire's own numbers."""

from __future__ import annotations

from sidecar.wire.request import default_field
from sidecar.wire.tokenspeed import REQUEST_DEFAULTS, REQUEST_MIN_FIELDS, Item, Media, Modality, Request, Sampling


def test_positions() -> None:
    assert [(field.name, field.value) for field in (Request.INPUT_IDS, Request.SAMPLING_PARAMS, Request.STREAM)] == [
        ("INPUT_IDS", 4), ("SAMPLING_PARAMS", 5), ("STREAM", 10)]  # fmt: skip
    assert (Request.BOOTSTRAP_HOST, Request.BOOTSTRAP_ROOM, Request.INPUT_IDS_UNPADDED) == (16, 18, 21)
    assert (Request.MULTIMODAL_INPUTS, Request.VALIDATION_ERROR, Request.DATA_PARALLEL_RANK) == (22, 23, 24)
    assert (Sampling.TOP_K, Sampling.SEED, Sampling.IS_NORMALIZED, len(Sampling)) == (5, 23, 28, 29)
    assert (Media.MROPE_POSITIONS, Media.MROPE_POSITION_DELTA_SCALAR, len(Media)) == (3, 5, 7)
    assert (Item.OFFSETS, Item.FEATURE_SHM, Item.ENCODE_HANDSHAKE, len(Item)) == (3, 5, 9, 10)
    assert [modality.value for modality in Modality] == [1, 2, 3]
    assert REQUEST_MIN_FIELDS == Request.SAMPLING_PARAMS + 1


def test_every_table_counts_without_a_gap() -> None:
    for table in (Request, Sampling, Media, Item):
        assert [int(field) for field in table] == list(range(len(table)))


def test_defaults() -> None:
    assert default_field(Request.LOGPROB_START_LEN) == b"\xff"
    assert default_field(Request.TOP_LOGPROBS_NUM) == b"\0"
    assert default_field(Request.CREATED_TIME) == b"\xcb" + b"\0" * 8
    assert {
        default_field(field) for field in (Request.STREAM, Request.RETURN_LOGPROB, Request.RETURN_HIDDEN_STATES)
    } == {b"\xc2"}
    rest = [field for field in Request if field not in REQUEST_DEFAULTS]
    assert {default_field(field) for field in (*rest, 25, 99)} == {b"\xc0"}
