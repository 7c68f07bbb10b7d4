"""`sidecar replay`: send a recording to an address, at any speed, and measure what comes of it."""

from __future__ import annotations

import argparse
import contextlib
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from sidecar.wire.framing import Framing

if TYPE_CHECKING:
    import zmq

    from sidecar.replay.driver import Options
    from sidecar.replay.results import Results
    from sidecar.replay.targets import PushTarget
    from sidecar.replay.workload import Plan

_EPILOG = """examples:
  sidecar replay traffic.rec --to ipc:///tmp/sidecar/ingress.sock
  sidecar replay traffic.rec --to ipc:///tmp/sidecar/ingress.sock --speed 2x --max-gap 1s
  sidecar replay traffic.rec --to ipc:///tmp/sidecar/ingress.sock --rate 5000 --loop --duration 30s \\
      --listen ipc:///tmp/sidecar/scheduler.sock --results run.jsonl --threshold 'p99<5ms'
  sidecar replay traffic.rec --to ipc:///tmp/gw/worker --as gateway --concurrency 64
  sidecar synth --model config/models/qwen3_5 --count 100 --out - | \\
      sidecar replay - --to ipc:///tmp/sidecar/ingress.sock

Without --rate or --speed messages go out as fast as they are taken. Latency counts from the time a
message was due. Exit code 4 if messages were not taken, or were not seen where they were watched for."""


_MODALITIES: Final = ("text", "image", "video", "audio", "mixed")


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "replay",
        help="send a recording to an address and measure",
        description="Send a recording to an address, at any speed, and measure what comes of it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recording", metavar="RECORDING", help="a recording, a folder of raw frames, or -")
    where = parser.add_argument_group("where to")
    where.add_argument("--to", required=True, metavar="ADDRESS", help="the sidecar's ingress, or a gateway's address")
    where.add_argument("--bind", action="store_true", help="bind --to instead of connecting to it")
    where.add_argument("--as", dest="role", choices=["push", "gateway"], default="push", help="default: push")
    where.add_argument("--ranks", type=int, default=1, metavar="N", help="as a gateway: wait for N ranks")
    where.add_argument("--framing", choices=list(Framing), help="send in this framing (default: as recorded)")
    where.add_argument("--hwm", type=int, default=1000, metavar="N", help="high-water mark (default: 1000)")
    where.add_argument("--timeout", default="10s", metavar="T", help="give up when nothing moves for T (default: 10s)")
    where.add_argument("--settle", default="250ms", metavar="T", help="stay connected T longer (default: 250ms)")
    watch = parser.add_argument_group("where requests are seen again (push only; a gateway sees the outputs)")
    source = watch.add_mutually_exclusive_group()
    source.add_argument("--listen", metavar="ADDRESS", help="bind a PULL here, in the scheduler's place")
    source.add_argument("--from", dest="source", metavar="ADDRESS", help="connect a PULL to this address")
    watch.add_argument("--seen-framing", choices=list(Framing), help="default: --framing, else native")
    pace = parser.add_argument_group("when")
    pacing = pace.add_mutually_exclusive_group()
    pacing.add_argument("--rate", type=float, metavar="R", help="R messages a second")
    pacing.add_argument("--speed", metavar="X", help="the recording's own timing, X times as fast (1x: as it was)")
    pace.add_argument("--poisson", action="store_true", help="with --rate: Poisson arrivals instead of constant ones")
    pace.add_argument("--max-gap", metavar="T", help="with --speed: no pause longer than T")
    pace.add_argument("--concurrency", type=int, metavar="N", help="at most N requests unanswered at a time")
    pace.add_argument("--warmup", default="0", metavar="N|T", help="do not measure the first N requests, or T")
    what = parser.add_argument_group("what")
    what.add_argument("--loop", type=int, nargs="?", const=0, default=1, metavar="N", help="N times; without N forever")
    what.add_argument("--duration", metavar="T", help="stop after T")
    what.add_argument("--limit", type=int, metavar="N", help="stop after N messages")
    what.add_argument("--direction", choices=["ingress", "egress"], help="default: that of the first message")
    what.add_argument("--rid", action="append", default=[], metavar="PATTERN", help="only rids like this one")
    what.add_argument("--modality", action="append", default=[], choices=_MODALITIES, help="only these requests")
    what.add_argument(
        "--rids", choices=["loop", "keep", "fresh"], default="loop",
        help="loop: from the second loop on with an ending (default); keep: as recorded; fresh: new in every run",
    )  # fmt: skip
    what.add_argument("--abort-rate", type=float, default=0.0, metavar="P", help="abort this share of the requests")
    what.add_argument("--abort-after", default="50ms", metavar="T", help="each after 0 to T (default: 50ms)")
    what.add_argument("--seed", type=int, default=0, metavar="N", help="of arrivals and aborts (default: 0)")
    what.add_argument("--preload", action="store_true", help="read all of the recording first (default: 256 MiB)")
    output = parser.add_argument_group("output")
    output.add_argument("--results", metavar="FILE", help="save what was measured, for `sidecar report`; - for stdout")
    output.add_argument("--threshold", action="append", default=[], metavar="EXPR", help="as in `sidecar report`")
    shape = output.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="the summary as JSON")
    shape.add_argument("--quiet", action="store_true", help="no summary, no progress")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    import zmq

    from sidecar.replay.driver import Driver
    from sidecar.replay.pacing import parse_duration
    from sidecar.replay.receive import StopSignals
    from sidecar.replay.thresholds import parse_threshold
    from sidecar.replay.workload import Workload

    thresholds = [parse_threshold(text) for text in args.threshold]
    options, plan = _options(args), _plan(args)
    workload = Workload(plan)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with StopSignals() as stop, contextlib.ExitStack() as stack:
        stack.callback(context.destroy, linger=0)
        target: Any = _target(args, context, parse_duration(args.settle, "--settle") / 1e9)
        stack.callback(target.close)
        progress = stack.enter_context(_progress(args, plan))
        driver = Driver(target, options, lambda: stop.stopped, progress)
        try:
            driver.run(workload)
        finally:
            if driver.sent:
                results = driver.results
                results.facts |= _facts(args, workload, target)
                missed = _conclude(args, results, thresholds)
    if workload.truncated and not args.quiet:
        print(f"{args.recording}: {workload.truncated}", file=sys.stderr)
    if stop.stopped:
        return 130
    if not driver.sent:
        print(f"{args.recording}: nothing to send", file=sys.stderr)
        return 0
    return 2 if missed else 0


def _options(args: argparse.Namespace) -> Options:
    from sidecar.errors import UsageError
    from sidecar.replay import pacing
    from sidecar.replay.driver import Options

    pacer = None
    if args.rate is not None:
        if not 0 < args.rate < 1e9:
            raise UsageError(f"--rate {args.rate:g}: give messages a second, above 0")
        pacer = pacing.poisson(args.rate, args.seed) if args.poisson else pacing.constant(args.rate)
    elif args.poisson:
        raise UsageError("--poisson needs --rate")
    elif args.speed is not None:
        gap = pacing.parse_duration(args.max_gap, "--max-gap") if args.max_gap else None
        pacer = pacing.original(pacing.parse_speed(args.speed), gap)
    if args.max_gap and args.speed is None:
        raise UsageError("--max-gap needs --speed")
    if args.concurrency is not None and not (args.listen or args.source or args.role == "gateway"):
        raise UsageError("--concurrency needs to see requests end: add --listen or --from, or use --as gateway")
    if args.concurrency is not None and args.concurrency < 1:
        raise UsageError("--concurrency: at least 1")
    if not 0 <= args.abort_rate <= 1:
        raise UsageError("--abort-rate: a share from 0 to 1")
    by_count = args.warmup.isdigit()
    framing = Framing(args.framing or (Framing.TYPED if args.role == "gateway" else Framing.NATIVE))
    return Options(
        pacer=pacer,
        concurrency=args.concurrency,
        duration_ns=pacing.parse_duration(args.duration, "--duration") if args.duration else None,
        warmup=int(args.warmup) if by_count else 0,
        warmup_ns=0 if by_count else pacing.parse_duration(args.warmup, "--warmup"),
        abort_rate=args.abort_rate,
        abort_after_ns=pacing.parse_duration(args.abort_after, "--abort-after"),
        abort_framing=framing,
        seed=args.seed,
        timeout_s=pacing.parse_duration(args.timeout, "--timeout") / 1e9,
    )


def _plan(args: argparse.Namespace) -> Plan:
    from sidecar.errors import UsageError
    from sidecar.recording import Direction
    from sidecar.replay.select import Selection, Selector
    from sidecar.replay.workload import Plan

    framing = Framing(args.framing) if args.framing else None
    if args.role == "gateway":
        if framing is Framing.NATIVE:
            raise UsageError("a gateway sends typed messages only")
        framing = Framing.TYPED
    elif args.abort_rate and framing is None:
        raise UsageError("--abort-rate needs --framing, to know the form of an abort")
    run = uuid.uuid4().hex[:8]
    suffixes: dict[str, Callable[[int], str]] = {
        "loop": lambda loop: f".{loop + 1}" if loop else "",
        "keep": lambda loop: "",
        "fresh": lambda loop: f".{run}.{loop + 1}",
    }
    return Plan(
        args.recording,
        Direction(args.direction) if args.direction else None,
        framing,
        args.loop,
        args.limit,
        args.preload,
        suffixes[args.rids],
        Selector(Selection(args.rid, args.modality)) if args.rid or args.modality else None,
    )


def _target(args: argparse.Namespace, context: zmq.Context[zmq.Socket[bytes]], settle_s: float) -> Any:
    from sidecar.replay.gateway import GatewayTarget

    if args.role == "gateway":
        return GatewayTarget(context, args.to, ranks=args.ranks, hwm=args.hwm)
    return _push_target(args, context, settle_s)


def _push_target(args: argparse.Namespace, context: zmq.Context[zmq.Socket[bytes]], settle_s: float) -> PushTarget:
    import zmq

    from sidecar.replay.endpoint import open_socket
    from sidecar.replay.targets import PushTarget

    observe = None
    if args.listen or args.source:
        observe = open_socket(context, zmq.PULL, bind=args.listen, connect=args.source, hwm=args.hwm)
    return PushTarget(
        context,
        connect=None if args.bind else args.to,
        bind=args.to if args.bind else None,
        observe=observe,
        observe_framing=Framing(args.seen_framing or args.framing or Framing.NATIVE),
        hwm=args.hwm,
        settle_s=settle_s,
    )


def _facts(args: argparse.Namespace, workload: Any, target: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"recording": args.recording, "target": args.to, "requested_rate": args.rate}
    facts["skipped"] = workload.skipped
    facts["disconnects"] = getattr(target, "disconnects", 0)
    facts["notes"] = [target.note] if target.note else []
    return {key: value for key, value in facts.items() if value}


def _conclude(args: argparse.Namespace, results: Results, thresholds: list[Any]) -> bool:
    """Save and print what was measured; whether a threshold was missed."""
    from sidecar.replay.render import as_json, as_text
    from sidecar.replay.results import save
    from sidecar.replay.summary import summarize

    if args.results:
        save(results, args.results)
    out = sys.stderr if args.results == "-" else sys.stdout
    if not len(results):
        if not args.quiet:
            print(f"{results.facts['messages']} messages sent, no requests among them", file=out)
        return False
    summary = summarize(results)
    checks = [threshold.check(summary) for threshold in thresholds]
    if args.json:
        lines = [{"threshold": t.text, "met": met} for t, (met, _) in zip(thresholds, checks, strict=True)]
        print(as_json(summary, thresholds=lines), file=out)
    elif not args.quiet:
        print(as_text(summary), end="", file=out)
        print("".join(f"{line}\n" for _, line in checks), end="", file=out)
    else:
        print("".join(f"{line}\n" for met, line in checks if not met), end="", file=sys.stderr)
    return not all(met for met, _ in checks)


@contextlib.contextmanager
def _progress(args: argparse.Namespace, plan: Plan) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal; elsewhere nothing."""
    if args.quiet or args.json or not sys.stderr.isatty():
        yield lambda sent: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sidecar.errors import SidecarError
    from sidecar.recording import Reader

    total = plan.limit
    if total is None and plan.recording != "-" and plan.loops:
        with contextlib.suppress(SidecarError), Reader(plan.recording) as reader:
            total = reader.count() * plan.loops
    columns = (TextColumn("sending"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sending", total=total)
        yield lambda sent: bar.update(task, completed=sent)
