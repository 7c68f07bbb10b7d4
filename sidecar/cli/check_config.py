"""`sidecar check-config`: would `serve` start with this configuration, on this host, with this model?"""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidecar.cli.options import add_configuration

if TYPE_CHECKING:
    from sidecar.settings import Settings

_EPILOG = """examples:
  sidecar check-config --config /etc/sidecar/sidecar.toml
  SIDECAR_MODEL__PATH=/models/qwen3.5 sidecar check-config

Everything that is wrong is reported in one run. No socket is opened. Exit code 3 if something is wrong."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "check-config",
        help="check a configuration without opening a socket",
        description="Read the configuration as `serve` would, resolve the model, and look at the places that "
        "the sockets and folders need.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_configuration(parser)
    parser.add_argument("--quiet", action="store_true", help="say nothing if all is well")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from sidecar.context import Context
    from sidecar.errors import ConfigError
    from sidecar.model import load_model
    from sidecar.observability.banner import banner
    from sidecar.settings import SettingsError, load
    from sidecar.tokenizer import load_encoder

    settings = load(args.config, os.environ, args.set).settings
    problems = list(_problems(settings))
    try:
        spec = load_model(
            settings.model.path,
            trust_remote_code=settings.model.trust_remote_code,
            image_placeholder_ids=settings.model.image_placeholder_ids,
        )
        encoder = load_encoder(spec, settings.engine.kind, trust_remote_code=settings.model.trust_remote_code)
        Context.from_settings(settings, spec, encoder=encoder)
    except ConfigError as error:
        raise SettingsError([*problems, str(error)]) from None
    if problems:
        raise SettingsError(problems)
    if not args.quiet:
        device = settings.materialize.device
        rows = banner(settings, spec, "decided at start" if device == "auto" else device)
        width = max(map(len, rows))
        for name, text in rows.items():
            print(f"{name:<{width}}  {text}")
        print("the configuration is good")
    return 0


def _problems(settings: Settings) -> Iterator[str]:
    """What on this host stands in the way of the sockets, keys and folders."""
    from sidecar.settings.checks import endpoints

    for key, address in endpoints(settings).items():
        if address.startswith("ipc://") and key.endswith((".bind", "engine_handshake")):
            yield from _socket(key, Path(address.removeprefix("ipc://")))
    if settings.mode == "relay":
        yield from _folder("relay.socket_dir", Path(settings.relay.socket_dir))
    for key, name in (("shutdown.spill_dir", settings.shutdown.spill_dir), ("quarantine.dir", settings.quarantine.dir)):
        if name is not None:
            yield from _folder(key, Path(name))
    if settings.security.secret_key_file is not None:
        yield from _key_file("security.secret_key_file", Path(settings.security.secret_key_file))


def _socket(key: str, path: Path) -> Iterator[str]:
    yield from _folder(key, path.parent)
    try:
        status = path.lstat()
    except OSError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        yield f'{key} = "ipc://{path}": something that is no socket lies there; remove it or use another path'


def _folder(key: str, folder: Path) -> Iterator[str]:
    """A folder that is there must be writable; one that is not must be one that can be made."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        yield f"{key}: {nearest} is no folder; use another path"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        what = "cannot be written to" if nearest == folder else f"cannot be made: {nearest} cannot be written to"
        yield f"{key}: {folder} {what}; change its permissions or use another path"


def _key_file(key: str, path: Path) -> Iterator[str]:
    try:
        status = path.stat()
    except OSError as error:
        yield f'{key} = "{path}": {error.strerror}; make the key with `sidecar keygen`'
        return
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield f'{key} = "{path}": others can read it; chmod 600 {path}'
