"""`sidecar keygen`: make a CURVE key pair, the secret key in a private file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_EPILOG = """example:
  sidecar keygen --out /etc/sidecar/curve.key

Name the file in security.secret_key_file. Give the public key, which is printed, to the peers: a peer
that the sidecar connects to lists it as an allowed client, a peer that connects to the sidecar expects
it as the server's key. The peers' own public keys go to security.allowed_client_keys,
security.ingress_server_key and security.egress_server_key."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "keygen",
        help="make CURVE keys",
        description="Make a CURVE key pair. The secret key is written to a file that only its owner can read; "
        "a file that is there already is never overwritten.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", metavar="FILE", required=True, type=Path, help="where the key pair is written")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from sidecar.transport import curve

    pair = curve.generate()
    curve.save(pair, args.out)
    print(pair.public)
    return 0
