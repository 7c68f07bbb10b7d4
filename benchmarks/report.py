"""What a benchmark hands back, and how it is shown: tables on the terminal, Markdown and JSON in files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sidecar.cli.console import open_console


@dataclass
class Table:
    """Rows of text under a title; the first column is left-aligned."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    note: str = ""

    def markdown(self) -> str:
        """The table as Markdown, its title in bold and its note below."""
        lines = [f"**{self.title}**", "", _line(self.columns)]
        lines.append(_line(["---", *("---:" for _ in self.columns[1:])]))
        lines += map(_line, self.rows)
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Goal:
    """What was wanted and what was measured."""

    what: str
    wanted: str
    measured: str
    met: bool


def at_least(what: str, bound: float, measured: float, unit: str = "x") -> Goal:
    """A goal that is met from a bound upwards."""
    return Goal(what, f">= {bound:g}{unit}", f"{measured:.2f}{unit}", measured >= bound)


def below(what: str, bound: float, measured: float, unit: str) -> Goal:
    """A goal that is met below a bound."""
    return Goal(what, f"< {bound:g} {unit}", f"{measured:.2f} {unit}", measured < bound)


@dataclass
class Section:
    """One benchmark's results. `data` are the numbers, for programs."""

    name: str
    tables: list[Table] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    remark: str = ""


def show(section: Section) -> None:
    """Print a section's tables."""
    console = open_console()
    if section.remark:
        console.print(section.remark, markup=False, soft_wrap=True)
    for table in section.tables:
        _print(console, table)


def show_goals(goals: Sequence[Goal]) -> None:
    """Print which goals are met, if there are any."""
    if not goals:
        return
    rows = [(goal.what, goal.wanted, goal.measured, "✓" if goal.met else "✗") for goal in goals]
    _print(open_console(), Table("Goals", ("goal", "wanted", "measured", "met"), list(rows)))


def _print(console: Any, table: Table) -> None:
    from rich import box
    from rich.table import Table as RichTable

    shown = RichTable(title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1))
    for k, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if k else "left", no_wrap=True)
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown, end="" if table.note else "\n")
    if table.note:
        console.print(f"  {table.note}\n", markup=False, soft_wrap=True)


def write(section: Section, facts: dict[str, str], folder: Path) -> None:
    """Write `NAME.json` and `NAME.md` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    goals = [asdict(goal) for goal in section.goals]
    document = {"machine": facts, "goals": goals, "remark": section.remark, "results": section.data}
    (folder / f"{section.name}.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / f"{section.name}.md").write_text("\n".join(table.markdown() for table in section.tables))


def us(seconds: float) -> str:
    """Seconds as text in microseconds, three digits."""
    value = seconds * 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ms(seconds: float) -> str:
    """Seconds as text in milliseconds, three digits."""
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"
