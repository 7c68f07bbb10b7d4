"""Write docs/shield.md: what ends or damages an engine, what it does with each alone, and what reaches it here.

    INTEROP_HOME=.interop .venv/bin/python scripts/shield.py

Every row is run: the message goes to the engine's own receive path (tests/interop/engine/worker.py) as it
is, in both framings, and as the sidecar sends it on. Exit code 1 if an engine ends behind the sidecar.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from sidecar.model import ModelSpec  # noqa: E402
from sidecar.outcome import Outcome, Result  # noqa: E402
from sidecar.pipeline import run  # noqa: E402
from sidecar.wire.framing import Framing  # noqa: E402
from tests.build import (  # noqa: E402
    NORMALIZED,
    QWEN,
    TEXT,
    context_of,
    flat,
    frames,
    image_request,
    item,
    media,
    policy,
    request,
    tensor,
)
from tests.hostile import HOSTILE, Hostile, Segments  # noqa: E402
from tests.interop.engine.client import Engine  # noqa: E402
from tests.interop.engine.test_engine import real_segments  # noqa: E402

OUT: Final = ROOT / "docs" / "shield.md"

HEAD: Final = """# The shield

What an inference engine does with a message that no guard has looked at, and what reaches it through the
sidecar. Every row was run, not reasoned: `scripts/shield.py` writes this file with the code of TokenSpeed
0.1.1 (`tokenspeed`, `tokenspeed-scheduler` 0.1.25) in an environment of its own. A scheduler process has no
guard for a single request: an exception on this path ends it for every client.

What runs is the engine's own code from the receiving socket to the first forward pass: decoder, shared
memory, request handler, C++ scheduler, sampler pools, encoder plan, positions. Replaced is what needs a GPU:
the blocks of the vision tower by a matrix product (behind the model's own `pre_encode`), pinned memory by
ordinary memory; there is no language model. So a row says what happens at the latest, not what a GPU would
add.

**Alone, PUSH/PULL** is the engine's native socket. **Alone, typed** is the gateway's direct path, which drops
what it cannot decode: the engine lives, and the client of that request waits for ever. **With the sidecar**
is what happens in both framings.
"""

LIMITS: Final = """
## What the shield does not cover

- **`ProfileReq.output_dir`** (read in the engine's source, not run): the engine creates the folder where it runs
  when profiling starts, without a guard; a path that it may not write to ends it. `ProfileReq` is in the default
  `admission.control_tags`, because operators profile. Only an operator who controls that host can tell a good
  path from a bad one: leave the tag out of the list where control messages come from elsewhere.
- **Map-encoded requests** (see [placeholders](placeholders.md)) are for engines that take them. TokenSpeed's
  PUSH/PULL decoder ends on any map, a refused one included: send none to it.
- **Features of fp8** pass, as their bytes came. Behind a Qwen tower they are joined with the other features of
  the batch, and torch joins no fp8 tensor with one of another type: serve fp8 features alone or not at all.
- **`encode_handshake`** is accepted for every role. An engine without an encode worker runs its own tower on such
  an item, whose feature is nil, and ends.
- **`encoded`** embeddings must have a row a token; their width is the model's, which not every config states.
- **Positions** that a payload brings are checked for shape and type, not for size: an engine reads its rotary table
  at whatever they say.
- **Shared memory** is looked at twice, when the request is checked and when it is handed over. A producer that
  takes its segment away after that still ends the engine; no check here can close that gap.
- `admission.token_ids = "trusted"` and `admission.shared_memory = "forward"` switch the rules off that they name.
- A message that libzmq has accepted dies with the engine's process, whatever ends that.
"""


@dataclass(frozen=True)
class Row:
    """A listed message, or several that come in one turn of the engine's event loop."""

    name: str
    messages: Sequence[Any]
    spec: ModelSpec = QWEN
    rules: dict[str, Any] = field(default_factory=dict)
    segments: dict[str, int] = field(default_factory=dict)
    aux: tuple[bytes, ...] = ()
    quiet: str = ""
    native_only: bool = False

    def framed(self, framing: Framing) -> list[list[bytes]]:
        """The messages as frames; the aux frames are the last one's."""
        *before, last = self.messages
        return [*(frames(message, framing=framing) for message in before), frames(last, *self.aux, framing=framing)]


def row_of(hostile: Hostile) -> Row:
    """The row of a hostile message."""
    messages = [message for message in (hostile.first, hostile.message) if message is not None]
    return Row(
        hostile.name,
        messages,
        hostile.spec,
        dict(hostile.rules),
        dict(hostile.segments),
        hostile.aux,
        hostile.quiet,
        hostile.native_only,
    )


def ending() -> Iterator[Row]:
    """What ends an engine."""
    yield from (row_of(hostile) for hostile in HOSTILE if hostile.stops)
    text = request("r", ids=[1, 2, 3])
    yield Row("a rid that is still live", [text, text], TEXT)
    yield Row("params that are not normalized: stop_strs and seed nil", [request(ids=[1], sampling=(32,))], TEXT)
    unseeded = (*NORMALIZED[:23], None, *NORMALIZED[24:])
    yield Row("a seed that is nil", [request(ids=[1], sampling=unseeded)], TEXT)


def damaging() -> Iterator[Row]:
    """What an engine survives, and serves wrongly for."""
    yield from (row_of(hostile) for hostile in HOSTILE if hostile.quiet)
    yield Row("no M-RoPE positions for a model that needs them", [image_request()], quiet="positions are linear")
    yield Row("no pad_value", [image_request()], quiet="every image is the same one to the prefix cache")
    yield Row(
        "a delta without positions, in prefill",
        [request(mm=media(item(), delta=tensor([[-2]]), scalar=-2))],
        rules={"mrope_ownership": "positions"},
        quiet="positions are linear, and decoding is not",
    )


def alone(engine: Engine, row: Row, framing: Framing) -> str:
    """What the engine does with the messages as they are."""
    if framing is Framing.TYPED and row.native_only:
        return "has no typed form"
    with real_segments(row.segments):
        answer = engine.receive(row.framed(framing), framing, row.spec, max_model_len=row.rules.get("max_model_len"))
    if "died" in answer:
        return f"**ends** ({answer['stage']}: {code(answer['died'])})"
    if any(result["outcome"] == "not decoded" for result in answer["results"]):
        return "dropped: its client hangs"
    if answer["terminal"]:
        return "refuses it"
    return row.quiet or "takes it"


def behind(engine: Engine, row: Row, framing: Framing) -> tuple[str, bool]:
    """What reaches the engine through the sidecar, and whether it lives."""
    rules = context_of(row.spec, policy(framing, **row.rules), probe=Segments(row.segments))
    outcomes = [run(message, rules) for message in row.framed(framing)]
    left = [flat(message) for outcome in outcomes for message in outcome.messages]
    with real_segments(row.segments):
        answer = engine.receive(left, framing, row.spec, max_model_len=row.rules.get("max_model_len"))
    lives = "died" not in answer and all(result["outcome"] == "generate" for result in answer["results"])
    aborted = len(answer.get("terminal", ()))
    refused = sum(outcome.result is Result.REJECTED for outcome in outcomes)
    return says(outcomes[-1]), lives and aborted == refused


def says(outcome: Outcome) -> str:
    """What the sidecar did, in a few words."""
    if outcome.result is Result.FORWARDED:
        return "passes: materialized" if outcome.substituted or outcome.delta is not None else "passes: finalized"
    if outcome.result is Result.DROPPED:
        return f"dropped, counted (`{outcome.reason}`)"
    return f"its client gets a terminal abort: `{outcome.reason}`"


def code(text: str) -> str:
    """An exception's first words, as a table's cell can hold them."""
    short = text if len(text) <= 90 else text[:87] + "..."
    return "`" + short.replace("|", "/").replace("`", "'") + "`"


def table(engine: Engine, rows: Iterator[Row], failed: list[str]) -> list[str]:
    """The rows as Markdown."""
    lines = ["| what comes | alone, PUSH/PULL | alone, typed | with the sidecar |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = [row.name.replace("|", "/"), *(alone(engine, row, framing) for framing in Framing)]
        framings = [Framing.NATIVE] if row.native_only else list(Framing)
        results = [behind(engine, row, framing) for framing in framings]
        if not all(lives for _, lives in results):
            failed.append(row.name)
        words = list(dict.fromkeys(text for text, _ in results))
        cells.append("; typed: ".join(words))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main(out: Path = OUT) -> int:
    """Run all rows and write the file."""
    failed: list[str] = []
    with Engine() as engine:
        first = table(engine, ending(), failed)
        second = table(engine, damaging(), failed)
    counts = f"{len(first) - 2} messages end an engine, {len(second) - 2} damage it silently.\n"
    parts = [HEAD, counts, "## What ends an engine\n", *first, "\n## What damages silently\n", *second, LIMITS]
    out.write_text("\n".join(parts).rstrip() + "\n")
    print(f"{out}: {counts}", end="")
    for name in failed:
        print(f"an engine ends behind the sidecar, or a refusal is not answered: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
