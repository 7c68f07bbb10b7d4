"""What the relay adds to a text request's time to first token: against the direct line, in one run.

`python -m tests.interop.measure_relay` prints a table for each gateway build and writes JSON to
out/interop/relay.json. The lines are asked in turn, so that whatever else the machine does meets all.
"""

from __future__ import annotations

import json
import statistics
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.interop.gateway import BUILDS
from tests.interop.setup import Pair

REQUESTS: Final = 300
WARM_UP: Final = 20
OUT: Final = Path("out/interop/relay.json")
LINES: Final = {
    "direct": {"relay": False},
    "relay, outputs observed": {"relay": True},
    "relay, outputs past it": {"relay": True, "sets": ("relay.observe_outputs=false",)},
}


def first_token(pair: Pair) -> float:
    """Seconds from the request to the first content of the stream."""
    begin = time.perf_counter()
    with pair.gateway.stream("Say hi.") as stream:
        for event in stream:
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                seconds = time.perf_counter() - begin
                for _ in stream:  # to its end, so that the next request meets an idle line
                    pass
                return seconds
    raise RuntimeError("a stream without content")


def percentile(values: list[float], share: float) -> float:
    """A percentile of measured values, by the nearest rank."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def measure(build: str) -> dict[str, dict[str, float]]:
    """p50 and p99 of each line, in milliseconds."""
    with ExitStack() as stack:
        pairs = {
            name: stack.enter_context(closing(Pair(build, "kimi_k25", **options)))  # type: ignore[arg-type]
            for name, options in LINES.items()
        }
        for pair in pairs.values():
            pair.wait_answer()
        times: dict[str, list[float]] = {name: [] for name in pairs}
        for round_ in range(WARM_UP + REQUESTS):
            for name, pair in pairs.items():
                seconds = first_token(pair)
                if round_ >= WARM_UP:
                    times[name].append(seconds * 1000)
    return {
        name: {"p50_ms": statistics.median(values), "p99_ms": percentile(values, 0.99)}
        for name, values in times.items()
    }


def main() -> None:
    """Measure all builds."""
    console = Console()
    results = {}
    for build in BUILDS:
        results[build] = lines = measure(build)
        table = Table("line", "p50 ms", "p99 ms", "adds p50 ms", "adds p99 ms", title=f"time to first token, {build}")
        direct = lines["direct"]
        for name, line in lines.items():
            added = [line[key] - direct[key] for key in ("p50_ms", "p99_ms")]
            table.add_row(name, *(f"{value:.2f}" for value in (line["p50_ms"], line["p99_ms"], *added)))
        console.print(table)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
