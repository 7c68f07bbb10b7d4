"""Sidecars share nothing, so two do twice the work of one, as long as each has a core.

One process a core runs the core of the sidecar over one request for a while, first alone, then all at
once. What is short of twice the work is what the processors themselves share: caches, memory, clock.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, closing
from statistics import median
from time import perf_counter

from benchmarks.contexts import call, context, model
from benchmarks.lines import Process, say
from benchmarks.report import Section, Table
from benchmarks.requests import CASES

NAMES = ("text, 1k", "image, aux", "64 images in 120k")
SECONDS = 0.5
ROUNDS = 5


def work(name: str, core: int) -> None:
    """Be one of the processes: run for a while after every line on standard input, then say how often."""
    os.sched_setaffinity(0, {core})
    process = call(CASES[name](), context(model()))
    say(ready=True)
    for _ in sys.stdin:
        calls, end = 0, perf_counter() + SECONDS
        while perf_counter() < end:
            process()
            calls += 1
        say(per_second=calls / SECONDS)


def benchmark(quick: bool) -> Section:
    """One core, then all of them, in turn."""
    section = Section("cores")
    cores = sorted(os.sched_getaffinity(0))
    table = Table("Requests/s of the core by processes", ("request", "1 process", f"{len(cores)} processes", "times"))
    for name in NAMES:
        with ExitStack() as opened:
            command = [sys.executable, "-m", "benchmarks.cores", name]
            workers = [opened.enter_context(closing(Process([*command, str(core)]))) for core in cores]
            for worker in workers:
                worker.read()
            runs = [(rate(workers[:1]), rate(workers)) for _ in range(2 if quick else ROUNDS)]
        one, all_ = (median(column) for column in zip(*runs, strict=True))
        times = median(together / alone for alone, together in runs)
        section.data[name] = {"one": one, "all": all_, "times": times, "processes": len(cores)}
        table.rows.append((name, f"{one:,.0f}", f"{all_:,.0f}", f"{times:.2f}"))
    section.tables.append(table)
    return section


def rate(workers: list[Process]) -> float:
    """What these processes do in a second, all together."""
    for worker in workers:
        worker.go()
    return sum(worker.read()["per_second"] for worker in workers)


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
