"""`sidecar print-config`: the configuration in effect, and where each value comes from."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from sidecar.cli.options import add_configuration

if TYPE_CHECKING:
    from sidecar.settings import Loaded, Row

_EPILOG = """examples:
  sidecar print-config --config sidecar.toml --set limits.inflight_bytes=4GiB
  sidecar print-config --changed
  sidecar print-config --toml > in-effect.toml
  sidecar print-config --defaults > sidecar.toml

A value comes from, strongest first: --set, the environment (SIDECAR_SECTION__KEY), the file, the default."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "print-config",
        help="print the configuration in effect",
        description="Print every configuration key with its value in effect and where the value comes from.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_configuration(parser)
    parser.add_argument("--changed", action="store_true", help="only the keys that are not at their defaults")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="an object a key, with its value, origin and meaning")
    form.add_argument("--toml", action="store_true", help="a file that --config takes")
    form.add_argument("--defaults", action="store_true", help="the commented file of all keys and their defaults")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from sidecar.settings import describe, load, render_toml

    if args.defaults:
        print(render_toml(), end="")
        return 0
    loaded = load(args.config, os.environ, args.set)
    rows = [row for row in describe(loaded) if not args.changed or not row.origin.startswith("default")]
    if args.json:
        print(json.dumps({row.key: _as_json(loaded, row) for row in rows}, indent=2))
    elif args.toml:
        print("\n".join(_as_toml(rows)))
    else:
        _print_table(rows)
    return 0


def _as_json(loaded: Loaded, row: Row) -> dict[str, Any]:
    value = loaded.value(row.key)
    if not isinstance(value, str | int | float | bool | list | dict | type(None)):
        value = list(value) if isinstance(value, tuple) else dict(value)
    return {"value": value, "origin": row.origin, "doc": row.doc}


def _as_toml(rows: list[Row]) -> list[str]:
    """One line a key that has a value; a key without one cannot be written in TOML."""
    lines: list[str] = []
    section = ""
    for row in rows:
        head, _, name = row.key.rpartition(".")
        if row.value == "-":
            continue
        if head != section:
            section = head
            lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        lines.append(f"{name} = {row.value}  # {row.origin}")
    return lines


def _print_table(rows: list[Row]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from sidecar.cli.console import open_console

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    table.add_column("key", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    section = ""
    for row in rows:
        head = row.key.rpartition(".")[0]
        if head != section and table.rows:
            table.add_section()
        section = head
        changed = not row.origin.startswith("default")
        style = "bold" if changed else "dim" if row.value == "-" else ""
        table.add_row(row.key, Text(row.value, style), Text(row.origin, "cyan" if changed else "dim"))
    open_console().print(table)
