"""Choosing messages by rid, modality and outcome."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from sidecar.recording import Framing, Record
from sidecar.replay.rewrite import abort_frames
from sidecar.replay.select import Selection, Selector
from tests.build import frames, image_request, item, media, request


def refused(rid: str) -> Record:
    fields = msgpack.unpackb(frames(request(rid))[0], strict_map_key=False)
    return Record([msgpack.packb([*fields[:23], *[None] * (23 - len(fields)), "no"])])


RECORDS = {
    "text": Record(frames(request("text"))),
    "image": Record(frames(image_request("image"))),
    "image-abort": Record(abort_frames("image", Framing.NATIVE)),
    "both": Record(frames(request("both", mm=media(item(1), item(2))))),
    "refused": refused("refused"),
    "answered": Record(frames(request("answered")), metadata={"outcome": "answered"}),
    "text-abort": Record(abort_frames("text", Framing.NATIVE)),
    "control": Record([msgpack.packb(["FlushCacheReqInput", None, None])]),
}


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ({}, list(RECORDS)),
        ({"rids": ["image"]}, ["image", "image-abort"]),
        ({"rids": ["t*", "both"]}, ["text", "both", "text-abort"]),
        ({"modalities": ["image"]}, ["image", "image-abort"]),
        ({"modalities": ["image", "mixed"]}, ["image", "image-abort", "both"]),
        ({"outcomes": ["rejected"]}, ["refused"]),
        ({"outcomes": ["answered"]}, ["answered"]),
        ({"outcomes": ["forwarded"], "modalities": ["text"]}, ["text", "text-abort"]),
        ({"rids": ["image"], "modalities": ["text"]}, []),
    ],
)
def test_selection(arguments: dict[str, Any], kept: list[str]) -> None:
    select = Selector(Selection(**arguments))
    assert [name for name, record in RECORDS.items() if select(record)] == kept
