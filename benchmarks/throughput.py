"""Messages and bytes a second through the sidecar, next to libzmq's proxy and to no process at all.

Source and sink are processes that block; all sockets of a size have one high-water mark. The lines take
turns. On two cores source, line and sink share them in every case, so besides the rates stands the CPU
time that the process in the middle takes for a message.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.lines import Line, Proxy, Relay, Sidecar, peer
from benchmarks.peers import SIZES, Size, messages
from benchmarks.report import Section, Table, at_least

COUNTS = {"1 KB": 100_000, "64 KB": 10_000, "1 MB": 1500, "12 MB": 150}
ROUNDS = 7

_rids = count()


def next_rids(number: int) -> int:
    """The first of so many rids that were not used before: one that comes again is a duplicate."""
    first = next(_rids)
    for _ in range(number - 1):
        next(_rids)
    return first


def transfer(line: Line, size: Size, number: int) -> dict[str, float]:
    """One run over a line: the rate, and the CPU time a message of the process in the middle."""
    with ExitStack() as peers:
        sink = peer("sink", line.exit, bind=line.binds, hwm=line.hwm, size=size.name, count=number)
        peers.callback(sink.close)
        sink.read()
        source = peer("source", line.entry, hwm=line.hwm, size=size.name, count=number, first=next_rids(number))
        peers.callback(source.close)
        source.read()
        before = line.process.cpu_seconds() if line.process is not None else 0.0
        source.go()
        result = sink.read()
        used = line.process.cpu_seconds() - before if line.process is not None else 0.0
    return {"per_second": result["messages"] / result["seconds"], "cpu_s": used / number}


def benchmark(quick: bool) -> Section:
    """All sizes over all lines."""
    section = Section("throughput")
    columns = (
        "size",
        "mark",
        "direct",
        "C proxy",
        "bare Python",
        "sidecar",
        "GB/s",
        "of proxy",
        "proxy CPU",
        "sidecar CPU",
    )
    note = "messages/s; GB/s through the sidecar; CPU: us a message, of the process in the middle"
    table = Table("Through sockets", columns, note=note)
    for name, size in SIZES.items():
        row = measure(size, COUNTS[name] // (5 if quick else 1), 2 if quick else ROUNDS)
        section.data[name] = row
        per_second, cpu = row["per_second"], row["cpu_s"]
        table.rows.append((
            name,
            f"{size.hwm}",
            *(f"{per_second[line]:,.0f}" for line in ("direct", "proxy", "relay", "sidecar")),
            f"{per_second['sidecar'] * row['bytes'] / 1e9:.2f}",
            f"{row['of_proxy']:.2f}",
            *(f"{cpu[line] * 1e6:,.1f}" for line in ("proxy", "sidecar")),
        ))  # fmt: skip
    section.tables.append(table)
    section.goals = [
        at_least("1 KB, of the C proxy's messages/s", 0.4, section.data["1 KB"]["of_proxy"], ""),
        at_least("12 MB in aux frames, of the C proxy's GB/s", 0.9, section.data["12 MB"]["of_proxy"], ""),
    ]
    return section


def measure(size: Size, number: int, rounds: int) -> dict[str, Any]:
    """One size over all lines, in turn: medians of all runs, and the median ratio of runs side by side."""
    nbytes = sum(map(len, next(messages(size, 0, 1))))
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ("direct", "proxy", "relay", "sidecar")}
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as opened:
        folder = Path(name)
        sidecar = opened.enter_context(closing(Sidecar(folder, size.hwm)))
        sidecar.wait_for("/healthz")
        proxy = opened.enter_context(closing(Proxy(folder, size.hwm)))
        relay = opened.enter_context(closing(Relay(folder, size.hwm, size.name)))
        lines = [Line(folder, size.hwm), relay, proxy, sidecar]
        for line in lines[1:]:
            transfer(line, size, max(number // 10, 10))
        for _ in range(rounds):
            for line in lines:
                runs[line.name].append(transfer(line, size, number))
        sidecar.check()
        assert sidecar.process is not None
        memory = sidecar.process.memory()
    ratios = [
        ours["per_second"] / theirs["per_second"] for ours, theirs in zip(runs["sidecar"], runs["proxy"], strict=True)
    ]
    return {
        "bytes": nbytes,
        "hwm": size.hwm,
        "per_second": {line: median(run["per_second"] for run in mine) for line, mine in runs.items()},
        "cpu_s": {line: median(run["cpu_s"] for run in mine) for line, mine in runs.items()},
        "of_proxy": median(ratios),
        "ratios": ratios,
        "memory": memory,
    }
