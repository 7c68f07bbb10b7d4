"""`sidecar record`: write messages to a recording: from a socket, a live sidecar, or raw frames."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from sidecar.cli.options import add_pull_socket
from sidecar.wire.framing import Framing

if TYPE_CHECKING:
    import zmq

    from sidecar.recording import Record, Writer
    from sidecar.replay.receive import StopSignals

_MODALITIES: Final = ("text", "image", "video", "audio", "mixed")
_HTTP_TIMEOUT_S: Final = 5
_LAST_S: Final = 0.2
_EPILOG = """examples:
  sidecar record --bind ipc:///tmp/sidecar/ingress.sock --out traffic.rec
  sidecar record --connect ipc:///tmp/sidecar/scheduler.sock --direction egress --out egress.rec --count 1000
  sidecar record --tap 127.0.0.1:9464 --direction both --duration 60s --max-bytes 2GiB --out live.rec
  sidecar record --folder captures/ --out captures.rec
  sidecar record --recording live.rec --modality image --redact --out bug.rec

A tap copies what passes through a running sidecar; it never slows it down: what the recorder does not take
at once is left out and counted."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "record",
        help="write messages to a recording",
        description="Write messages to a recording: what arrives at a socket, what passes through a live "
        "sidecar, raw frames in a folder, or a choice of another recording.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group(required=True)
    add_pull_socket(where)
    where.add_argument("--tap", metavar="HOST:PORT", help="the admin address of a running sidecar")
    where.add_argument("--folder", metavar="DIR", help="raw frames (N.bin) below this folder")
    where.add_argument("--recording", metavar="FILE", help="another recording; - is standard input")
    parser.add_argument("--out", required=True, metavar="FILE", help="the recording; - is standard output")
    parser.add_argument("--append", action="store_true", help="continue --out if it is there")
    parser.add_argument("--framing", choices=list(Framing), default=Framing.NATIVE, help="of a socket (native)")
    parser.add_argument(
        "--direction",
        choices=["ingress", "egress", "output", "both"],
        help="what a socket's messages are (ingress), what to tap (both), or what to keep of a file (all)",
    )
    parser.add_argument("--hwm", type=int, default=1000, metavar="N", help="high-water mark (1000)")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--count", type=int, metavar="N", help="stop after N messages")
    limits.add_argument("--duration", metavar="T", help="stop after T, such as 90s or 5m")
    limits.add_argument("--idle-timeout", metavar="T", help="stop when nothing has come for T")
    limits.add_argument("--max-bytes", metavar="SIZE", help="stop before the file exceeds SIZE, such as 500MiB")
    choice = parser.add_argument_group("what to keep")
    choice.add_argument("--rid", action="append", default=[], metavar="PATTERN", help="rids like this one")
    choice.add_argument("--modality", action="append", default=[], choices=_MODALITIES)
    choice.add_argument("--outcome", action="append", default=[], metavar="NAME", help="forwarded, rejected, ...")
    choice.add_argument("--redact", action="store_true", help="random prompts and features of the same shape")
    choice.add_argument("--seed", type=int, metavar="N", help="of the random values (default: another every time)")
    choice.add_argument(
        "--keep-id", action="append", default=[], type=int, metavar="ID", help="an id that --redact keeps"
    )
    parser.add_argument("--no-compress", action="store_true", help="store every frame as it is")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="the summary as a JSON object, on standard error")
    output.add_argument("--quiet", action="store_true", help="no summary, no progress")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from sidecar.recording import Writer
    from sidecar.replay.receive import StopSignals

    tally: dict[str, Any] = {"seen": 0, "skipped": 0, "unreadable": 0, "dropped": 0}
    prepare = _preparation(args, tally)
    max_bytes = parse_size(args.max_bytes) if args.max_bytes else None
    with (
        StopSignals() as stop,
        _source(args, stop, tally) as records,  # first, so that a source that fails leaves --out as it is
        Writer(args.out, max_bytes=max_bytes, compress=not args.no_compress, append=args.append) as writer,
        _progress(args) as progress,
    ):
        started_with = writer.messages
        for record in records:
            tally["seen"] += 1
            kept = prepare(record)
            if kept is not None and not writer.write(kept):
                break
            progress(writer)
            if args.count is not None and writer.messages - started_with >= args.count:
                break
    tally |= {"messages": writer.messages - started_with, "bytes": writer.nbytes, "full": writer.full}
    if args.json:
        print(json.dumps(tally), file=sys.stderr)
    elif not args.quiet:
        print(_summary(tally, args), file=sys.stderr)
    return 0


def _preparation(args: argparse.Namespace, tally: dict[str, Any]) -> Callable[[Record], Record | None]:
    """What happens to a message before it is written: chosen or not, redacted or not."""
    from sidecar.replay.redact import Redactor
    from sidecar.replay.select import Selection, Selector

    select = Selector(Selection(args.rid, args.modality, args.outcome))
    redactor = Redactor(args.seed, args.keep_id) if args.redact else None

    def prepare(record: Record) -> Record | None:
        if not select(record):
            tally["skipped"] += 1
            return None
        if redactor is None:
            return record
        redacted = redactor.redact(record)
        tally["unreadable"] += redacted is None
        return redacted

    return prepare


@contextlib.contextmanager
def _source(args: argparse.Namespace, stop: StopSignals, tally: dict[str, Any]) -> Iterator[Iterator[Record]]:
    """The messages of the source that the arguments name; it is open before the first is asked for."""
    limits = _limits(args)
    if args.folder or args.recording:
        with _stored(args, tally) as records:
            yield records
        return
    import zmq

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        opened = _tapped(args, context, stop, tally, limits) if args.tap else _arriving(args, context, stop, limits)
        with opened as records:
            yield records
    finally:
        context.destroy(linger=0)


@contextlib.contextmanager
def _stored(args: argparse.Namespace, tally: dict[str, Any]) -> Iterator[Iterator[Record]]:
    from sidecar.errors import UsageError
    from sidecar.recording import Reader
    from sidecar.recording.tap import parse_directions

    if args.recording and os.path.realpath(args.recording) == os.path.realpath(args.out) and args.out != "-":
        raise UsageError(f"--out {args.out} is the recording that is read; name another file")
    wanted = parse_directions(args.direction) if args.direction else None
    with Reader(args.folder or args.recording) as reader:
        yield (record for record in reader if wanted is None or record.direction in wanted)
        tally["truncated"] = str(reader.truncation or "")


def _limits(args: argparse.Namespace) -> dict[str, Any]:
    from sidecar.replay.pacing import parse_duration

    return {
        "duration_s": parse_duration(args.duration, "--duration") / 1e9 if args.duration else None,
        "idle_s": parse_duration(args.idle_timeout, "--idle-timeout") / 1e9 if args.idle_timeout else None,
    }


@contextlib.contextmanager
def _arriving(
    args: argparse.Namespace, context: zmq.Context[zmq.Socket[bytes]], stop: StopSignals, limits: dict[str, Any]
) -> Iterator[Iterator[Record]]:
    import zmq

    from sidecar.errors import UsageError
    from sidecar.recording import Direction, Record
    from sidecar.replay.endpoint import open_socket
    from sidecar.replay.receive import receive

    if args.direction == "both":
        raise UsageError("--direction both is for a tap; a socket's messages are ingress or egress")
    framing, direction = Framing(args.framing), Direction(args.direction or "ingress")
    with open_socket(context, zmq.PULL, bind=args.bind, connect=args.connect, hwm=args.hwm) as socket:
        yield (Record.now(frames, direction, framing) for frames in receive(socket, stop, **limits))


@contextlib.contextmanager
def _tapped(
    args: argparse.Namespace,
    context: zmq.Context[zmq.Socket[bytes]],
    stop: StopSignals,
    tally: dict[str, Any],
    limits: dict[str, Any],
) -> Iterator[Iterator[Record]]:
    import zmq

    from sidecar.recording.tap import read_tapped
    from sidecar.replay.endpoint import open_socket
    from sidecar.replay.receive import StopSignals, receive

    with tempfile.TemporaryDirectory(prefix="sidecar-tap-") as folder:
        address = f"ipc://{folder}/tap.sock"
        query = urllib.parse.urlencode({"direction": args.direction or "both", "to": address})

        def records(socket: zmq.Socket[bytes]) -> Iterator[Record]:
            for frames in receive(socket, stop, **limits):
                record, tally["dropped"] = read_tapped(frames)
                yield record
            _close_tap(args.tap, query)
            for frames in receive(socket, StopSignals(), idle_s=_LAST_S):
                record, tally["dropped"] = read_tapped(frames)
                yield record

        with open_socket(context, zmq.PULL, bind=address, hwm=args.hwm) as socket:
            _ask(args.tap, "POST", query)
            try:
                yield records(socket)
            finally:
                _close_tap(args.tap, query)


def _close_tap(admin: str, query: str) -> None:
    """Ask the sidecar to close a tap, if it has not yet. It may be gone; an abandoned tap it closes by itself."""
    from sidecar.errors import TransportError

    with contextlib.suppress(TransportError):
        _ask(admin, "DELETE", query)


def _ask(admin: str, method: str, query: str) -> None:
    """Ask the sidecar to open or close a tap. Raises `TransportError` in words."""
    from sidecar.errors import TransportError

    base = admin if "://" in admin else f"http://{admin}"
    request = urllib.request.Request(f"{base.rstrip('/')}/tap?{query}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=_HTTP_TIMEOUT_S) as response:
            response.read()
    except urllib.error.HTTPError as error:
        detail = error.read(500).decode("utf-8", "replace").strip()
        raise TransportError(f"the sidecar at {base} refuses the tap: {error.code} {detail}") from None
    except (OSError, ValueError) as error:
        raise TransportError(f"no sidecar's admin server at {base}: {error}") from None


@contextlib.contextmanager
def _progress(args: argparse.Namespace) -> Iterator[Callable[[Writer], None]]:
    """A line that counts, on a terminal; elsewhere nothing."""
    if args.quiet or args.json or args.out == "-" or not sys.stderr.isatty():
        yield lambda writer: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.fields[text]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, text="waiting")
        yield lambda writer: bar.update(task, text=f"{writer.messages} messages, {writer.nbytes} bytes")


def _summary(tally: dict[str, Any], args: argparse.Namespace) -> str:
    parts = [f"{tally['messages']} messages, {tally['bytes']} bytes in {args.out}"]
    if tally["skipped"]:
        parts.append(f"{tally['skipped']} not chosen")
    if tally["unreadable"]:
        parts.append(f"{tally['unreadable']} unreadable left out, because they cannot be redacted")
    if tally["dropped"]:
        parts.append(f"{tally['dropped']} missed, because the recorder was too slow")
    if tally.get("truncated"):
        parts.append(f"the input is {tally['truncated']}")
    if tally["full"]:
        parts.append(f"stopped at --max-bytes {args.max_bytes}")
    return "; ".join(parts)


_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def parse_size(text: str) -> int:
    """`500MiB`, `2GB`, or bare bytes. Raises `UsageError`."""
    from sidecar.errors import UsageError

    digits = text.rstrip("BbGgIiKkMm")
    unit = _UNITS.get(text[len(digits) :].upper())
    try:
        size = float(digits)
    except ValueError:
        size = -1
    if unit is None or not 0 <= size < 1e18:
        raise UsageError(f"--max-bytes {text}: give bytes, or a size such as 500MiB or 2GB")
    return int(size * unit)
