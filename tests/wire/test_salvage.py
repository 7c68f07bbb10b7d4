"""What can be made out in a request that was refused."""

from __future__ import annotations

import msgpack

from sidecar.wire.salvage import read_handles, readable_fields
from sidecar.wire.tokenspeed import Request
from tests.build import item, media, request
from tests.hostile.case import spoilt

SHM = {"shm_name": "psm_1", "shape": [1], "dtype": "uint8"}


def handles(message: object) -> list[str]:
    return read_handles(message if isinstance(message, bytes) else msgpack.packb(message))


def test_fields_up_to_the_first_that_cannot_be_read() -> None:
    payload = msgpack.packb(request(ids=[1] * 300_000, bootstrap_host="h"))
    fields = readable_fields(payload, Request.BOOTSTRAP_ROOM)
    assert set(fields) == set(range(19))
    start, end = fields[Request.BOOTSTRAP_HOST]
    assert payload[start:end] == b"\xa1h"
    broken = spoilt(request(), stream=b"\xc1")
    assert max(readable_fields(broken, Request.BOOTSTRAP_ROOM)) == Request.STREAM - 1
    assert readable_fields(b"", Request.RID) == readable_fields(b"\xc0", Request.RID) == {}


def test_segments_are_named_whatever_else_is_wrong() -> None:
    first, second = item(hash=1, shm=SHM), item(hash=1, shm={**SHM, "shm_name": "psm_2"})
    assert handles(request(mm=media(first, second))) == ["psm_1", "psm_2"]
    assert handles(request(ids=["no id"], mm=media(first))) == ["psm_1"]
    assert handles(request(mm=media(5, None, [], second))) == ["psm_2"]
    assert handles(request(mm=media(item(modality=9, shm={"shm_name": "psm_3"})))) == ["psm_3"]
    assert handles(request(mm=media(first, item(shm={"shm_name": 5}), item(shm={1: 2}), item(shm=[1])))) == ["psm_1"]


def test_where_there_is_no_segment() -> None:
    for message in (
        request(),
        request(mm=5),
        request(mm=[]),
        request(mm=[5]),
        request(mm=media()),
        request(count=11),
        b"",
        b"\xc1",
    ):
        assert handles(message) == []
    assert handles(msgpack.packb(request(mm=media(item(hash=1, shm=SHM))))[:-60]) == []
