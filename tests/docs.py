"""The documentation's examples: fenced blocks that a command has printed, under a comment that names it.

`python -m tests.docs` writes them anew.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from sidecar.cli import main

ROOT = Path(__file__).parent.parent
COLUMNS = "110"

_EXAMPLE = re.compile(r"(<!-- sidecar (.*?) -->\n```(?:text)?\n)(.*?)(```\n)", re.DOTALL)


def documents() -> list[Path]:
    """All Markdown files of the project."""
    return [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def examples(document: Path) -> Iterator[tuple[str, str]]:
    """(command line, what the document says it prints) of every example."""
    for match in _EXAMPLE.finditer(document.read_text()):
        yield match[2], match[3]


def output_of(command: str) -> str:
    """What a `sidecar` command prints, from the project's folder."""
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": COLUMNS}),
        contextlib.chdir(ROOT),
        contextlib.redirect_stdout(printed),
    ):
        main(shlex.split(command))
    return printed.getvalue().strip("\n") + "\n"


def write(document: Path) -> None:
    """Write a document's examples anew."""
    text = document.read_text()
    new = _EXAMPLE.sub(lambda match: f"{match[1]}{output_of(match[2])}{match[4]}", text)
    if new != text:
        document.write_text(new)


if __name__ == "__main__":
    for path in documents():
        write(path)
