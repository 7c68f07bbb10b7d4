"""The time that a line adds: from when a message is due to when the sink has it, less that of the direct line.

Text of 1 KB comes at random, at a tenth, a half and nine tenths of the rate with which the sidecar keeps up
here, and over both lines at the same rates; for comparison at half of the rate with which the C proxy does. A
message counts from when it was due, so a line that falls behind cannot hide it. Both ends read one clock.

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

from benchmarks.lines import Line, Proxy, Sidecar, peer
from benchmarks.measure import percentiles
from benchmarks.peers import SIZES, Size
from benchmarks.report import Section, Table, below, us
from benchmarks.throughput import next_rids, transfer

SHARES = {"sidecar": (0.1, 0.5, 0.9), "proxy": (0.5,)}
NAMES = {"sidecar": "sidecar", "proxy": "C proxy"}
RANKS = (50, 99, 99.9)
LATE_S = 1e-3
ROUNDS = 5
SECONDS = 2.0
FIRST_RATE, STEP = 20_000.0, 1.2
KEEPS_UP_S = 2e-3
"""A line over which more than one message in ten takes longer than this has fallen behind."""


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


def keeps_up(line: Line, size: Size, rate: float) -> bool:
    """Whether a line keeps up with random arrivals of a rate; one run of three may meet a standstill."""
    return median(float(np.percentile(delays(line, size, rate, SECONDS / 2), 90)) for _ in range(3)) < KEEPS_UP_S


def capacity(line: Line, size: Size) -> float:
    """The highest rate of random arrivals, in steps of a fifth, with which a line keeps up."""
    rate = FIRST_RATE
    while keeps_up(line, size, rate * STEP**4):  # the steps that are not in question are taken four at a time
        rate *= STEP**4
    while keeps_up(line, size, rate * STEP):
        rate *= STEP
    return rate


def benchmark(quick: bool) -> Section:
    """All rates over both lines, in turn."""
    section = Section("latency")
    size = SIZES["1 KB"]
    columns = (
        "line",
        "share",
        "1/s",
        *(f"direct p{rank:g}" for rank in RANKS[:2]),
        *(f"added p{rank:g}" for rank in RANKS),
        "late, direct",
        "late",
    )
    note = (
        "us, medians of all runs; share: of the line's own capacity; added: the line's less the direct one's, run by "
        "run; late: of all messages, those that took longer than 1 ms"
    )
    table = Table("Latency of 1 KB", columns, note=note)
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as opened:
        folder = Path(name)
        sidecar = opened.enter_context(closing(Sidecar(folder, size.hwm)))
        sidecar.wait_for("/healthz")
        proxy = opened.enter_context(closing(Proxy(folder, size.hwm)))
        direct = Line(folder, size.hwm)
        for line in (sidecar, proxy):
            transfer(line, size, 10_000)
            section.data[line.name] = data = {"capacity": capacity(line, size)}
            for share in SHARES[line.name]:
                rate = data["capacity"] * share
                runs = [
                    [figures(delays(one, size, rate, SECONDS)) for one in (direct, line)]
                    for _ in range(2 if quick else ROUNDS)
                ]
                row = summarize(runs)
                data[f"{share:g}"] = {"rate": rate, "runs": runs, **row}
                table.rows.append((
                    NAMES[line.name],
                    f"{share:.0%}",
                    f"{rate:,.0f}",
                    *map(us, (*row["direct"][:2], *row["added"][:-1])),
                    *(f"{row[what][-1]:.2%}" for what in ("direct", "line")),
                ))  # fmt: skip
        sidecar.check()
    section.tables.append(table)
    added = section.data["sidecar"]["0.5"]["added"][RANKS.index(99)]
    section.goals.append(below("text p99 at half capacity above the direct line", 1, added * 1e3, "ms"))
    return section


def figures(taken: NDArray[np.float64]) -> list[float]:
    """The percentiles of a run, and the share of messages that took longer than `LATE_S`."""
    return [*percentiles(taken, RANKS), float((taken > LATE_S).mean())]


def summarize(runs: Sequence[Sequence[Sequence[float]]]) -> dict[str, list[float]]:
    """Medians over runs of the figures of (direct, line): of each, and of what the line adds in a run."""
    directs, lines = zip(*runs, strict=True)
    added = [[mine - theirs for mine, theirs in zip(*pair, strict=True)] for pair in zip(lines, directs, strict=True)]
    return {
        name: [median(column) for column in zip(*rows, strict=True)]
        for name, rows in (("direct", directs), ("line", lines), ("added", added))
    }
