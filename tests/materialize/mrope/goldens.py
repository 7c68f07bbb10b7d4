"""Golden cases as plain data: what a request states, and the positions that the reference gives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sidecar.materialize.mrope import Media, MediaItem
from sidecar.wire.tokenspeed import Modality

DATA = Path(__file__).parents[2] / "data" / "mrope"


class Golden(NamedTuple):
    name: str
    case: dict[str, Any]
    positions: np.ndarray
    ids: np.ndarray | None = None


def tokenspeed() -> Iterator[Golden]:
    """Requests and results of tokenspeed 0.1.1."""
    with np.load(DATA / "tokenspeed.npz") as arrays, open(DATA / "tokenspeed.jsonl") as lines:
        for line in lines:
            case = json.loads(line)
            yield Golden(case["case"], case, arrays[case["case"]].astype(np.int64))


def transformers() -> Iterator[Golden]:
    """Ids, grids and positions of transformers 5.24, by model type."""
    with np.load(DATA / "transformers.npz") as arrays, open(DATA / "transformers.jsonl") as lines:
        for line in lines:
            case = json.loads(line)
            name = case["case"]
            positions = arrays[f"{name}/positions"].astype(case["dtype"])
            yield Golden(name, case, positions, arrays[f"{name}/ids"].astype(np.int64))


def tokenspeed_items(case: dict[str, Any]) -> list[MediaItem]:
    """The items of a tokenspeed case."""
    items = []
    for index, item in enumerate(case["items"]):
        data = item["data"]
        modality = Modality[item["modality"]]
        grid = data.get(f"{modality.name.lower()}_grid_thw")
        seconds = data.get("video_second_per_grid")
        values = grid["values"] if grid else []
        items.append(
            MediaItem(
                index,
                modality,
                tuple((start, end) for start, end in item["offsets"] or ()),
                tuple(tuple(values[k : k + 3]) for k in range(0, len(values), 3)),
                tuple(seconds["values"]) if seconds else None,
                seconds["dtype"] if seconds else None,
                tuple(data["audio_feature_lengths"]["values"]) if "audio_feature_lengths" in data else None,
                bool(data.get("use_audio_in_video", {"values": [False]})["values"][0]),
            )
        )
    return items


def media_of(case: dict[str, Any]) -> Media:
    """The media of a transformers case. Its seconds were a float32 tensor."""
    seconds = case.get("second_per_grid_ts", case.get("video_second_per_grid"))
    return Media(
        case.get("image_grid_thw", ()),
        case.get("video_grid_thw", ()),
        seconds,
        None if seconds is None else "float32",
        case.get("audio_seqlens"),
        case.get("use_audio_in_video", False),
        case.get("target_sizes"),
        case.get("target_sizes_videos"),
    )
