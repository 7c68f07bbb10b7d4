"""Options that several commands have, each written once."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and `--set`, as `settings.load` takes them."""
    parser.add_argument("--config", metavar="FILE", type=Path, help="configuration file")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="one configuration key")


def add_pull_socket(where: argparse._MutuallyExclusiveGroup) -> None:
    """Add `--bind` and `--connect`: where a command receives."""
    where.add_argument("--bind", metavar="ADDRESS", help="bind a PULL socket here")
    where.add_argument("--connect", metavar="ADDRESS", help="connect a PULL socket to this address")
