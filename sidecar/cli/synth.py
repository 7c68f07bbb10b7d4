"""`sidecar synth`: make a recording for a model without any real data."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from sidecar.errors import Reason, UsageError
from sidecar.wire.framing import Framing

_EPILOG = """examples:
  sidecar synth --model config/models/qwen3_5 --count 1000 --out mixed.rec
  sidecar synth --model config/models/kimi_k25 --mix image --size choice:640x480,1024x768 --items 1-4 --out k.rec
  sidecar synth --model config/models/qwen3_5 --count 50 --broken grid_mismatch --out refused.rec
  sidecar synth --model config/models/qwen3_5 --broken all --broken-share 0.1 --count 1000 --out some-refused.rec
  sidecar synth --list-broken

Distributions: 200, 1-3, lognormal:200,0.8, normal:64,10, choice:1,2*3,8; sizes: 640x480, choice:224x224*3,640x480.
The same seed makes the same recording, byte for byte."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "synth",
        help="make a recording for a model",
        description="Make a recording for a model without any real data: text, images, videos, audio, and "
        "requests that are broken in a chosen way.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="PATH", help="a folder with a config.json, the file itself, or a hub id")
    parser.add_argument("--out", metavar="FILE", help="the recording; - is standard output")
    parser.add_argument("--count", type=int, default=100, metavar="N", help="requests (default: 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    content = parser.add_argument_group("content")
    content.add_argument("--mix", metavar="KIND[=W],...", help="text, image, video, audio, mixed, with weights")
    content.add_argument("--prompt", default="lognormal:200,0.8", metavar="DIST", help="text ids of a prompt")
    content.add_argument("--items", default="1-3", metavar="DIST", help="items of a request with media (1-3)")
    content.add_argument(
        "--size", default="choice:224x224*3,448x448*2,640x480", metavar="SIZES", help="of images and videos"
    )
    content.add_argument("--frames", default="2-8", metavar="DIST", help="temporal patches of a video (2-8)")
    content.add_argument("--audio", default="100-1000", metavar="DIST", help="mel frames of a clip (100-1000)")
    content.add_argument("--missing-hashes", type=float, default=0, metavar="P", help="share of items without a hash")
    content.add_argument("--materialized", type=float, default=0, metavar="P", help="share materialized upstream")
    broken = parser.add_argument_group("broken requests")
    broken.add_argument("--broken", action="append", default=[], metavar="REASON", help="a reason code, or all")
    broken.add_argument("--broken-share", type=float, default=1.0, metavar="P", help="share of requests (default: 1)")
    broken.add_argument("--list-broken", action="store_true", help="list the reasons and what each one takes")
    wire = parser.add_argument_group("wire")
    wire.add_argument("--framing", choices=list(Framing), default=Framing.NATIVE, help="default: native")
    wire.add_argument(
        "--aux-bytes", type=int, default=256, metavar="N", help="tensors this large in aux frames; 0: none"
    )
    wire.add_argument("--rate", type=float, default=100, metavar="R", help="requests a second in the timestamps (100)")
    parser.add_argument("--quiet", action="store_true", help="no summary")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from sidecar.recording import Writer
    from sidecar.replay.synth.broken import BREAKERS
    from sidecar.replay.synth.recipe import make_records

    if args.list_broken:
        for reason, breaker in BREAKERS.items():
            print(f"{reason:<22} {breaker.needs}".rstrip())
        return 0
    if not args.model or not args.out:
        raise UsageError("synth needs --model and --out")
    recipe = _recipe(args)
    records = make_records(recipe)
    first = next(records, None)  # before the file is made, so that what cannot be made leaves none behind
    info = {"model": recipe.model.model_type, "seed": args.seed, "source": "synth"}
    with Writer(args.out, info=info) as writer:
        if first is not None:
            writer.write(first)
        for record in records:
            writer.write(record)
        if not args.quiet:
            print(f"{writer.messages} messages, {writer.nbytes} bytes in {args.out}", file=sys.stderr)
    return 0


def _recipe(args: argparse.Namespace) -> Any:
    from sidecar.model import load_model
    from sidecar.replay.synth.distributions import parse_count, parse_mix, parse_size
    from sidecar.replay.synth.recipe import KINDS, Recipe

    for name in ("missing_hashes", "materialized", "broken_share"):
        if not 0 <= getattr(args, name) <= 1:
            raise UsageError(f"--{name.replace('_', '-')}: a share from 0 to 1")
    if args.missing_hashes and args.materialized:
        raise UsageError("--materialized needs hashes: leave --missing-hashes at 0")
    if args.rate <= 0 or args.count < 0 or args.aux_bytes < 0:
        raise UsageError("--rate must be above 0, --count and --aux-bytes at least 0")
    return Recipe(
        model=load_model(args.model),
        count=args.count,
        seed=args.seed,
        mix=parse_mix(args.mix, KINDS, "--mix") if args.mix else None,
        prompt=parse_count(args.prompt, "--prompt"),
        items=parse_count(args.items, "--items"),
        image_size=parse_size(args.size, "--size"),
        frames=parse_count(args.frames, "--frames"),
        audio=parse_count(args.audio, "--audio", 20),
        missing_hashes=args.missing_hashes,
        materialized=args.materialized,
        broken=_reasons(args.broken),
        broken_share=args.broken_share,
        framing=Framing(args.framing),
        aux_bytes=args.aux_bytes,
        rate=args.rate,
    )


def _reasons(names: list[str]) -> list[Reason]:
    reasons: list[Reason] = []
    for name in names:
        if name == "all":
            reasons.extend(Reason)
        elif name in list(Reason):
            reasons.append(Reason(name))
        else:
            raise UsageError(f"--broken {name}: no reason code; `sidecar synth --list-broken` lists them")
    return reasons
