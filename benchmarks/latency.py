"""The time that the sidecar adds: from when a message is due to when the sink has it, less that of the direct line.

Text of 1 KB comes at random, at a tenth, a half and nine tenths of the rate with which the sidecar keeps up
here, and over both lines at the same rates. A message counts from when it was due, so a line that falls
behind cannot hide it. Both ends read one clock.

The rate with which a line keeps up is less than what a source that waits gets through it: one that sends
when messages are due takes its share of the processors whether the line is ready or not.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.lines import Line, Sidecar, peer
from benchmarks.measure import percentiles
from benchmarks.peers import SIZES, Size
from benchmarks.report import Section, Table, below, us
from benchmarks.throughput import next_rids, transfer

SHARES = (0.1, 0.5, 0.9)
RANKS = (50, 99, 99.9)
ROUNDS = 5
SECONDS = 2.0
FIRST_RATE, STEP = 20_000.0, 1.2
KEEPS_UP_S = 2e-3
"""A line whose median delay is longer than this has fallen behind."""


def delays(line: Line, size: Size, rate: float, seconds: float) -> NDArray[np.float64]:
    """One run: the seconds from due to arrival, [messages], without those of the first fifth."""
    number = max(int(rate * seconds), 100)
    with ExitStack() as opened, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        due, came = Path(folder, "due"), Path(folder, "came")
        shared: dict[str, Any] = {"hwm": line.hwm, "size": size.name, "count": number}
        sink = opened.enter_context(closing(peer("sink", line.exit, bind=line.binds, times=came, **shared)))
        sink.read()
        source = opened.enter_context(
            closing(peer("source", line.entry, rate=rate, times=due, first=next_rids(number), **shared))
        )
        source.read()
        source.go()
        source.read()
        sink.read()
        times = [np.frombuffer(array("d", path.read_bytes())) for path in (due, came)]
    taken: NDArray[np.float64] = (times[1] - times[0])[number // 5 :]
    return taken


def capacity(line: Line, size: Size) -> float:
    """The highest rate of random arrivals, in steps of a fifth, with which a line keeps up."""
    rate = FIRST_RATE
    while median(float(np.median(delays(line, size, rate * STEP, SECONDS / 2))) for _ in range(3)) < KEEPS_UP_S:
        rate *= STEP
    return rate


def benchmark(quick: bool) -> Section:
    """All rates over both lines, in turn."""
    section = Section("latency")
    size = SIZES["1 KB"]
    columns = (
        "share of capacity",
        "rate, 1/s",
        *(f"{what} p{rank:g}" for what in ("direct", "added") for rank in RANKS),
    )
    note = "us; added: sidecar less direct, run by run; medians of all runs"
    table = Table("Latency of 1 KB", columns, note=note)
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as opened:
        folder = Path(name)
        sidecar = opened.enter_context(closing(Sidecar(folder, size.hwm)))
        sidecar.wait_for("/healthz")
        direct = Line(folder, size.hwm)
        transfer(sidecar, size, 10_000)
        section.data["capacity"] = limit = capacity(sidecar, size)
        for share in SHARES:
            rate = limit * share
            runs = [
                [percentiles(delays(line, size, rate, SECONDS), RANKS) for line in (direct, sidecar)]
                for _ in range(2 if quick else ROUNDS)
            ]
            row = summarize(runs)
            section.data[f"{share:g}"] = {"rate": rate, "runs": runs, **row}
            cells = (us(seconds) for what in ("direct", "added") for seconds in row[what])
            table.rows.append((f"{share:.0%}", f"{rate:,.0f}", *cells))
        sidecar.check()
    section.tables.append(table)
    added = section.data["0.5"]["added"][RANKS.index(99)]
    section.goals.append(below("text p99 at half capacity above the direct line", 1, added * 1e3, "ms"))
    return section


def summarize(runs: Sequence[Sequence[Sequence[float]]]) -> dict[str, list[float]]:
    """Medians over runs of (direct, sidecar) percentiles: of each, and of what the sidecar adds in a run."""
    directs, sidecars = zip(*runs, strict=True)
    added = [
        [mine - theirs for mine, theirs in zip(*pair, strict=True)] for pair in zip(sidecars, directs, strict=True)
    ]
    return {
        name: [median(column) for column in zip(*rows, strict=True)]
        for name, rows in (("direct", directs), ("sidecar", sidecars), ("added", added))
    }
