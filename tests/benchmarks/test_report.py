"""Goals, tables and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.report import Section, Table, at_least, below, ms, us, write


@pytest.mark.parametrize(("measured", "met"), [(3.99, False), (4.0, True), (5.0, True)])
def test_a_goal_of_at_least(measured: float, met: bool) -> None:
    goal = at_least("speed", 4, measured)
    assert (goal.wanted, goal.met) == (">= 4x", met)


@pytest.mark.parametrize(("measured", "met"), [(99.9, True), (100.0, False)])
def test_a_goal_of_below(measured: float, met: bool) -> None:
    assert below("memory", 100, measured, "MB").met is met


def test_times_have_three_digits() -> None:
    assert [us(seconds) for seconds in (1.234e-6, 12.34e-6, 1234.5e-6)] == ["1.23", "12.3", "1,234"]
    assert [ms(seconds) for seconds in (1.2345e-3, 12.34e-3, 1.2345)] == ["1.234", "12.3", "1,234"]


def test_a_section_is_written_as_json_and_as_markdown(tmp_path: Path) -> None:
    table = Table("Title", ("what", "ms"), [("one", "1.0")], note="a note")
    section = Section("name", [table], [at_least("a", 1, 2)], {"one": 0.001})
    write(section, {"cpu": "x"}, tmp_path / "new")
    document = json.loads((tmp_path / "new" / "name.json").read_text())
    assert document["results"] == {"one": 0.001}
    assert document["goals"] == [{"what": "a", "wanted": ">= 1x", "measured": "2.00x", "met": True}]
    assert (tmp_path / "new" / "name.md").read_text() == (
        "**Title**\n\n| what | ms |\n| --- | ---: |\n| one | 1.0 |\n\na note\n"
    )
