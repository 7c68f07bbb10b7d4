"""The documentation says what is: its examples are what the commands print, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sidecar.cli import COMMANDS
from sidecar.settings import load
from tests.docs import ROOT, documents, examples, output_of

_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_COMMAND = re.compile(r"`(?:\.venv/bin/)?sidecar ([a-z][a-z-]*)")
_TARGET = re.compile(r"`make ([a-z-]+)`")

DOCUMENTS = documents()
NAMES = [str(document.relative_to(ROOT)) for document in DOCUMENTS]
EXAMPLES = [(name, *example) for name, path in zip(NAMES, DOCUMENTS, strict=True) for example in examples(path)]


@pytest.mark.parametrize(("name", "command", "printed"), EXAMPLES, ids=[f"{e[0]}: {e[1]}" for e in EXAMPLES])
def test_an_example_is_what_the_command_prints(name: str, command: str, printed: str) -> None:
    assert printed == output_of(command), "run `python -m tests.docs`"


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_links_lead_somewhere(document: Path) -> None:
    targets = [target for target in _LINK.findall(document.read_text()) if "://" not in target]
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_commands_and_make_targets_exist(document: Path) -> None:
    text = document.read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert set(_COMMAND.findall(text)) <= set(COMMANDS)
    assert [target for target in set(_TARGET.findall(text)) if f"\n{target}:" not in makefile] == []


def test_every_default_in_the_readme_is_the_default() -> None:
    loaded = load(None, {}, [])
    rows = re.findall(r"^\| `([a-z_]+(?:\.[a-z_]+)?)` \| `([^`]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) > 10
    from sidecar.settings import describe

    values = {row.key: row.value for row in describe(loaded)}
    assert [(key, text, values.get(key)) for key, text in rows if values.get(key) != text] == []
