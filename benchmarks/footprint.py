"""Memory at rest, and the time from start to ready."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.lines import Sidecar, peer
from benchmarks.report import Section, Table, below

HWM = 8
REST_S = 1.0
IDLE_MB = 100
READY_S = 3


def start() -> dict[str, Any]:
    """Start the sidecar beside a scheduler that waits for it; what it takes until ready, and at rest."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as opened:
        sidecar = opened.enter_context(closing(Sidecar(Path(name), HWM)))
        opened.enter_context(closing(peer("sink", sidecar.exit, hwm=HWM, size="1 KB", count=1)))
        ready = sidecar.wait_for("/readyz")
        time.sleep(REST_S)
        assert sidecar.process is not None
        return {"ready_s": ready, **sidecar.process.memory()}


def benchmark(quick: bool) -> Section:
    """Some starts, one after the other."""
    section = Section("footprint")
    runs = [start() for _ in range(2 if quick else 5)]
    middle = {key: median(run[key] for run in runs) for key in runs[0]}
    section.data = {"runs": runs, **middle}
    table = Table("At rest", ("", "measured"))
    table.rows = [
        ("start to ready", f"{middle['ready_s']:.2f} s"),
        ("resident (RSS)", f"{middle['rss'] / 1e6:.1f} MB"),
        ("its share of what is resident (PSS)", f"{middle['pss'] / 1e6:.1f} MB"),
        ("most resident while starting", f"{middle['peak_rss'] / 1e6:.1f} MB"),
    ]
    section.tables.append(table)
    section.goals = [
        below("memory at rest, RSS", IDLE_MB, middle["rss"] / 1e6, "MB"),
        below("start to ready", READY_S, middle["ready_s"], "s"),
    ]
    return section
