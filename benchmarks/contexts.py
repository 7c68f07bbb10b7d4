"""The sidecar's core as the service runs it, for benchmarks in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sidecar.admission.shm import SegmentMemory
from sidecar.context import Context
from sidecar.model import ModelSpec, load_model
from sidecar.outcome import Outcome, Result
from sidecar.pipeline import run
from sidecar.service.shm import SharedMemory
from sidecar.settings import load

MODEL = "config/models/qwen3_5"


def model() -> ModelSpec:
    """The model of all benchmarks: M-RoPE, images and videos."""
    return load_model(MODEL)


def context(spec: ModelSpec, **keys: Any) -> Context:
    """A context of the default configuration; `section__key=value` changes a key.

    One message is processed many times, so rids and hashes are not remembered: the benchmarks over
    sockets, whose rids differ, have that in their figures.
    """
    sets = [f"{key.replace('__', '.')}={value}" for key, value in keys.items()]
    settings = load(None, {}, ["admission.duplicate_window_s=0", *sets]).settings
    return Context.from_settings(settings, spec, probe=SharedMemory())


def call(frames: Sequence[bytes], lent: Context) -> Callable[[], Outcome]:
    """A function that has a message processed, as often as it is called.

    A handle of shared memory is forwarded once only, so that memory is made new each time (0.4 us).
    Raises `ValueError` if the message is refused, the first time or the second.
    """

    def process() -> Outcome:
        lent.segments = SegmentMemory()
        return run(frames, lent)

    for _ in range(2):
        outcome = process()
        if outcome.result is not Result.FORWARDED:
            raise ValueError(f"a benchmark's request was refused: {outcome.message}")
    return process
