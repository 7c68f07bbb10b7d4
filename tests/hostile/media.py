"""Media, positions and shared memory that must not reach an engine."""

from __future__ import annotations

from typing import Any, Final

import msgpack
import numpy as np

from sidecar.errors import Reason
from tests.build import IMAGE, TEXT, VIDEO, grid, image_request, item, media, patches, prompt, raw, request, tensor
from tests.hostile.case import Hostile, replaced
from tests.hostile.requests import TOO_LATE

SEGMENT: Final = "psm_ingest_sidecar_test"
OTHER_SEGMENT: Final = "sem.ingest_sidecar_test"
_NAN: Final = float("nan")
_VIDEO_IDS: Final = prompt(11, 12, (VIDEO, 4), 13, 14)
_TWO_IMAGES: Final = prompt(11, 12, (IMAGE, 4), 13, (IMAGE, 4), 14)


def _image(**changes: Any) -> Any:
    return request(mm=media(item(**changes)))


def _feature(values: Any, **changes: Any) -> Any:
    return _image(feature=tensor(values), **changes)


def _data(**entries: Any) -> Any:
    return _image(data={"image_grid_thw": grid((1, 4, 4)), **entries})


def _items() -> list[Hostile]:
    bad, form = Reason.MALFORMED_MULTIMODAL, Reason.MALFORMED_TENSOR
    handshake = {"bootstrap_room": 1, "bootstrap_host": "h", "bootstrap_port": 2}
    return [
        Hostile("media that is an integer", request(mm=5), bad, stops=True),
        Hostile("items that are a map", request(mm=[{}]), bad, stops=True),
        Hostile("an item that is nil", request(mm=media(None)), bad, stops=True),
        Hostile("a modality of 0", _image(modality=0), bad, stops=True),
        Hostile("a modality of 4", _image(modality=4), bad, stops=True),
        Hostile("a modality that is a name", _image(modality="IMAGE"), bad, stops=True),
        Hostile("a hash that is a string", _image(hash="5"), bad, stops=True),
        Hostile("a pad_value that is a float", _image(pad=1.0), bad, stops=True),
        Hostile("offsets of three numbers", _image(offsets=[[2, 3, 5]]), bad, stops=True),
        Hostile("offsets that are one pair", _image(offsets=[2, 5]), bad, stops=True),
        Hostile("metadata that is a string", _data(note="text"), bad, stops=True),
        Hostile("metadata that is nil", _data(note=None), bad, stops=True),
        Hostile("model_specific_data that is nil", _image(data=None), bad, stops=True),
        Hostile(
            "model_specific_data with a key twice",
            replaced(
                _image(data="@@"),
                "@@",
                b"\x82" + 2 * (msgpack.packb("image_grid_thw") + msgpack.packb(grid((1, 4, 4)))),
            ),
            Reason.MALFORMED_REQUEST,
            quiet="one of the two is lost",
        ),
        Hostile("a PickleWrapper where media belongs", request(mm=["PickleWrapper", b"."]), bad, stops=True),
        Hostile("no items, and an im_token_id that is a string", request(mm=media(im="x")), bad, stops=True),
        Hostile("an incomplete encode_handshake", _image(hash=5, handshake={"bootstrap_room": 1}), bad),
        Hostile(
            "an encode_handshake with a timestamp past the year 9999",
            replaced(_image(hash=5, handshake={**handshake, "z": "@@"}), "@@", TOO_LATE),
            bad,
            stops=True,
        ),
        Hostile("an aux frame that is not there", _image(feature=["float32", [16, 24], 1]), form, stops=True),
        Hostile("aux index 0", _image(feature=["float32", [16, 24], 0]), form, stops=True),
        Hostile(
            "aux index -1",
            _image(feature=["float32", [16, 24], -1]),
            form,
            aux=(patches(16).tobytes(),),
            quiet="Python counts from the end",
        ),
        Hostile(
            "aux index true",
            _image(feature=["float32", [16, 24], True]),
            form,
            aux=(patches(16).tobytes(),),
            quiet="true is 1",
        ),
        Hostile(
            "fewer bytes than the shape", _image(feature=["float32", [16, 24], raw(b"\0" * 100)]), form, stops=True
        ),
        Hostile(
            "1.5 KB that declare 4 TiB",
            _image(feature=["float32", [1 << 20, 1 << 20], raw(b"\0" * 1536)]),
            form,
            stops=True,
        ),
        Hostile(
            "a shape whose product passes 2^64",
            _image(feature=["uint8", [2**32, 2**32, 2], raw(b"")]),
            form,
            stops=True,
        ),
        Hostile(
            "a negative dimension",
            _image(feature=["float32", [-16, -24], raw(patches(16).tobytes())]),
            form,
            stops=True,
        ),
        Hostile("40 dimensions", _image(feature=["uint8", [1] * 40, raw(b"\0")]), form, stops=True),
        Hostile("an empty tensor with strides past 2^63", _data(x=["float32", [0, 2**63], raw(b"")]), form, stops=True),
        Hostile("the dtype object", _data(x=["O", [1], raw(b"\0" * 8)]), form, stops=True),
        Hostile("a big-endian dtype", _data(x=[">f4", [1], raw(b"\0" * 4)]), form, stops=True),
        Hostile("the dtype void", _data(x=["V8", [1], raw(b"\0" * 8)]), form, stops=True),
        Hostile(
            "a pickle as tensor data",
            _image(feature=["float32", [16, 24], msgpack.ExtType(1, b"cos\n.")]),
            form,
            stops=True,
        ),
        Hostile(
            "a cloudpickle as tensor data",
            _image(feature=["float32", [16, 24], msgpack.ExtType(2, b"x")]),
            form,
            stops=True,
        ),
        Hostile("more items than the limit", request(mm=media(*[item()] * 1025)), Reason.TOO_LARGE),
        Hostile("more aux frames than the limit", image_request(), Reason.TOO_LARGE, aux=(b"",) * 4096),
    ]


def _media() -> list[Hostile]:
    offsets, place, wrong = Reason.OFFSETS_INVALID, Reason.PLACEHOLDER_MISMATCH, Reason.GRID_MISMATCH
    grows = "the prompt grows or shrinks when the pads are put in"
    literal = [*prompt(11, 12, (IMAGE, 4), 13), IMAGE]
    one = {"image_grid_thw": grid((1, 4, 4))}
    return [
        Hostile(
            "media for a text-only model",
            request(ids=[1] * 8, mm=media(item())),
            Reason.TEXT_ONLY_MODEL,
            spec=TEXT,
            quiet="the placeholders are read as text",
        ),
        Hostile(
            "media for an engine without encoders",
            image_request(),
            Reason.TEXT_ONLY_MODEL,
            rules={"language_model_only": True},
        ),
        Hostile("an item without offsets", _image(offsets=None), offsets),
        Hostile("reversed offsets", _image(offsets=[[5, 2]]), offsets, quiet=grows),
        Hostile("negative offsets", _image(offsets=[[-3, 0]]), offsets, quiet=grows),
        Hostile("an offset at the prompt's length", _image(offsets=[[5, 8]]), offsets, quiet=grows),
        Hostile(
            "overlapping offsets",
            request(mm=media(item(), item(feature=tensor(patches(16, 1)), offsets=((5, 7),)))),
            offsets,
            stops=True,
        ),
        Hostile("more spans than ids", _image(offsets=[[2, 5]] * 100), offsets, stops=True),
        Hostile("a span over other ids", _image(offsets=[[1, 4]]), place, quiet="a picture where the user wrote text"),
        Hostile("the user's text holds the placeholder", request(ids=literal, mm=media(item())), place),
        Hostile("a placeholder id that is not the model's", request(mm=media(item(), im=5)), place),
        Hostile("no grid", _image(data={}), wrong, stops=True),
        Hostile("the grid of another family", _image(data={"grid_thws": grid((1, 4, 4))}), wrong, stops=True),
        Hostile("a 1-d grid", _image(data={"image_grid_thw": tensor([1, 4, 4])}), Reason.GRID_INVALID, stops=True),
        Hostile("a grid of zeros", _image(data={"image_grid_thw": grid((1, 0, 4))}), Reason.GRID_INVALID, stops=True),
        Hostile("a grid of floats", _image(data={"image_grid_thw": tensor([[1.0, 4.0, 4.0]])}), Reason.GRID_INVALID),
        Hostile(
            "a grid side that the merge size does not divide",
            _image(data={"image_grid_thw": grid((1, 3, 4))}, feature=tensor(patches(12))),
            Reason.GRID_INVALID,
            stops=True,
        ),
        Hostile(
            "a time dimension that exhausts memory",
            request(ids=_VIDEO_IDS, mm=media(item(2, data={"video_grid_thw": grid((10**9, 4, 4))}))),
            Reason.GRID_INVALID,
            stops=True,
        ),
        Hostile(
            "a span longer than its grid",
            _image(data={"image_grid_thw": grid((1, 2, 4))}, feature=tensor(patches(8))),
            wrong,
            stops=True,
        ),
        Hostile(
            "a span shorter than its grid",
            _image(data={"image_grid_thw": grid((1, 4, 6))}, feature=tensor(patches(24))),
            wrong,
            stops=True,
        ),
        Hostile(
            "two grid rows for one span", _image(data={"image_grid_thw": grid((1, 4, 4), (1, 4, 4))}), wrong, stops=True
        ),
        Hostile(
            "negative seconds per grid",
            request(
                ids=_VIDEO_IDS,
                mm=media(item(2, data={"video_grid_thw": grid((1, 4, 4)), "second_per_grid_ts": tensor([-1.0])})),
            ),
            Reason.METADATA_INVALID,
        ),
        Hostile("a feature that is nil", _image(feature=None, hash=5), Reason.FEATURE_MISSING, stops=True),
        Hostile(
            "a feature with one dimension", _feature(np.zeros(384, np.float32)), Reason.FEATURE_INVALID, stops=True
        ),
        Hostile(
            "a feature with three dimensions",
            _feature(np.zeros((16, 6, 4), np.float32)),
            Reason.FEATURE_INVALID,
            stops=True,
        ),
        Hostile(
            "a feature of another width", _feature(np.zeros((16, 25), np.float32)), Reason.FEATURE_INVALID, stops=True
        ),
        Hostile(
            "a feature with fewer rows than its grid",
            _feature(np.zeros((15, 24), np.float32)),
            Reason.FEATURE_INVALID,
            stops=True,
        ),
        Hostile("an empty feature", _feature(np.zeros((0, 24), np.float32)), Reason.FEATURE_INVALID, stops=True),
        Hostile(
            "an encoding with fewer rows than tokens",
            _image(hash=5, encoded=tensor(np.zeros((3, 8), np.float32))),
            Reason.FEATURE_INVALID,
            stops=True,
        ),
        Hostile(
            "audio for a model without an audio encoder",
            request(ids=[1] * 8, mm=media(item(3, data={}))),
            Reason.MODALITY_UNSUPPORTED,
            stops=True,
        ),
        Hostile(
            "an item without content or hash",
            _image(handshake={"bootstrap_room": 1, "bootstrap_host": "h", "bootstrap_port": 2}),
            Reason.HASH_MISSING,
        ),
        Hostile(
            "a pad_value in the vocabulary",
            _image(pad=5),
            Reason.PAD_VALUE_INVALID,
            quiet="an image that is text to the prefix cache",
        ),
        Hostile(
            "a pad_value of 2^31",
            _image(pad=2**31),
            Reason.PAD_VALUE_INVALID,
            stops=False,
            quiet="an id of 2^31 in the padded prompt ends it",
        ),
        Hostile(
            "a padded prompt with another pad",
            request(
                ids=prompt(11, 12, (1_000_005, 4), 13, 14),
                unpadded=prompt(11, 12, (IMAGE, 4), 13, 14),
                mm=media(item(hash=6, pad=1_000_006)),
            ),
            Reason.PAD_VALUE_INVALID,
            quiet="another image's cache is served",
        ),
        Hostile(
            "one hash with two lengths in one batch",
            request(
                ids=prompt(11, (IMAGE, 6), 12),
                mm=media(
                    item(
                        hash=5, offsets=((1, 6),), data={"image_grid_thw": grid((1, 4, 6))}, feature=tensor(patches(24))
                    )
                ),
            ),
            Reason.HASH_CONFLICT,
            first=request("a", mm=media(item(hash=5))),
            stops=True,
        ),
        Hostile(
            "one hash with two lengths in one request",
            request(
                ids=prompt(11, 12, (IMAGE, 4), 13, (IMAGE, 6), 14),
                mm=media(
                    item(hash=5, data=one),
                    item(
                        hash=5,
                        offsets=((7, 12),),
                        feature=tensor(patches(24)),
                        data={"image_grid_thw": grid((1, 4, 6))},
                    ),
                ),
            ),
            Reason.HASH_CONFLICT,
            stops=True,
        ),
    ]


def _positions() -> list[Hostile]:
    bad = Reason.MROPE_INVALID

    def given(**fields: Any) -> Any:
        return request(mm=media(item(), **fields))

    return [
        Hostile(
            "positions that are too short",
            given(positions=tensor(np.zeros((3, 7), np.int64))),
            bad,
            quiet="the missing positions are made up",
        ),
        Hostile("positions of no token", given(positions=tensor(np.zeros((3, 0), np.int64))), bad, stops=True),
        Hostile("positions with two rows", given(positions=tensor(np.zeros((2, 8), np.int64))), bad, stops=True),
        Hostile("positions with one dimension", given(positions=tensor(np.zeros(24, np.int64))), bad, stops=True),
        Hostile("positions of NaN", given(positions=tensor(np.full((3, 8), _NAN))), bad),
        Hostile(
            "positions of no items that are too short",
            request(mm=media(positions=tensor(np.zeros((3, 7), np.int64)))),
            bad,
            quiet="the missing positions are made up",
        ),
        Hostile("an empty delta tensor", given(delta=tensor(np.zeros((0, 1), np.int64))), bad, stops=True),
        Hostile("a delta scalar of 2^63", given(scalar=2**63), bad, stops=True),
        Hostile(
            "a delta that its own grids do not make",
            given(scalar=5),
            bad,
            rules={"mrope_ownership": "positions"},
            quiet="decoding goes on at a wrong position",
        ),
    ]


def _shared_memory() -> list[Hostile]:
    bad = Reason.SHM_INVALID
    shm = {"shm_name": SEGMENT, "shape": [16, 24], "dtype": "float32"}
    two = media(item(hash=1, shm=shm), item(hash=2, shm=shm, offsets=((7, 10),)))
    return [
        Hostile("a segment that is not there", _image(hash=1, shm=shm), bad, stops=True),
        Hostile(
            "a segment that is not there, refused before",
            request(mm=media(item(hash=1, shm=shm)), error="no"),
            bad,
            stops=True,
        ),
        Hostile("a segment of another size", _image(hash=1, shm=shm), bad, segments={SEGMENT: 1535}, stops=True),
        Hostile(
            "a name that climbs out of /dev/shm",
            _image(hash=1, shm={**shm, "shm_name": "psm_/../../etc/passwd"}),
            bad,
            stops=True,
        ),
        Hostile(
            "a name outside the pattern",
            _image(hash=1, shm={**shm, "shm_name": OTHER_SEGMENT}),
            bad,
            segments={OTHER_SEGMENT: 1536},
        ),
        Hostile(
            "one segment in two items",
            request(ids=_TWO_IMAGES, mm=two),
            Reason.MALFORMED_MULTIMODAL,
            segments={SEGMENT: 1536},
        ),
        Hostile(
            "a handle that is a list",
            _image(hash=1, shm=[SEGMENT, [16, 24], "float32"]),
            Reason.MALFORMED_MULTIMODAL,
            stops=True,
        ),
        Hostile(
            "a handle with a numpy dtype",
            _image(hash=1, shm={**shm, "dtype": "<f4"}),
            Reason.MALFORMED_TENSOR,
            segments={SEGMENT: 1536},
            stops=True,
        ),
        Hostile("a segment without a hash", _image(shm=shm), Reason.HASH_MISSING, segments={SEGMENT: 1536}),
    ]


MEDIA: Final = (*_items(), *_media(), *_positions(), *_shared_memory())
