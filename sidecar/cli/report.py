"""`sidecar report`: percentiles, histograms and charts of a replay's results."""

from __future__ import annotations

import argparse
import sys
from typing import Any

_EPILOG = """examples:
  sidecar report run.jsonl
  sidecar report run.jsonl --format html --out run.html
  sidecar report run.jsonl --threshold 'p99<5ms' --threshold 'image.p50<20ms' --threshold 'rate>=4950'
  sidecar replay traffic.rec --to ipc:///tmp/sidecar/ingress.sock --quiet --results - | sidecar report -

Metrics: min, mean, p50 to p99.999, max (of the latency from due to done, where the run saw requests come
out, else from due to handed over; `handover.p99` and `first.p99` name the others), rate, requests, unseen,
rejected. A modality or an outcome before the metric restricts it. Exit code 2 if a threshold is missed."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "report",
        help="percentiles, histograms and charts of a replay",
        description="Sum up the results that `sidecar replay --results FILE` has saved.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", metavar="FILE", help="a results file; - is standard input")
    parser.add_argument("--format", choices=["text", "json", "csv", "html"], default="text", help="default: text")
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="same as --format json")
    parser.add_argument("--out", metavar="FILE", default="-", help="write it here (default: standard output)")
    parser.add_argument(
        "--buckets", metavar="T,T,...", help="edges of the histogram, such as 100us,1ms,10ms (default: 1-2-5 steps)"
    )
    parser.add_argument(
        "--threshold", action="append", default=[], metavar="EXPR", help="what must hold, such as 'p99<5ms'"
    )
    parser.add_argument("--quiet", action="store_true", help="no report, only the thresholds that were missed")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from sidecar.replay.page import as_html
    from sidecar.replay.render import as_csv, as_json, as_text
    from sidecar.replay.results import load
    from sidecar.replay.summary import summarize
    from sidecar.replay.thresholds import parse_threshold

    thresholds = [parse_threshold(text) for text in args.threshold]
    edges = _edges(args.buckets)
    results = load(args.results)
    summary = summarize(results)
    checks = [threshold.check(summary) for threshold in thresholds]
    if not args.quiet:
        if args.format == "text":
            text = as_text(summary, edges)
            text += "".join(f"\n{line}" for _, line in checks) + ("\n" if checks else "")
        elif args.format == "json":
            lines = [{"threshold": t.text, "met": met} for t, (met, _) in zip(thresholds, checks, strict=True)]
            text = as_json(summary, edges, lines) + "\n"
        elif args.format == "csv":
            text = as_csv(results)
        else:
            text = as_html(summary, edges, checks)
        if args.out == "-":
            sys.stdout.write(text)
        else:
            with open(args.out, "w", encoding="utf-8") as file:
                file.write(text)
    missed = [line for met, line in checks if not met]
    if missed and (args.quiet or args.format != "text" or args.out != "-"):
        print("\n".join(missed), file=sys.stderr)
    return 2 if missed else 0


def _edges(text: str | None) -> list[float] | None:
    from sidecar.errors import UsageError
    from sidecar.replay.pacing import parse_duration

    if text is None:
        return None
    edges = [float(parse_duration(part, "--buckets")) for part in text.split(",")]
    if edges != sorted(set(edges)):
        raise UsageError("--buckets: the edges must ascend")
    return edges
