"""`sidecar inspect`: a recording, a folder of frames or a single message as readable text."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from sidecar.cli.options import add_configuration

if TYPE_CHECKING:
    from sidecar.inspection.verdict import Judge
    from sidecar.recording import Record

_EPILOG = """examples:
  sidecar inspect traffic.rec --list
  sidecar inspect traffic.rec --number 17 --positions --model config/models/qwen3_5
  sidecar inspect captures/ --model Qwen/Qwen3.5-4B
  sidecar inspect egress.rec --json | jq .verdict.reason

Token ids are prompt content; they are shown, runs folded. The rules are those of the configuration
(--config, SIDECAR_… variables, --set), as `serve` reads it; --model is short for --set model.path=…
Exit code 0 whatever the messages hold, 3 for a file that cannot be read."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "inspect",
        help="show what a recording holds",
        description="Show the messages of a recording, of a folder of raw frames or of one file, field by field,\n"
        "and what the sidecar would do with each and why.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="a recording, a folder of raw frames, one message, or -")
    parser.add_argument(
        "--model", metavar="PATH", help="the model whose rules apply: a folder, a config.json, a hub id"
    )
    add_configuration(parser)
    parser.add_argument("--no-rules", action="store_true", help="only show; do not run the rules")
    which = parser.add_argument_group("which messages")
    which.add_argument("--number", type=int, metavar="N", help="only message N, counted from 1")
    which.add_argument("--rid", metavar="RID", help="only the messages of this request")
    which.add_argument("--direction", choices=["ingress", "egress", "output"], help="only these")
    which.add_argument("--count", type=int, metavar="N", help="stop after N messages shown")
    how = parser.add_argument_group("how")
    form = how.add_mutually_exclusive_group()
    form.add_argument("--list", action="store_true", help="one line a message")
    form.add_argument("--json", action="store_true", help="one JSON object a line")
    form.add_argument("--verdict", action="store_true", help="only what the sidecar would do")
    form.add_argument("--bytes", action="store_true", help="the payload byte by byte")
    how.add_argument("--positions", action="store_true", help="chart the M-RoPE axes")
    how.add_argument("--sent", action="store_true", help="show what would leave in place of what came")
    how.add_argument("--all", action="store_true", help="fields at their defaults too")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from sidecar.cli.console import open_console
    from sidecar.inspection.document import document
    from sidecar.inspection.page import read_page
    from sidecar.inspection.source import Source
    from sidecar.inspection.terminal import print_bytes, print_line, print_page, print_rules, print_verdict

    source = Source(args.file)
    judge = None if args.no_rules else _judge(args, memory=source.is_stream)
    console = open_console()
    shown = 0
    for number, record in enumerate(source, 1):
        page = read_page(record)
        verdict = judge.judge(record, page) if judge is not None else None
        if not _wanted(args, number, record, page.rids):
            continue
        if args.sent:
            if verdict is None or verdict.sent is None:
                continue
            record, page, verdict = verdict.sent, read_page(verdict.sent), None
        if judge is not None and not args.json and not shown:
            print_rules(console, judge.rules)
        if args.json:
            print(json.dumps(document(number, record, page, verdict, positions=args.positions)))
        elif args.list:
            print_line(console, number, record, page, verdict)
        elif args.verdict:
            print_verdict(console, page, verdict, positions=args.positions)
        elif args.bytes:
            print_bytes(console, record, page)
        else:
            print_page(console, number, record, page, verdict, positions=args.positions, everything=args.all)
        shown += 1
        if shown == args.count or number == args.number:
            break
    if source.truncation:
        print(f"sidecar: {args.file}: {source.truncation}", file=sys.stderr)
    return 0


def _wanted(args: argparse.Namespace, number: int, record: Record, rids: tuple[str, ...]) -> bool:
    return (
        (args.number is None or number == args.number)
        and (args.rid is None or args.rid in rids)
        and (args.direction is None or args.direction == record.direction.value)
    )


def _judge(args: argparse.Namespace, *, memory: bool) -> Judge | None:
    """The rules of the configuration; None, and a word about it, where the default model is not at hand."""
    from sidecar.errors import ConfigError
    from sidecar.inspection.verdict import Judge
    from sidecar.model import load_model
    from sidecar.recording import Framing
    from sidecar.settings import load
    from sidecar.tokenizer import load_encoder

    sets = [*args.set, *([f"model.path={args.model}"] if args.model else [])]
    loaded = load(args.config, os.environ, sets)
    settings = loaded.settings
    model = settings.model
    try:
        spec = load_model(
            model.path,
            trust_remote_code=model.trust_remote_code,
            image_placeholder_ids=model.image_placeholder_ids,
        )
    except ConfigError:
        if loaded.origins["model.path"] != "default":
            raise
        print(
            f"sidecar: the default model {model.path} is not here, so no rules are run; name one with --model",
            file=sys.stderr,
        )
        return None
    encoder = load_encoder(spec, settings.engine.kind, trust_remote_code=model.trust_remote_code)
    explicit = not loaded.origins["egress.framing"].startswith("default")
    hint = "" if loaded.origins["model.path"] != "default" else ", the default; --model names another"
    return Judge(
        settings,
        spec,
        rules=f"rules of {spec.model_type} ({model.path}{hint})",
        memory=memory,
        egress_framing=Framing(settings.egress.framing) if explicit else None,
        encoder=encoder,
    )
