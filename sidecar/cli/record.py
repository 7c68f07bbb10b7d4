"""`sidecar record`: write what arrives at a socket, or what lies in a folder, to a recording."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sidecar.wire.framing import Framing

if TYPE_CHECKING:
    from sidecar.recording import Record

_EPILOG = """examples:
  sidecar record --bind ipc:///tmp/sidecar/ingress.sock --out traffic.rec
  sidecar record --connect ipc:///tmp/sidecar/scheduler.sock --out egress.rec --direction egress --count 1000
  sidecar record --folder captures/ --out captures.rec"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "record",
        help="write messages to a recording",
        description="Write what arrives at a socket, or what lies in a folder of raw frames, to a recording.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--bind", metavar="ADDRESS", help="bind a PULL socket here")
    where.add_argument("--connect", metavar="ADDRESS", help="connect a PULL socket to this address")
    where.add_argument("--folder", metavar="DIR", help="read raw frames (N.bin) below this folder")
    parser.add_argument("--out", required=True, metavar="FILE", help="the recording; - is standard output")
    parser.add_argument("--framing", choices=list(Framing), default=Framing.NATIVE, help="default: native")
    parser.add_argument("--direction", choices=["ingress", "egress"], default="ingress", help="default: ingress")
    parser.add_argument("--count", type=int, metavar="N", help="stop after N messages")
    parser.add_argument("--quiet", action="store_true", help="no summary")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from sidecar.recording import Reader, Writer

    with Writer(args.out) as writer:
        for record in Reader(args.folder) if args.folder else _arriving(args):
            writer.write(record)
            if writer.messages == args.count:
                break
    if not args.quiet:
        print(f"{writer.messages} messages, {writer.nbytes} bytes", file=sys.stderr)
    return 0


def _arriving(args: argparse.Namespace) -> Iterator[Record]:
    import zmq

    from sidecar.recording import Direction, Record
    from sidecar.replay.endpoint import open_socket
    from sidecar.replay.receive import StopSignals, receive

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    framing, direction = Framing(args.framing), Direction(args.direction)
    with StopSignals() as stop:
        try:
            socket = open_socket(context, zmq.PULL, bind=args.bind, connect=args.connect)
            for frames in receive(socket, stop, count=args.count):
                yield Record.now(frames, direction, framing)
        finally:
            context.destroy(linger=0)
