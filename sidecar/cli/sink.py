"""`sidecar sink`: a stand-in scheduler that receives, checks and optionally records."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from sidecar.cli.options import add_pull_socket
from sidecar.wire.framing import Framing

if TYPE_CHECKING:
    from sidecar.replay.scheduler_check import Verdict

_EPILOG = """examples:
  sidecar sink --bind ipc:///tmp/sidecar/scheduler.sock
  sidecar sink --bind ipc:///tmp/sidecar/scheduler.sock --record egress.rec --count 1000 --quiet
  sidecar sink --connect ipc:///tmp/sidecar/scheduler.sock --framing typed --json

A line a message. Exit code 1 if a message was one that a scheduler would stumble over."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "sink",
        help="stand in for a scheduler",
        description="Stand in for a scheduler: receive what the sidecar sends, check each message as a "
        "scheduler would, print a line for each, and optionally record it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group(required=True)
    add_pull_socket(where)
    parser.add_argument("--framing", choices=list(Framing), default=Framing.NATIVE, help="default: native")
    parser.add_argument("--record", metavar="FILE", help="write what arrives to this recording")
    parser.add_argument("--count", type=int, metavar="N", help="stop after N messages")
    parser.add_argument("--idle-timeout", type=float, metavar="S", help="stop when nothing came for S seconds")
    parser.add_argument("--hwm", type=int, default=1000, metavar="N", help="high-water mark (default: 1000)")
    parser.add_argument("--mrope", action="store_true", help="media without M-RoPE positions are a problem")
    parser.add_argument("--allow-duplicates", action="store_true", help="the same rid may come again")
    parser.add_argument("--no-check", action="store_true", help="receive and record only")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="a JSON object a message")
    output.add_argument("--quiet", action="store_true", help="only the summary, on standard error")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    import zmq

    from sidecar.recording import Direction, Record, Writer
    from sidecar.replay.endpoint import open_socket
    from sidecar.replay.receive import StopSignals, receive
    from sidecar.replay.scheduler_check import SchedulerCheck

    framing = Framing(args.framing)
    check = SchedulerCheck(framing, mrope=args.mrope, duplicates=args.allow_duplicates)
    tally = _Tally()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    writer = None
    with StopSignals() as stop:
        try:
            socket = open_socket(context, zmq.PULL, bind=args.bind, connect=args.connect, hwm=args.hwm)
            writer = Writer(args.record) if args.record else None
            for frames in receive(socket, stop, count=args.count, idle_s=args.idle_timeout):
                verdict = None if args.no_check else check.check(frames)
                tally.add(verdict)
                if writer is not None:
                    outcome = {"outcome": verdict.outcome} if verdict is not None and verdict.outcome else {}
                    writer.write(Record.now(frames, Direction.EGRESS, framing, **outcome))
                if verdict is not None and args.json:
                    print(json.dumps(_as_json(verdict, frames)), flush=True)
                elif verdict is not None and not args.quiet:
                    print(_as_line(tally.messages, verdict), flush=True)
        finally:
            if writer is not None:
                writer.close()
            context.destroy(linger=0)
    print(tally.summary(), file=sys.stderr)
    return 1 if tally.faulty else 0


class _Tally:
    """What came, counted."""

    def __init__(self) -> None:
        self.messages = 0
        self.faulty = 0
        self.kinds: Counter[str] = Counter()

    def add(self, verdict: Verdict | None) -> None:
        self.messages += 1
        if verdict is not None:
            self.kinds[verdict.outcome or verdict.kind] += 1
            self.faulty += bool(verdict.problems)

    def summary(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        faulty = f"; {self.faulty} that a scheduler would stumble over" if self.faulty else ""
        return f"{self.messages} messages" + (f": {kinds}" if kinds else "") + faulty


def _as_line(number: int, verdict: Verdict) -> str:
    what = verdict.outcome or verdict.kind
    parts = [f"{number:>6}", f"{what:<9}", ", ".join(verdict.rids[:3]) or verdict.tag or "-"]
    if verdict.outcome:
        items = f", {verdict.items} items" if verdict.items else ""
        positions = ", positions" if verdict.positions else ""
        parts.append(f"{verdict.modality}, {verdict.tokens} tokens{items}{positions}")
    if verdict.error:
        parts.append(f"validation_error: {verdict.error}")
    parts.extend(f"PROBLEM {problem}" for problem in verdict.problems)
    return "  ".join(parts)


def _as_json(verdict: Verdict, frames: list[bytes]) -> dict[str, Any]:
    return {
        "kind": verdict.kind,
        "tag": verdict.tag,
        "rids": list(verdict.rids),
        "frames": [len(frame) for frame in frames],
        "outcome": verdict.outcome,
        "modality": verdict.modality,
        "tokens": verdict.tokens,
        "items": verdict.items,
        "positions": verdict.positions,
        "validation_error": verdict.error,
        "problems": list(verdict.problems),
    }
