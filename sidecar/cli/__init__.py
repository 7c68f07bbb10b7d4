"""The `sidecar` command: one module a command, imported only when that command is used.

Exit codes: 0 fine, 1 a difference or a failed check, 2 a threshold missed, 3 usage or configuration,
4 transport, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from sidecar import __version__
from sidecar.errors import SidecarError

EXIT_USAGE: Final = 3
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("sidecar.cli.serve", "run the sidecar"),
    "demo": ("sidecar.cli.demo", "send real gateway requests through real sockets and show what was done"),
    "check-config": ("sidecar.cli.check_config", "check a configuration without opening a socket"),
    "print-config": ("sidecar.cli.print_config", "print the configuration in effect"),
    "sink": ("sidecar.cli.sink", "stand in for a scheduler: receive, check and optionally record"),
    "record": ("sidecar.cli.record", "write what arrives at a socket, a tap or a folder to a recording"),
    "replay": ("sidecar.cli.replay", "send a recording to an address and measure"),
    "inspect": ("sidecar.cli.inspect", "show what a recording holds"),
    "diff": ("sidecar.cli.diff", "compare two recordings, request by request"),
    "synth": ("sidecar.cli.synth", "make a recording for a model without any real data"),
    "report": ("sidecar.cli.report", "percentiles, histograms and charts of a replay"),
    "keygen": ("sidecar.cli.keygen", "make CURVE keys"),
}
"""Command name to its module and its line in the help. A module offers `add_parser(subparsers)` and
`run(args) -> int`."""


class ArgumentParser(argparse.ArgumentParser):
    """argparse with this project's exit code for a wrong command line."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def build_parser(command: str | None) -> ArgumentParser:
    """The parser of the command line; only `command`'s module is imported, None imports none."""
    parser = ArgumentParser(
        prog="sidecar",
        description="The input processor of an inference engine as a service: materializes multimodal "
        "requests between a frontend and a scheduler, and refuses what would end the engine.",
    )
    parser.add_argument("--version", action="version", version=f"sidecar {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        if name == command:
            importlib.import_module(module).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary, add_help=False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Messages about errors go to standard error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    try:
        args = build_parser(command).parse_args(arguments)
        code: int = importlib.import_module(COMMANDS[args.command][0]).run(args)
        sys.stdout.flush()
    except SystemExit as stop:  # argparse, after --help or a usage error
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    except SidecarError as error:
        print(f"sidecar: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output has left; the interpreter must not fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        print(f"sidecar: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code
