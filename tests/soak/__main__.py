"""Runs the scenarios (or those named on the command line) and exits with 1 if a bound does not hold."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.soak import faults, scenarios
from tests.soak.report import Report
from tests.soak.workers import SPAWN, idle_lag, start

SCENARIOS: dict[str, Callable[[Report, Path, float], None]] = {
    "million": lambda report, folder, scale: scenarios.million(report, folder, scale, "uvloop"),
    "million-asyncio": lambda report, folder, scale: scenarios.million(report, folder, scale, "asyncio"),
    "memory": scenarios.stalled_memory,
    "aborts": scenarios.abort_rounds,
    "fairness": scenarios.fairness,
    "shutdown": faults.shutdown,
    "restarts": faults.restarts,
    "broken-pipe": faults.broken_pipe,
    "network": faults.bad_network,
    "kills": faults.killed_at_random,
}


def main(arguments: list[str]) -> int:
    """Run scenarios by name, all if none is named."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help=f"one of: {', '.join(SCENARIOS)}")
    names: list[str] = parser.parse_args(arguments).names
    if unknown := [name for name in names if name not in SCENARIOS]:
        parser.error(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    scale = float(os.environ.get("SOAK_SCALE", "1"))
    report = Report()
    began = time.monotonic()
    for name in names or SCENARIOS:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            results, stop = SPAWN.Queue(), SPAWN.Event()
            idle = start(idle_lag, results, stop)
            try:
                SCENARIOS[name](report, Path(folder), scale)
            except AssertionError as error:
                report.check("it went through", str(error), False)
            stop.set()
            report.number("loop lag p99 of an idle process beside it", results.get(timeout=10), "s")
            idle.join()
    print(f"\n{time.monotonic() - began:.0f} s, {len(report.failed)} bounds that do not hold")
    for line in report.failed:
        print(f"  {line}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
