"""The terminal of the commands that print for people."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH: Final = 120
"""Columns where the output is no terminal and COLUMNS is not set."""


class Trimmed(io.TextIOBase):
    """A text file that writes no blanks at the ends of lines: a table pads its last column."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write what may be many lines."""
        return self._file.write("\n".join(line.rstrip(" ") for line in text.split("\n")))

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()


def open_console() -> Console:
    """The console of standard output, colored and as wide as the terminal if it is one."""
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an encoding that lacks block characters is no reason to fail
    if sys.stdout.isatty():
        return Console(highlight=False)
    width = None if "COLUMNS" in os.environ else _WIDTH
    return Console(file=cast(TextIO, Trimmed(sys.stdout)), width=width, highlight=False)
