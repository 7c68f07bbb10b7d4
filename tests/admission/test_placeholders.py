"""Where media stands in the prompt: offsets, placeholders, and what was padded upstream."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.admission.placeholders import (
    Span,
    check_offsets,
    check_placeholders,
    check_upstream,
    placeholder_ids,
    run_length,
)
from sidecar.errors import Reason, Rejection
from sidecar.model import ModelSpec, from_config
from sidecar.wire.ids import IdList, find_ids, locate
from sidecar.wire.tokenspeed import Modality
from tests.build import BARE, IMAGE, OMNI, QWEN, VIDEO, item, media, media_view, prompt, views


def listed(ids: list[int], wide: bool = False) -> IdList:
    if wide:
        packed = b"\xdd" + len(ids).to_bytes(4, "big") + b"".join(b"\xce" + value.to_bytes(4, "big") for value in ids)
    else:
        packed = msgpack.packb(ids)
    found = find_ids(packed, 0, len(packed))
    assert found is not None
    return found


def offsets_refused(n: int, *offsets: Any) -> str:
    with pytest.raises(Rejection) as caught:
        check_offsets(views(*(item(offsets=entry) for entry in offsets)), n)
    assert caught.value.reason is Reason.OFFSETS_INVALID
    return caught.value.message


GLM = from_config({"model_type": "glm4v", "image_token_id": IMAGE, "video_token_id": VIDEO})


def test_spans_come_in_prompt_order() -> None:
    spans = check_offsets(views(item(offsets=((5, 6), (0, 0))), item(2, offsets=((1, 4),))), 7)
    assert [(span.start, span.end, span.item.ordinal) for span in spans] == [(0, 0, 0), (1, 4, 1), (5, 6, 0)]
    assert [run_length(span) for span in spans] == [1, 4, 2]


@pytest.mark.parametrize("offsets", [None, []])
def test_an_item_without_offsets(offsets: Any) -> None:
    assert offsets_refused(8, ((0, 1),), offsets) == "item 1 (image) has no offsets"


@pytest.mark.parametrize("span", [(5, 4), (-1, 2), (-3, -1), (6, 8), (8, 8), (0, 10**18), (2**63, 2**63), (5, 2)])
def test_spans_outside_the_prompt(span: tuple[int, int]) -> None:
    message = offsets_refused(8, (span,))
    assert f"[{span[0]}, {span[1]}] does not lie in the prompt of 8 ids" in message


def test_the_last_position_is_inside() -> None:
    assert check_offsets(views(item(offsets=((0, 7),))), 8)


@pytest.mark.parametrize(
    "offsets",
    [(((0, 3),), ((3, 5),)), (((0, 3), (2, 5)),), (((0, 7),), ((2, 3),)), (((2, 3),), ((2, 3),)), (((2, 3), (0, 2)),)],
)
def test_overlaps(offsets: Any) -> None:
    message = offsets_refused(8, *offsets)
    assert "overlap" in message
    assert "of item 0" in message


def test_more_spans_than_ids() -> None:
    assert "9 spans do not lie apart from one another in a prompt of 8 ids" in offsets_refused(8, ((0, 0),) * 9)


@given(st.lists(st.tuples(st.integers(-2, 12), st.integers(-2, 12)), min_size=1, max_size=6), st.integers(1, 12))
def test_offsets_against_a_set_of_positions(offsets: list[tuple[int, int]], n: int) -> None:
    inside = all(0 <= start <= end < n for start, end in offsets)
    covered = [i for start, end in offsets for i in range(start, end + 1)]
    good = inside and len(covered) == len(set(covered)) and len(offsets) <= n
    items = views(item(offsets=tuple(offsets)))
    if good:
        assert sorted((span.start, span.end) for span in check_offsets(items, n)) == sorted(offsets)
    else:
        with pytest.raises(Rejection):
            check_offsets(items, n)


@pytest.mark.parametrize("im", [None, IMAGE])
@pytest.mark.parametrize("video", [None, VIDEO])
def test_known_ids(im: int | None, video: int | None) -> None:
    assert placeholder_ids(media_view(media(item(), im=im, video=video)), QWEN) == {
        Modality.IMAGE: IMAGE,
        Modality.VIDEO: VIDEO,
    }
    stated = {Modality.IMAGE: im, Modality.VIDEO: video}
    assert placeholder_ids(media_view(media(item(), im=im, video=video)), BARE) == {
        modality: token for modality, token in stated.items() if token is not None
    }
    assert placeholder_ids(media_view(media(item())), OMNI)[Modality.AUDIO] == 151675


@pytest.mark.parametrize("name", ["im", "video"])
def test_ids_that_disagree_are_named_both(name: str) -> None:
    with pytest.raises(
        Rejection, match=rf"placeholder id is 5, the model's config has {IMAGE if name == 'im' else VIDEO}"
    ) as caught:
        placeholder_ids(media_view(media(item(), **{name: 5})), QWEN)
    assert caught.value.reason is Reason.PLACEHOLDER_MISMATCH


def place(ids: list[int], *entries: Any, spec: ModelSpec = QWEN, im: Any = None, free: bool = False) -> None:
    view = media_view(media(*entries, im=im))
    prompt_ids = listed(ids)
    spans = check_offsets(view.items, prompt_ids.n)
    runs = locate(prompt_ids, [(span.start, span.end) for span in spans])
    check_placeholders(prompt_ids, spans, runs, placeholder_ids(view, spec), spec, free=free)


def misplaced(ids: list[int], *entries: Any, spec: ModelSpec = QWEN, im: Any = None) -> str:
    with pytest.raises(Rejection) as caught:
        place(ids, *entries, spec=spec, im=im)
    assert caught.value.reason is Reason.PLACEHOLDER_MISMATCH
    return caught.value.message


def test_glm_writes_the_frames_of_a_video_with_the_image_placeholder() -> None:
    frames = item(2, offsets=((1, 2), (4, 5)))
    still = item(offsets=((7, 7),))
    place([1, IMAGE, IMAGE, 2, IMAGE, IMAGE, 3, IMAGE], frames, still, spec=GLM)
    assert misplaced([1, VIDEO, VIDEO, 2, VIDEO, VIDEO], frames, spec=GLM) == (
        f"item 0: the span [1, 2] holds another id than the image placeholder {IMAGE}"
    )
    outside = misplaced([VIDEO, IMAGE, IMAGE, 2, IMAGE, IMAGE], frames, spec=GLM)
    assert outside == f"the prompt holds the video placeholder {VIDEO} 1 times, the spans cover 0 of them"


def test_spans_of_placeholders() -> None:
    place(prompt(1, (IMAGE, 4), 2), item(offsets=((1, 4),)))
    place(prompt((IMAGE, 2), (VIDEO, 3)), item(2, offsets=((2, 4),)), item(1, offsets=((0, 1),)))
    place(prompt((IMAGE, 4)), item(offsets=((0, 1),)), item(offsets=((2, 3),)))


def test_spans_of_something_else() -> None:
    ids = prompt(1, (IMAGE, 4), 2)
    assert f"item 0: the span [0, 3] is not the image placeholder {IMAGE} throughout" in misplaced(
        ids, item(offsets=((0, 3),))
    )
    video = misplaced(prompt((IMAGE, 4)), item(2, offsets=((0, 3),)))
    assert f"item 0: the span [0, 3] holds another id than the video placeholder {VIDEO}" in video


def test_a_placeholder_that_no_span_covers() -> None:
    literal = prompt(1, (IMAGE, 4), 2, IMAGE, 3, IMAGE)
    assert f"holds the image placeholder {IMAGE} 6 times, the spans cover 4 of them" in misplaced(
        literal, item(offsets=((1, 4),))
    )
    assert f"video placeholder {VIDEO} 1 times, the spans cover 0" in misplaced(
        prompt((IMAGE, 4), VIDEO), item(offsets=((0, 3),))
    )
    place(literal, item(offsets=((1, 4),)), free=True)  # somebody else has looked


def test_where_no_placeholder_is_known() -> None:
    place(prompt(1, (77, 4), 77), item(offsets=((1, 4),)), spec=BARE)
    assert "is not one repeated id throughout" in misplaced(prompt(1, (77, 4)), item(offsets=((0, 3),)), spec=BARE)
    assert "placeholder 78" in misplaced(prompt(1, (77, 4)), item(offsets=((1, 4),)), spec=BARE, im=78)
    place(prompt(1, (77, 4)), item(2, offsets=((1, 4),)), spec=BARE, im=-1)
    unknown = dataclasses.replace(QWEN, image_token_id=None, video_token_id=None)
    place(prompt(1, (77, 4)), item(offsets=((0, 3),)), spec=unknown)


IDS = prompt(11, 12, (IMAGE, 4), 13, (IMAGE, 2), 14)
PADS = (1_000_006, 1_000_007)


def upstream(ids: list[int], unpadded: list[int] = IDS, *, wide: bool = False, pads: tuple[Any, Any] = PADS) -> None:
    items = views(item(hash=6, pad=pads[0], offsets=((2, 5),)), item(hash=7, pad=pads[1], offsets=((7, 8),)))
    plain = listed(unpadded)
    spans: list[Span] = check_offsets(items, plain.n)
    check_upstream(listed(ids, wide), plain, spans, locate(plain, [(span.start, span.end) for span in spans]))


PADDED = prompt(11, 12, (PADS[0], 4), 13, (PADS[1], 2), 14)


def test_ids_that_were_padded_upstream() -> None:
    upstream(PADDED)
    upstream(PADDED, wide=True)


@pytest.mark.parametrize(
    ("ids", "what"),
    [
        (PADDED[:-1], "input_ids has 9 ids and input_ids_unpadded 10"),
        ([*PADDED, 1], "input_ids has 11 ids"),
        (
            prompt(11, 12, (PADS[1], 4), 13, (PADS[1], 2), 14),
            "item 0: the padded ids hold 1000007 in the span [2, 5]; expected",
        ),
        (prompt(11, 12, (PADS[0], 4), 13, PADS[1], 5, 14), "item 1: the padded ids hold another id in the span [7, 8]"),
        (IDS, f"item 0: the padded ids hold {IMAGE}"),
        (prompt(11, 12, (PADS[0], 4), 99, (PADS[1], 2), 14), "differ at position 6, which no span covers"),
        (prompt(99, 12, (PADS[0], 4), 13, (PADS[1], 2), 14), "differ at position 0"),
        (prompt(11, 12, (PADS[0], 4), 13, (PADS[1], 2), 99), "differ at position 9"),
    ],
)
@pytest.mark.parametrize("wide", [False, True])
def test_ids_that_were_padded_wrongly(ids: list[int], what: str, wide: bool) -> None:
    with pytest.raises(Rejection) as caught:
        upstream(ids, wide=wide)
    assert caught.value.reason is Reason.PAD_VALUE_INVALID
    assert what in caught.value.message


def test_padded_ids_without_a_pad() -> None:
    with pytest.raises(Rejection, match="expected the item's pad value None"):
        upstream(PADDED, pads=(None, PADS[1]))
