"""Writes the tables of the last run into the documentation: `python -m benchmarks.document [FOLDER]`.

A table stands below a comment `<!-- benchmark: NAME N -->`, N counting the tables of a section from 1, and
ends with `<!-- end -->`. `<!-- benchmark: machine -->` is what the numbers were taken on.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from benchmarks.lines import ROOT

_BLOCK = re.compile(r"(<!-- benchmark: (\w+)(?: (\d+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def tables(text: str) -> list[str]:
    """The tables of a section's Markdown, titles left out."""
    return [part.partition("\n\n")[2].strip() for part in re.split(r"^\*\*", text, flags=re.MULTILINE)[1:]]


def machine(folder: Path) -> str:
    """What the numbers were taken on, in a sentence."""
    facts = json.loads((folder / "throughput.json").read_text())["machine"]
    packages = ", ".join(f"{name} {facts[name]}" for name in ("pyzmq", "msgpack", "numpy", "uvloop", "blake3"))
    return (
        f"{facts['cpu']}, {facts['cores']} cores; Linux {facts['kernel']}, Python {facts['python']}, "
        f"libzmq {facts['libzmq']}, {packages}; {facts['time'][:10]}."
    )


def fill(text: str, folder: Path) -> str:
    """The document with its blocks written anew. A section that was not measured keeps what stands there."""

    def block(match: re.Match[str]) -> str:
        opening, name, number, old, closing = match.groups()
        if name == "machine":
            return f"{opening}{machine(folder)}\n{closing}"
        source = folder / f"{name}.md"
        if not source.exists():
            return f"{opening}{old}{closing}"
        return f"{opening}\n{tables(source.read_text())[int(number) - 1]}\n\n{closing}"

    return _BLOCK.sub(block, text)


def main() -> None:
    """Fill both documents."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "out" / "benchmarks"
    for name in ("performance.md", "scaling.md"):
        path = ROOT / "docs" / name
        path.write_text(fill(path.read_text(), folder))


if __name__ == "__main__":
    main()
