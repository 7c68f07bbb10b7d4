"""All benchmarks: tables on the terminal, JSON and Markdown in a folder.

Exit code 2 with --check if a goal is missed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import zmq

from benchmarks import (
    admission_cost,
    cores,
    engine,
    footprint,
    growth,
    latency,
    mrope,
    placeholders,
    stages,
    throughput,
)
from benchmarks.report import Goal, Section, show, show_goals, write

SECTIONS: Final[dict[str, Callable[[bool], Section]]] = {
    "stages": stages.benchmark,
    "engine": engine.benchmark,
    "admission_cost": admission_cost.benchmark,
    "growth": growth.benchmark,
    "cores": cores.benchmark,
    "throughput": throughput.benchmark,
    "latency": latency.benchmark,
    "footprint": footprint.benchmark,
}
PARTS: Final = ("placeholders", "mrope")
"""Benchmarks of one part of the core, which print by themselves."""

QUICK_FAMILIES: Final = ("qwen3_vl", "qwen3_5")
MISSED: Final = 2


def facts() -> dict[str, str]:
    """What the numbers depend on besides the code."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": cpu[0].partition(":")[2].strip() if cpu else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "python": platform.python_version(),
        "kernel": platform.release().partition("-")[0],
        "libzmq": zmq.zmq_version(),
        **{name: version(name) for name in ("pyzmq", "msgpack", "numpy", "uvloop", "blake3")},
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--only", nargs="+", choices=(*SECTIONS, *PARTS), help="some of the benchmarks")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"), help="default: out/benchmarks")
    parser.add_argument("--check", action="store_true", help="exit with 2 if a goal is missed")
    options = parser.parse_args(arguments)
    chosen = options.only or (*SECTIONS, *PARTS)
    goals: list[Goal] = []
    missed = 0
    for name in chosen:
        begin = time.monotonic()
        if name in SECTIONS:
            section = SECTIONS[name](options.quick)
            show(section)
            write(section, facts(), options.out)
            goals += section.goals
        elif name == "mrope":
            families = ("--families", *QUICK_FAMILIES) if options.quick else ()
            options.out.mkdir(parents=True, exist_ok=True)
            missed += mrope.main([*families, "--json", str(options.out / "mrope.json")])
        else:
            placeholders.main()
        print(f"{name}: {time.monotonic() - begin:.0f} s\n", flush=True)
    show_goals(goals)
    missed += sum(not goal.met for goal in goals)
    return MISSED if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
