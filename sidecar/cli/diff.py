"""`sidecar diff`: compare two recordings, request by request."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidecar.replay.compare import Comparison

_EPILOG = """examples:
  sidecar diff before.rec after.rec
  sidecar diff before.rec after.rec --ignore created_time --ignore 'sampling_params.seed'
  sidecar diff run1.rec run2.rec --rid-map '\\.[0-9a-f]{8}\\.\\d+$='      (rids of `replay --rids fresh`)
  sidecar diff before.rec after.rec --direction egress --json

Exit code 1 if they differ."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "diff",
        help="compare two recordings",
        description="Compare two recordings request by request: ids, pads, positions, tensors, errors.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", help="a recording, a folder of raw frames, or -")
    parser.add_argument("b", metavar="B", help="the other one")
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="FIELD", help="a field's name, or a pattern of its path"
    )
    parser.add_argument(
        "--rid-map", action="append", default=[], metavar="REGEX=TEXT", help="replace this in the rids of both"
    )
    parser.add_argument("--match", choices=["rid", "order"], default="rid", help="how requests are matched")
    parser.add_argument("--direction", choices=["ingress", "egress", "output"], help="only these (default: no outputs)")
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="show N differing requests (default: 10)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="the result as a JSON object")
    output.add_argument("--quiet", action="store_true", help="only the exit code")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from sidecar.errors import UsageError
    from sidecar.recording import Direction, Reader
    from sidecar.replay.compare import Ignore, compare

    if args.a == args.b == "-":
        raise UsageError("only one of the two can be standard input")
    with Reader(args.a) as a, Reader(args.b) as b:
        result = compare(
            a,
            b,
            ignore=Ignore(args.ignore),
            direction=Direction(args.direction) if args.direction else None,
            by_order=args.match == "order",
            rid_map=_rid_map(args.rid_map),
            examples=args.limit,
        )
        cuts = [f"{reader.name}: {reader.truncation}" for reader in (a, b) if reader.truncation]
    if args.json:
        print(json.dumps(_as_json(result) | {"truncated": cuts}, indent=2))
    elif not args.quiet:
        print("\n".join([*cuts, *_as_text(result, args.a, args.b)]))
    return 0 if result.same else 1


def _rid_map(rules: list[str]) -> Callable[[str], str]:
    from sidecar.errors import UsageError

    parsed = []
    for rule in rules:
        pattern, separator, replacement = rule.rpartition("=")
        try:
            parsed.append((re.compile(pattern), replacement))
        except re.error as error:
            raise UsageError(f"--rid-map {rule}: {error}") from None
        if not separator or not pattern:
            raise UsageError(f"--rid-map {rule}: give REGEX=TEXT")

    def apply(rid: str) -> str:
        for pattern, replacement in parsed:
            rid = pattern.sub(replacement, rid)
        return rid

    return apply


def _as_text(result: Comparison, a: str, b: str) -> list[str]:
    lines = []
    for number, (name, differences) in enumerate(result.differing):
        lines.append(f"{'first difference: ' if number == 0 else ''}{name}")
        lines.extend(f"  {path}: {what}" for path, what in differences)
    for where, names in ((a, result.only_a), (b, result.only_b)):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            lines.append(f"only in {where}: {', '.join(names[:5])}{more}")
    if lines:
        lines.append("")
    differ = result.matched - result.equal
    lines.append(
        f"{result.matched} compared, {result.equal} equal, {differ} differ; "
        f"{len(result.only_a)} only in {a}, {len(result.only_b)} only in {b}"
    )
    lines.extend(f"  {count:>7}  {group}" for group, count in result.groups.most_common())
    return lines


def _as_json(result: Comparison) -> dict[str, Any]:
    return {
        "same": result.same,
        "compared": result.matched,
        "equal": result.equal,
        "differ": result.matched - result.equal,
        "only_a": result.only_a,
        "only_b": result.only_b,
        "fields": dict(result.groups),
        "requests": [
            {"request": name, "differences": [d._asdict() for d in differences]}
            for name, differences in result.differing
        ],
    }
