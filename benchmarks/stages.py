"""What a request costs in the core, stage by stage, next to the time that it takes to write what is new in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.contexts import call, context, model
from benchmarks.measure import interleave, quiet_collector
from benchmarks.report import Section, Table, us
from benchmarks.requests import CASES, segment
from sidecar.admission.shm import SegmentMemory
from sidecar.context import Context
from sidecar.outcome import Outcome
from sidecar.pipeline import commit, open_message, process

STAGES = ("parse", "admit", "hash", "positions", "edit", "commit")


class Watch:
    """Adds up the laps of one request."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._since = perf_counter()

    def lap(self, stage: str) -> None:
        """A stage ends, the next one begins."""
        now = perf_counter()
        self.seconds[stage] += now - self._since
        self._since = now


def stage_times(frames: Sequence[bytes], context: Context, rounds: int) -> dict[str, float]:
    """The median seconds of each stage. The clock adds 0.1 us to each."""
    watches = []
    for _ in range(rounds):
        context.segments = SegmentMemory()
        watch = Watch()
        envelope = open_message(frames, context)
        watch.lap("parse")
        outcome = process(envelope, context, watch.lap)
        watch.lap("edit")
        commit(outcome, context)
        watch.lap("commit")
        watches.append(watch.seconds)
    return {stage: median(seconds[stage] for seconds in watches) for stage in STAGES}


def new_bytes(outcome: Outcome, frames: Sequence[bytes]) -> list[memoryview]:
    """The frames that leave and are neither frames that came nor slices of them."""
    views = [memoryview(frame) for message in outcome.messages for frame in message]
    return [view for view in views if not any(view.obj is frame for frame in frames)]


def benchmark(quick: bool) -> Section:
    """Every case, text with strict and with trusted ids."""
    section = Section("stages")
    columns = ("us", *STAGES, "whole", "written", "floor", "1/s")
    note = "written: bytes of new frames; floor: the time that a copy of them takes; 1/s: requests a second"
    table = Table("In process, by stage", columns, note=note)
    spec = model()
    for name, build in CASES.items():
        for ids in ("strict", "trusted") if name.startswith("text") else ("strict",):
            row = measure(build(), context(spec, admission__token_ids=ids), quick)
            label = f"{name}, {ids}" if name.startswith("text") else name
            section.data[label] = row
            cells = [us(row["stages_s"][stage]) if row["stages_s"][stage] > 2e-7 else "" for stage in STAGES]
            written = f"{row['written_bytes']:,}" if row["written_bytes"] else ""
            floor = us(row["floor_s"]) if row["floor_s"] else ""
            table.rows.append((label, *cells, us(row["seconds"]), written, floor, f"{1 / row['seconds']:,.0f}"))
    section.tables.append(table)
    return section


def measure(frames: list[bytes], context: Context, quick: bool) -> dict[str, Any]:
    """One row: the stages, the whole without any clock in it, and the floor."""
    with segment():
        whole_call = call(frames, context)
        made = new_bytes(whole_call(), frames)
        functions: list[Callable[[], object]] = [whole_call]
        if made:
            functions.append(lambda: [bytes(view) for view in made])
        whole, *floor = interleave(functions, 0.2 if quick else 1.0)
        with quiet_collector():
            stages = stage_times(frames, context, max(7, min(2000, int((0.1 if quick else 0.5) / whole))))
    return {
        "seconds": whole,
        "stages_s": stages,
        "written_bytes": sum(view.nbytes for view in made),
        "floor_s": floor[0] if floor else 0.0,
    }
