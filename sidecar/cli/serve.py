"""`sidecar serve`: run the sidecar until it is told to end."""

from __future__ import annotations

import argparse
import os
import signal
from typing import TYPE_CHECKING, Any

from sidecar.cli.options import add_configuration

if TYPE_CHECKING:
    from sidecar.context import Context
    from sidecar.settings import Loaded

_EPILOG = """examples:
  sidecar serve --config /etc/sidecar/sidecar.toml
  sidecar serve --set ingress.bind=ipc:///run/sidecar/in.sock --set egress.connect=ipc:///run/engine.sock

SIGTERM and SIGINT drain within shutdown.grace_s; a second signal ends the process at once.

Exit codes: 0 after a drain that delivered everything or wrote it to shutdown.spill_dir, 3 for a
configuration that cannot be used, 4 for a socket that cannot be opened or messages that were lost at
the end, 130 for a second signal."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "serve",
        help="run the sidecar",
        description="Take requests off one socket, finish and check them, and send them on over another.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_configuration(parser)
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop", help="default: uvloop")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    # Until the event loop takes over, both signals end the process: for PID 1 they have no default action.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    import asyncio
    import logging
    import time

    from sidecar.context import Context
    from sidecar.model import load_model
    from sidecar.observability import logs
    from sidecar.observability.banner import announce, banner
    from sidecar.service.fills import Fills
    from sidecar.service.shm import SharedMemory
    from sidecar.service.slow_work import rest
    from sidecar.settings import load
    from sidecar.tokenizer import load_encoder

    loaded = load(args.config, os.environ, args.set)
    settings = loaded.settings
    logs.setup(settings.log.level, settings.log.format)
    spec = load_model(
        settings.model.path,
        trust_remote_code=settings.model.trust_remote_code,
        image_placeholder_ids=settings.model.image_placeholder_ids,
    )
    encoder = load_encoder(spec, settings.engine.kind, trust_remote_code=settings.model.trust_remote_code)
    fills = Fills(settings.materialize.device, settings.materialize.device_min_tokens)
    context = Context.from_settings(
        settings,
        spec,
        now=time.monotonic,
        probe=SharedMemory(),
        fill=fills,
        rest=rest,
        encoder=encoder,
        exact_rids=settings.mode == "relay" and settings.relay.observe_outputs,
    )
    rows = banner(settings, spec, fills.device or "cpu")
    announce(logging.getLogger(logs.LOGGER), rows, settings.log.format)
    main = _serve(loaded, context, rows)
    if args.loop == "uvloop":
        import uvloop

        uvloop.run(main)
    else:
        asyncio.run(main)
    return 0


async def _serve(loaded: Loaded, context: Context, facts: dict[str, str]) -> None:
    from sidecar.service import Service
    from sidecar.settings import describe

    await Service(loaded.settings, context, facts=facts, configuration=describe(loaded)).run()
