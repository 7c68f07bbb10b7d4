"""How cost grows: with the length of the prompt, with the items, with the frames of a video.

Every series is fitted with a straight line that may begin anywhere. All sizes are measured in turn, so
that a change of the machine's speed bends no line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import zip_longest
from random import Random

from benchmarks.contexts import call, context, model
from benchmarks.measure import Fit, fit, interleave
from benchmarks.report import Goal, Section, Table, ms, us
from benchmarks.requests import IMAGE, PATCH_BYTES, SIDE, VIDEO, Builder, text
from sidecar.model import ModelSpec

R2 = 0.99
TOKENS = (1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 96_000, 128_000)
ITEMS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
FRAMES = (1, 8, 16, 32, 64, 96, 128, 192, 256)
MEGABYTES = (1, 2, 4, 8, 12, 16, 24, 32)


@dataclass(frozen=True)
class Series:
    """Requests that grow in one way."""

    name: str
    unit: str
    sizes: tuple[int, ...]
    build: Callable[[int], list[bytes]]
    token_ids: str = "strict"


def image_in(tokens: int) -> list[bytes]:
    """One image of 256 tokens at the beginning of a prompt."""
    built = Builder()
    built.text(100)
    built.image(32, bytes(32 * 32 * PATCH_BYTES))
    built.text(tokens - len(built.ids))
    return built.frames()


def equal_images(count: int) -> list[bytes]:
    """Images of 1,024 tokens with 500 of text around each: the prompt grows with them."""
    built = Builder()
    feature = bytes(SIDE * SIDE * PATCH_BYTES)
    for _ in range(count):
        built.text(500)
        built.image(SIDE, feature)
    built.text(500)
    return built.frames()


def equal_frames(count: int) -> list[bytes]:
    """A video of so many frames of 256 tokens, a timestamp of 8 before each."""
    built = Builder()
    built.text(500)
    built.media(VIDEO, (count, 32, 32), bytes(count * 32 * 32 * PATCH_BYTES), "aux", True, gap=8)
    built.text(500)
    return built.frames()


def unhashed(megabytes: int) -> list[bytes]:
    """One image without a hash, of so many MiB: 341 patches a MiB, in rows of two tokens."""
    built = Builder()
    rows = megabytes * 341 // 8 * 2
    built.text(500)
    built.media(IMAGE, (1, rows, 4), Random(0).randbytes(rows * 4 * PATCH_BYTES), "aux", False)
    built.text(500)
    return built.frames()


SERIES = (
    Series("text, strict", "token", TOKENS, text),
    Series("text, trusted", "token", TOKENS, text, "trusted"),
    Series("prompt of 1 image", "token", TOKENS, image_in),
    Series("images", "image", ITEMS, equal_images),
    Series("video frames", "frame", FRAMES, equal_frames),
    Series("unhashed feature", "MiB", MEGABYTES, unhashed),
)


def benchmark(quick: bool) -> Section:
    """Fit a line through each series."""
    section = Section("growth")
    columns = ("series", "sizes", "slope", "intercept, us", "R²")
    lines = Table("How cost grows", columns, note="a straight line of least squares, its intercept free")
    points = Table("Measured: size, and ms", [series.name for series in SERIES])
    measured: list[list[str]] = []
    spec = model()
    for series in SERIES:
        times = measure(series, spec, 1.0 if quick else 6.0)
        line = fit(series.sizes, times)
        section.data[series.name] = {"x": series.sizes, "seconds": times, "unit": series.unit, "fit": asdict(line)}
        span = f"{series.sizes[0]:,} to {series.sizes[-1]:,} {series.unit}s"
        lines.rows.append((series.name, span, slope(line, series.unit), us(line.intercept), f"{line.r2:.4f}"))
        measured.append([f"{size:,}  {ms(seconds):>6}" for size, seconds in zip(series.sizes, times, strict=True)])
        section.goals.append(Goal(f"straight line: {series.name}", f"R² > {R2}", f"R² = {line.r2:.4f}", line.r2 > R2))
    points.rows += zip_longest(*measured, fillvalue="")
    section.tables = [lines, points]
    return section


def slope(line: Fit, unit: str) -> str:
    """A slope in a unit that fits it."""
    if unit == "token":
        return f"{line.slope * 1e9:.1f} ns/token"
    return f"{line.slope * 1e6:.1f} us/{unit}"


def measure(series: Series, spec: ModelSpec, budget_s: float) -> list[float]:
    """The median seconds of each size."""
    lent = context(spec, admission__token_ids=series.token_ids)
    return interleave([call(series.build(size), lent) for size in series.sizes], budget_s)
