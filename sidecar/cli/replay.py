"""`sidecar replay`: send a recording to an address."""

from __future__ import annotations

import argparse
import sys
from typing import Any

_EPILOG = """examples:
  sidecar replay traffic.rec --to ipc:///tmp/sidecar/ingress.sock"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "replay",
        help="send a recording to an address",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recording", metavar="RECORDING", help="a recording, a folder of raw frames, or -")
    parser.add_argument("--to", required=True, metavar="ADDRESS", help="connect a PUSH socket to this address")
    parser.add_argument("--timeout", type=float, default=10, metavar="S", help="default: 10")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    import zmq

    from sidecar.errors import TransportError
    from sidecar.recording import Direction, Reader
    from sidecar.replay.endpoint import open_socket

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sent = 0
    try:
        socket = open_socket(context, zmq.PUSH, connect=args.to)
        for record in Reader(args.recording):
            if record.direction is not Direction.INGRESS:
                continue
            if not socket.poll(int(args.timeout * 1000), zmq.POLLOUT):
                raise TransportError(f"{args.to} took {sent} messages and then nothing for {args.timeout:g} s")
            socket.send_multipart(record.frames)
            sent += 1
        socket.close(linger=int(args.timeout * 1000))
    finally:
        context.destroy()
    print(f"{sent} messages sent", file=sys.stderr)
    return 0
