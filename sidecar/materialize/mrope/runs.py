"""Items from the ids alone: the spans are the runs of placeholder ids, as transformers finds them.

A request states its offsets and they are authoritative. This is for callers that have ids and grids
only, and for confirming offsets: the plan of the items found here is the plan of the items stated.
Images that touch without a token between them are one run here; offsets can tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sidecar.errors import ConfigError
from sidecar.wire.tokenspeed import Modality

from .media import MediaItem

Offsets = tuple[tuple[int, int], ...]


class Media(NamedTuple):
    """A prompt's media without their places, modality by modality in prompt order. See `MediaItem`."""

    image_grids: Sequence[tuple[int, int, int]] = ()
    video_grids: Sequence[tuple[int, int, int]] = ()
    seconds: Sequence[float] | None = None
    seconds_dtype: str | None = None
    audio_lengths: Sequence[int] | None = None
    use_audio_in_video: bool = False
    image_sizes: Sequence[tuple[int, int]] | None = None
    video_sizes: Sequence[tuple[int, int]] | None = None


def items_from_ids(family: str, config: Mapping[str, Any], ids: npt.NDArray[np.int64], media: Media) -> list[MediaItem]:
    """One item a modality, with a span for every run of its placeholder in `ids` [n].

    Raises:
        ConfigError: the config lacks a token id that the family's prompts are read by.
    """
    spans = spans_of(family, config.get("thinker_config") or config, ids)
    items = []
    image, video, audio = (spans.get(modality, ()) for modality in Modality)
    if image or media.image_grids:
        grids = _rows(media.image_grids)
        items.append(MediaItem(0, Modality.IMAGE, image, grids, target_sizes=_pairs(media.image_sizes)))
    if video or media.video_grids:
        items.append(
            MediaItem(
                len(items),
                Modality.VIDEO,
                video,
                _rows(media.video_grids),
                None if media.seconds is None else tuple(media.seconds),
                media.seconds_dtype,
                use_audio_in_video=media.use_audio_in_video,
                target_sizes=_pairs(media.video_sizes),
            )
        )
    if audio:
        lengths = None if media.audio_lengths is None else tuple(media.audio_lengths)
        items.append(MediaItem(len(items), Modality.AUDIO, audio, audio_lengths=lengths))
    return items


def spans_of(family: str, config: Mapping[str, Any], ids: npt.NDArray[np.int64]) -> dict[Modality, Offsets]:
    """Inclusive spans by modality, in prompt order."""
    if family == "glm_image":
        return {Modality.IMAGE: _between(ids, config, "image_start_token_id", "image_end_token_id")}
    images = _runs(ids == _token(config, "image_token_id"))
    if family == "glm4v":
        return _glm_spans(ids, config, images)
    spans = {Modality.IMAGE: images}
    for modality in (Modality.VIDEO, Modality.AUDIO):
        token = config.get(f"{modality.name.lower()}_token_id")
        if token is not None:
            spans[modality] = _runs(ids == token)
    return spans


def _glm_spans(ids: npt.NDArray[np.int64], config: Mapping[str, Any], runs: Offsets) -> dict[Modality, Offsets]:
    """GLM writes video frames with the image token: what stands between video markers is a frame."""
    opened = np.flatnonzero(ids == _token(config, "video_start_token_id"))
    closed = np.flatnonzero(ids == _token(config, "video_end_token_id"))
    starts = np.array([start for start, _ in runs], np.int64)
    inside = np.searchsorted(opened, starts, "right") > np.searchsorted(closed, starts, "right")
    flags = inside.tolist()
    return {
        Modality.IMAGE: tuple(run for run, video in zip(runs, flags, strict=True) if not video),
        Modality.VIDEO: tuple(run for run, video in zip(runs, flags, strict=True) if video),
    }


def _between(ids: npt.NDArray[np.int64], config: Mapping[str, Any], start: str, end: str) -> Offsets:
    """What stands between a start and the next end marker, where an end follows."""
    starts = np.flatnonzero(ids == _token(config, start)) + 1
    ends = np.flatnonzero(ids == _token(config, end)) - 1
    return tuple(zip(starts.tolist(), ends.tolist(), strict=False))


def _runs(mask: npt.NDArray[np.bool_]) -> Offsets:
    """Maximal runs of True, inclusive."""
    edges = np.flatnonzero(np.diff(mask.view(np.int8), prepend=0, append=0))
    return tuple(zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True))


def _token(config: Mapping[str, Any], key: str) -> int:
    token = config.get(key)
    if token is None:
        raise ConfigError(f"model.path: the config lacks {key}")
    return int(token)


def _rows(grids: Sequence[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    return tuple((t, h, w) for t, h, w in grids)


def _pairs(sizes: Sequence[tuple[int, int]] | None) -> tuple[tuple[int, int], ...] | None:
    return None if sizes is None else tuple((height, width) for height, width in sizes)
