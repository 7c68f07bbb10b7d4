"""What admission costs: all strict checks of a message against the engine's own decode of the same message.

The checks are those of a request that needs nothing else: text, and media that was materialized before,
so that bytes, types, ids, sampling params, offsets, placeholders, grids, features, hashes, pads and
positions are all looked at and nothing is edited. The engine's side is `MsgpackDecoder.decode` of the
same frames. Both run in one process of the engine's environment, in turn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from random import Random

from benchmarks.contexts import call, context, model
from benchmarks.engine import ROOT, python
from benchmarks.measure import interleave
from benchmarks.report import Goal, Section, Table, us
from benchmarks.requests import VOCABULARY, encode, images
from sidecar.pipeline import run
from sidecar.wire.framing import TYPE_ADD

BOUND = 1.5
"""The checks may take at most so many times the engine's decode."""

LENGTHS = (1_000, 128_000)


def natural_ids(count: int, rng: Random) -> list[int]:
    """Ids as text has them: frequent tokens have small ids (Zipf over the vocabulary)."""
    return [min(int(VOCABULARY ** rng.random()) - 1, VOCABULARY - 1) for _ in range(count)]


def messages() -> Iterator[tuple[str, list[bytes]]]:
    """The cases by name, in typed framing."""
    rng = Random(0)
    for count in LENGTHS:
        uniform = [rng.randrange(VOCABULARY) for _ in range(count)]
        for kind, ids in (("uniform", uniform), ("natural", natural_ids(count, rng))):
            yield f"text, {count:,} {kind} ids", [TYPE_ADD, encode(ids, None)]
    for pictures, tokens in ((1, 1_500), (8, 10_000), (64, 80_000)):
        rules = context(model(), ingress__framing="typed", egress__framing="typed")
        outcome = run([TYPE_ADD, *images(pictures, tokens)], rules)
        (message,) = outcome.messages
        name = f"{pictures} image{'s' if pictures > 1 else ''}, {tokens:,} ids"
        yield name, [bytes(frame) for frame in message]


def measure(budget_s: float) -> dict[str, tuple[float, float]]:
    """Seconds a message: the checks, the engine's decode. To be called in the engine's environment."""
    from tests.interop.engine import stubs

    stubs.install()
    from tokenspeed.runtime.engine.io_struct import MsgpackDecoder, TokenizedGenerateReqInput

    decoder = MsgpackDecoder(TokenizedGenerateReqInput)
    rules = context(model(), ingress__framing="typed", egress__framing="typed")
    results = {}
    for name, message in messages():
        checks = call(message, rules)
        outcome = checks()
        if [bytes(frame) for frame in outcome.messages[0]] != message:
            raise ValueError(f"{name}: a message that needs nothing was changed")
        frames = message[1:]
        mine, theirs = interleave([checks, lambda frames=frames: decoder.decode(frames)], budget_s)
        results[name] = (mine, theirs)
    return results


def benchmark(quick: bool) -> Section:
    """The checks against the engine's decode, every case."""
    section = Section("admission_cost")
    if not python().exists():
        section.remark = (
            "admission_cost: skipped, the engine's package is not here; scripts/interop-venvs.sh installs it"
        )
        return section
    command = [python(), "-m", "benchmarks.admission_cost", "0.3" if quick else "2"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    output = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout
    section.data = json.loads(output.splitlines()[-1])
    table = Table("Admission", ("message", "checks, us", "engine's decode, us", "ratio"))
    for name, (mine, theirs) in section.data.items():
        table.rows.append((name, us(mine), us(theirs), f"{mine / theirs:.2f}"))
        met = mine <= BOUND * theirs
        section.goals.append(Goal(f"checks against decode: {name}", f"<= {BOUND:g}x", f"{mine / theirs:.2f}x", met))
    section.tables.append(table)
    return section


def main(arguments: Sequence[str]) -> None:
    """Measure, in the engine's environment, and print one line of JSON."""
    print(json.dumps(measure(float(arguments[0]))))


if __name__ == "__main__":
    main(sys.argv[1:])
