"""M-RoPE plans and fills against transformers, and against the time that it takes to write the memory.

python -m benchmarks.mrope [--families NAME ...] [--json FILE]

Every row is one prompt. `plan` checks the items and makes the segments; `fill` writes the positions;
`floor` is numpy.full of as many int64. Both are timed twice: into memory that the allocator has just
had back (`reused`, and what the columns in microseconds say), and into memory that the process has
never touched (`fresh`: the kernel's page faults are most of it). `speed-up` is transformers' time by
that of plan and fill, reused. Positions are compared before anything is timed. Where a CUDA device is
present, `device` is the time of fill_torch on it, table up and positions down included.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from time import perf_counter
from timeit import repeat
from typing import Any

import numpy as np

from sidecar.materialize.mrope import FAMILIES, MediaItem, Plan, bind, fill_numpy, fill_torch, resolve_device
from sidecar.wire.tokenspeed import Modality
from tests.materialize.mrope import layouts
from tests.materialize.mrope.layouts import END, IMAGE, NEWLINE, SLICE, SLICE_END, START, VIDEO, Prompt

SIZES = (
    ("4k, 1 image", 4_000, 1, False),
    ("32k, 8 images", 32_000, 8, False),
    ("120k, 64 images", 120_000, 64, False),
    ("40k, 128 frames", 40_000, 128, True),
)
MIXED = ("120k, 64 unequal", 120_000, 64, False)

SPEED_UP = {"minicpmv4_7": 5}
FLOOR_RATIO = 3
"""At 120k tokens, into fresh memory."""

Row = dict[str, Any]


def best(function: Callable[[], object], number: int, rounds: int = 7) -> float:
    """The shortest mean duration of a call, in microseconds."""
    return min(repeat(function, number=number, repeat=rounds)) / number * 1e6


def fresh(function: Callable[[], object], number: int = 16, rounds: int = 5) -> float:
    """The shortest mean duration of a call whose results are all kept, so that each writes to new pages."""
    means = []
    for _ in range(rounds):
        start = perf_counter()
        kept = [function() for _ in range(number)]
        means.append((perf_counter() - start) / len(kept))
        del kept
    return min(means) * 1e6


def build(model_type: str, tokens: int, media: int, video: bool, mixed: bool) -> Prompt:
    """A prompt of about `tokens` tokens: `media` equal images, or one video of as many frames.

    The text between equal images has one length, that between frames is a timestamp's. `mixed` varies
    both. Families without video get images instead.
    """
    prompt = Prompt(model_type, layouts.config_of(model_type, Random(0)))
    inner = prompt.config.get("thinker_config", prompt.config)
    inner["vision_config"]["spatial_merge_size"] = 2
    prompt.text(*range(1000, 1020))
    share = tokens // media - 30
    rng = Random(1)
    if prompt.family == "minicpmv4_7":
        prompt.config["downsample_mode"] = "16x"
        for k in range(media):
            picture(prompt, int((share / 7) ** 0.5) - (k % 7 if mixed else 0), video)
    elif video and prompt.family not in layouts.IMAGE_ONLY:
        frames(prompt, media, share)
    else:
        for k in range(media):
            side = int(share**0.5)
            rows = side - (k % 17 if mixed else 1)
            image(prompt, rows, share // rows - (rng.randrange(6) if mixed else 1))
            prompt.text(*range(1000, 1000 + (rng.randint(3, 20) if mixed else 12)))
    prompt.text(*range(2000, 2020))
    return prompt


def image(prompt: Prompt, rows: int, columns: int) -> None:
    """One image of `rows` × `columns` tokens."""
    merge = 1 if prompt.family == "glm_image" else 2
    line_break = prompt.family in ("hunyuan_vl", "hy_v4_vl")
    prompt.text(START)
    spans = [prompt.span(Modality.IMAGE, IMAGE, rows * columns)]
    prompt.text(END)
    prompt.add(Modality.IMAGE, spans, (1, rows * merge, (columns - line_break) * merge))


def frames(prompt: Prompt, count: int, share: int) -> None:
    """A video of `count` frames of about `share` tokens, in as many spans as the family has it."""
    side = int(share**0.5)
    columns = side - 1 if prompt.family == "hy_v4_vl" else side
    token = IMAGE if prompt.family == "glm4v" else VIDEO
    spans = []
    if prompt.family in layouts.FRAME_FAMILIES:
        prompt.text(layouts.VIDEO_START)
        for k in range(count):
            prompt.text(*range(1000, 1005 + len(str(k))), START)
            spans.append(prompt.span(Modality.VIDEO, token, side * side))
            prompt.text(END)
        prompt.text(layouts.VIDEO_END)
    else:
        prompt.text(START)
        spans.append(prompt.span(Modality.VIDEO, token, count * side * side))
        prompt.text(END)
    t = count * 2 if prompt.family == "ernie4_5_vl_moe" else count
    prompt.add(Modality.VIDEO, spans, (t, side * 2, columns * 2))


def picture(prompt: Prompt, side: int, video: bool) -> None:
    """A MiniCPM picture: a thumbnail and two rows of three slices, `side` × `side` tokens each."""
    modality, token = (Modality.VIDEO, VIDEO) if video else (Modality.IMAGE, IMAGE)
    prompt.text(1000, START)
    spans = [prompt.span(modality, token, side * side)]
    prompt.text(END)
    for row in range(2):
        for _ in range(3):
            prompt.text(SLICE)
            spans.append(prompt.span(modality, token, side * side))
            prompt.text(SLICE_END)
        if row == 0:
            prompt.text(NEWLINE)
    prompt.text(1000)
    prompt.add(modality, spans, [(side * 4, side * 4)] * 7)


def items_of(prompt: Prompt) -> list[MediaItem]:
    """An item a medium, in prompt order."""
    return [
        prompt._item(index, modality, [entry], None)
        for index, (modality, entry) in enumerate(
            (modality, entry) for modality, entries in prompt.media.items() for entry in entries
        )
    ]


def measure(model_type: str, size: tuple[str, int, int, bool], device: str | None) -> Row:
    """One row of the table."""
    from tests.materialize.mrope.reference import reference

    label, tokens, media, video = size
    prompt = build(model_type, tokens, media, video, size is MIXED)
    ids = np.array(prompt.ids)
    n, items = len(ids), items_of(prompt)
    planner = bind(prompt.family, prompt.config, "transformers")

    def plan() -> Plan:
        return planner.plan(n, items, lambda: ids)

    made = plan()
    positions, delta = reference(prompt)
    if not (np.array_equal(positions, fill_numpy(made)) and made.delta == delta):
        raise SystemExit(f"{model_type}, {label}: positions differ from transformers'")
    shape = positions.shape
    row: Row = {
        "family": prompt.family,
        "prompt": label,
        "tokens": n,
        "segments": len(made.segments),
        "plan_us": best(plan, 20),
        "fill_us": best(lambda: fill_numpy(made), 20),
        "floor_us": best(lambda: np.full(shape, 7, np.int64), 20),
        "fresh_fill_us": fresh(lambda: fill_numpy(made)),
        "fresh_floor_us": fresh(lambda: np.full(shape, 7, np.int64)),
        "transformers_us": best(lambda: reference(prompt), 1, 5),
    }
    row["speed_up"] = row["transformers_us"] / (row["plan_us"] + row["fill_us"])
    row["fill_by_floor"] = row["fill_us"] / row["floor_us"]
    row["fresh_by_floor"] = row["fresh_fill_us"] / row["fresh_floor_us"]
    if device is not None:
        if not np.array_equal(positions, fill_torch(made, device)):
            raise SystemExit(f"{model_type}, {label}: {device} differs")
        row["device_us"] = best(lambda: fill_torch(made, device), 20)
    return row


def tokens_of(size: tuple[str, int, int, bool]) -> int:
    """The length of a row's prompt."""
    return size[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; with --json, write the rows as well. Returns 1 where a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mrope", description=__doc__)
    parser.add_argument("--families", nargs="+", choices=sorted(FAMILIES), default=sorted(FAMILIES))
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args(arguments)
    device = resolve_device("auto")
    header = f"{'family':16}{'prompt':17}{'plan':>9}{'fill':>9}{'floor':>9}"
    header += f"{'reused':>9}{'fresh':>8}{'transformers':>13}{'speed-up':>9}"
    print("times in microseconds")
    print(header + (f"{'device':>9}" if device else ""))
    rows, missed = [], 0
    for family in options.families:
        for size in (*SIZES, MIXED):
            row = measure(family, size, device)
            rows.append(row)
            slow = row["speed_up"] < SPEED_UP.get(family, 10)
            high = tokens_of(size) >= 120_000 and row["fresh_by_floor"] > FLOOR_RATIO
            missed += slow or high
            cells = [
                row["family"].ljust(16),
                row["prompt"].ljust(17),
                *(f"{row[key]:9.1f}" for key in ("plan_us", "fill_us", "floor_us")),
                f"{row['fill_by_floor']:8.1f}x",
                f"{row['fresh_by_floor']:7.1f}x",
                f"{row['transformers_us']:13.0f}",
                f"{row['speed_up']:8.0f}x",
            ]
            if device is not None:
                cells.append(f"{row['device_us']:9.1f}")
            print("".join(cells), flush=True)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1))
    print(f"{missed} of {len(rows)} rows miss their goals: a speed-up of 10 (minicpmv4_7: 5), and, for")
    print("120k tokens, a fill of at most 3 times the floor in fresh memory")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
