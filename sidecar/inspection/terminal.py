"""Pages on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from sidecar.inspection.chart import charts, segments, strip
from sidecar.inspection.dump import dump
from sidecar.inspection.page import Page
from sidecar.inspection.values import Node, size
from sidecar.inspection.verdict import Verdict
from sidecar.recording import Record
from sidecar.replay.decode import payload_of

_STYLES: Final = {
    "forward": ("✓", "green"),
    "sound": ("✓", "green"),
    "refuse": ("✗", "red"),
    "unsound": ("✗", "red"),
    "drop": ("✗", "red"),
}
_INDENT: Final = 2
_MARGIN: Final = 14


def print_page(
    console: Console,
    number: int,
    record: Record,
    page: Page,
    verdict: Verdict | None,
    *,
    positions: bool = False,
    everything: bool = False,
) -> None:
    """Print one message. `positions` adds the charts, `everything` the fields at their defaults."""
    console.print(Rule(Text(f"{number}  {_source(record)}", "bold"), align="left", style="dim"))
    console.print(_headline(record, page))
    console.print(_indent(Group(*_body(page, console.width, everything)), _INDENT))
    if verdict is not None:
        console.print()
        print_verdict(console, page, verdict, positions=positions)
    else:
        console.print()


def print_verdict(console: Console, page: Page, verdict: Verdict | None, *, positions: bool = False) -> None:
    """Print what the sidecar would do, alone. `positions` adds the charts."""
    if verdict is None:
        return
    console.print(_verdict(verdict))
    if positions and verdict.positions is not None:
        console.print(_indent(Group(*_positions(page, verdict, console.width)), _INDENT))
    console.print()


def print_bytes(console: Console, record: Record, page: Page) -> None:
    """Print the payload byte by byte."""
    payload = payload_of(record.frames, record.framing)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False, pad_edge=False)
    table.add_column("byte", justify="right", style="dim", no_wrap=True)
    table.add_column("", justify="right", style="dim", no_wrap=True)
    table.add_column("hex", no_wrap=True, style="cyan")
    table.add_column("field", overflow="fold")
    table.add_column("says", overflow="fold")
    for row in dump(payload, page.fields):
        name = Text("  " * row.depth + _printable(row.name))
        table.add_row(str(row.start), f"+{row.nbytes}", row.data, name, Text(row.text))
    console.print(table)
    console.print()


def print_rules(console: Console, what: str) -> None:
    """Print whose rules the verdicts below come from."""
    console.print(Text(what, "dim"), end="\n\n")


def print_line(console: Console, number: int, record: Record, page: Page, verdict: Verdict | None) -> None:
    """Print one message as one line."""
    text = Text(f"{number:>6}  {record.direction.value:<7}  {page.nbytes:>11,}  ", "dim")
    if verdict is not None:
        mark, style = _STYLES[verdict.action]
        text.append(f"{mark} {verdict.reason or verdict.action:<22}", style)
    else:
        text.append(" " * 24)
    text.append(f"{page.title:<17}  ")
    text.append(_rids(page, 1) or _source(record), "dim")
    console.print(text, no_wrap=True, overflow="ellipsis")


def _indent(what: RenderableType, by: int) -> Padding:
    return Padding(what, (0, 0, 0, by), expand=False)


def _source(record: Record) -> str:
    source = record.metadata.get("source") or record.metadata.get("title") or record.metadata.get("note")
    return _printable(str(source)) if source else ""


def _headline(record: Record, page: Page) -> Text:
    text = Text()
    text.append(page.title, "bold")
    if page.rids:
        text.append(f"  {_rids(page, 3)}", "cyan")
    facts = [record.direction.value, f"{page.framing.value} framing"]
    if record.wall_ns:
        seen = datetime.fromtimestamp(record.wall_ns / 1e9, UTC)
        facts.append(seen.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC"))
    facts.append(", ".join(f"{role} {size(nbytes)}" for role, nbytes in page.frames[:6]) or "no frames")
    if len(page.frames) > 6:
        facts.append(f"and {len(page.frames) - 6} more frames, {size(page.nbytes)} in all")
    text.append("\n" + "; ".join(facts), "dim")
    return text


def _rids(page: Page, limit: int) -> str:
    shown = ", ".join(_printable(rid if len(rid) <= 80 else rid[:80] + "…") for rid in page.rids[:limit])
    return shown + (f" and {len(page.rids) - limit} more" if len(page.rids) > limit else "")


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]


def _body(page: Page, width: int, everything: bool) -> Iterator[RenderableType]:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False, pad_edge=False)
    table.add_column("field", no_wrap=True)
    table.add_column("bytes", justify="right", style="dim", no_wrap=True)
    table.add_column("value", overflow="fold")
    for row in _rows(page.fields, 0, everything):
        table.add_row(*row)
    hidden = 0 if everything else sum(node.default for node in page.fields)
    if page.fields:
        yield table
    if hidden:
        yield Text(f"{hidden} fields are nil or at their defaults (--all shows them)", "dim")
    if page.prompt and page.spans:
        yield Text()
        yield from _prompt(page, width)
    for problem in page.problems:
        yield Text.assemble(("problem  ", "red"), problem)
    for note in page.notes:
        yield Text.assemble(("note  ", "yellow"), note)


def _rows(nodes: Sequence[Node], depth: int, everything: bool) -> Iterator[tuple[Text, str, Text]]:
    for node in nodes:
        if node.default and not everything:
            continue
        place = f"{node.index:>2} " if node.index is not None else ""
        name = Text.assemble("  " * depth, (place, "dim"), _printable(node.name))
        shown = "" if node.children and node.text.endswith(" fields") else node.text
        yield name, f"{node.nbytes:,}", Text(shown, "red" if "not a tensor" in node.text else "")
        if everything or not node.folded:
            yield from _rows(node.children, depth + 1, everything)


def _prompt(page: Page, width: int) -> Iterator[RenderableType]:
    assert page.prompt is not None
    yield Text.assemble(
        (f"prompt of {page.prompt}  ", "dim"),
        strip(page.prompt, page.spans, max(width - _INDENT - _MARGIN - 6, 16)),
    )
    for span in page.spans[:16]:
        wrong = span.content.startswith("not ")
        yield Text.assemble(
            (f"  item {span.item}  ", "dim"),
            f"{span.modality} at [{span.start}, {span.end}]: ",
            (span.content, "red" if wrong else ""),
        )
    if len(page.spans) > 16:
        yield Text(f"  and {len(page.spans) - 16} more spans", "dim")


def _verdict(verdict: Verdict) -> RenderableType:
    mark, style = _STYLES[verdict.action]
    judge = "scheduler" if verdict.action in ("sound", "unsound") else "sidecar"
    lines: list[RenderableType] = [
        Text.assemble(
            (f"{judge}  {mark} ", f"bold {style}"),
            (f"{verdict.reason}  " if verdict.reason else "", f"bold {style}"),
            (verdict.summary, style),
        )
    ]
    lines += [_indent(Text(why, style), 4) for why in verdict.why]
    lines += [_indent(Text(fact), 4) for fact in verdict.facts]
    if verdict.changes:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
        table.add_column(no_wrap=True, style="dim")
        table.add_column(overflow="fold")
        for change in verdict.changes:
            arrow = Text.assemble((change.before, "red"), ("  →  " if change.before else "", "dim"))
            table.add_row(change.path, arrow + Text(change.after or "gone", "green"))
        lines.append(_indent(table, 4))
    return Group(*lines)


def _positions(page: Page, verdict: Verdict, width: int) -> Iterator[RenderableType]:
    positions = verdict.positions
    assert positions is not None
    n = positions.shape[1]
    yield Text()
    yield Text(f"M-RoPE positions of {n} tokens", "bold")
    room = max(width - _INDENT - _MARGIN - 2, 16)
    for chart, color in zip(charts(positions, room), ("cyan", "magenta", "yellow", "green"), strict=False):
        for row, line in enumerate(chart.rows):
            edge = f"{chart.high:g}" if row == 0 else f"{chart.low:g}" if row == len(chart.rows) - 1 else ""
            label = chart.name if row == len(chart.rows) // 2 else ""
            yield Text.assemble((f"{label:>2} {edge:>{_MARGIN - 6}} ", "dim"), ("│", "dim"), (line, color))
    if page.prompt == n:
        yield Text.assemble((f"{'prompt':>{_MARGIN - 3}} ", "dim"), ("│", "dim"), strip(n, page.spans, room))
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for name in ("tokens", "", *(chart.name for chart in charts(positions, 1))):
        table.add_column(name, justify="right" if name == "tokens" else "left")
    rows = list(segments(positions, page.spans))
    for start, end, what, ranges in rows[:24]:
        table.add_row(f"{start}..{end}" if end > start else str(start), what, *ranges)
    yield table
    if len(rows) > 24:
        yield Text(f"and {len(rows) - 24} more stretches", "dim")
    if verdict.delta is not None:
        yield Text(f"delta {verdict.delta}: the first decoded token is at position {n + verdict.delta}", "dim")
