"""Tables of a run in a document."""

from __future__ import annotations

from pathlib import Path

from benchmarks.document import fill, tables
from benchmarks.report import Section, Table, write
from tests.docs import ROOT

MARKDOWN = (
    Table("First", ("a", "b"), [("x", "1")], note="a note").markdown()
    + "\n"
    + Table("Second", ("c",), [("y",)]).markdown()
)


def test_tables_are_told_apart_and_keep_their_notes() -> None:
    assert tables(MARKDOWN) == ["| a | b |\n| --- | ---: |\n| x | 1 |\n\na note", "| c |\n| --- |\n| y |"]


def test_a_block_is_written_anew_and_nothing_else(tmp_path: Path) -> None:
    write(Section("one", [Table("T", ("a",), [("new",)])]), {}, tmp_path)
    text = "before\n<!-- benchmark: one 1 -->\nold\n<!-- end -->\nafter <!-- benchmark: two 1 -->\nkept\n<!-- end -->\n"
    expected = "before\n<!-- benchmark: one 1 -->\n\n| a |\n| --- |\n| new |\n\n<!-- end -->\nafter "
    assert fill(text, tmp_path).startswith(expected)
    assert "two 1 -->\nkept\n<!-- end -->" in fill(text, tmp_path)
    assert fill(fill(text, tmp_path), tmp_path) == fill(text, tmp_path)


def test_the_documents_have_blocks() -> None:
    for name in ("performance.md", "scaling.md"):
        assert "<!-- benchmark:" in (ROOT / "docs" / name).read_text()
