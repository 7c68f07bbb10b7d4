"""The mutation runner: `python -m tests.fuzz --messages 200000`."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.refusals import measure_refusals
from tests.fuzz.runner import Finding, Fuzzer
from tests.interop.engine.client import Engine

MAX_FINDINGS = 20
FLAT_MIB = 64.0
"""How much the process may grow between the first tenth of a run and its end."""


def rss_mib() -> float:
    """The resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main() -> int:
    """Run, print what was seen, and return 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", metavar="PYTHON", help="let the engine of this Python receive what leaves")
    arguments = parser.parse_args()
    engine = Engine(arguments.engine) if arguments.engine else None
    findings: Counter[str] = Counter()
    started, before = time.perf_counter(), 0.0
    with Fuzzer(arguments.seed, engine) as fuzzer:
        for number in range(arguments.messages):
            try:
                fuzzer.step()
            except Finding as finding:
                findings[str(finding)] += 1
                if findings[str(finding)] == 1:
                    print(f"message {number} of seed {arguments.seed}: {finding}", flush=True)
                if len(findings) >= MAX_FINDINGS:
                    break
            if number == arguments.messages // 10:
                gc.collect()
                before = rss_mib()
    took = time.perf_counter() - started
    if engine is not None:
        engine.close()
    gc.collect()
    grown = rss_mib() - before
    total = sum(fuzzer.counts.values())
    print(f"{total} messages in {took:.0f} s ({total / took:.0f}/s), memory {grown:+.1f} MiB after the first tenth")
    for (kind, result, reason), count in sorted(fuzzer.counts.items(), key=lambda entry: -entry[1]):
        print(f"  {count:8}  {kind} {result} {reason or ''}")
    print(f"  {fuzzer.short:8}  of them could have gone the short way")
    costs = measure_refusals()
    print("the slowest refusals of hostile messages:")
    for cost in costs[:5]:
        print(f"  {cost.seconds * 1e3:8.2f} ms  {cost.peak / 2**20:6.1f} MiB  {cost.name}")
    unbounded = [cost.name for cost in costs if not cost.bounded]
    for name in unbounded:
        print(f"took too much: {name}")
    print(f"accounting: {'exact' if fuzzer.accounted else 'WRONG'}; findings: {sum(findings.values())}")
    good = fuzzer.accounted and not findings and not unbounded and grown <= FLAT_MIB
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
