"""`sidecar demo`: recorded gateway requests through real sockets, and a table of what was done."""

from __future__ import annotations

import argparse
import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sidecar.demo.cases import Case, Finding
    from sidecar.demo.stage import Stage

_EPILOG = """A stand-in scheduler (`sidecar sink`) and a sidecar (`sidecar serve`) are started for each model, as
processes of their own, on ipc sockets in a private folder. Recorded requests of a real gateway go in on
one side; what arrives on the other is compared with what the gateway itself computes.

Exit code 0 only if everything was as it must be."""

_FOLDER_BYTES: Final = 70
"""Longest folder name that leaves room for the sockets' names in a path of 107 bytes."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's arguments."""
    subparsers.add_parser(
        "demo",
        help="real gateway requests through real sockets",
        description="Send recorded gateway requests through real sockets and show what was done with each.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from importlib.resources import as_file

    from sidecar.cli.console import open_console
    from sidecar.demo.cases import load_cases, model_folder
    from sidecar.demo.stage import Stage
    from sidecar.errors import TransportError

    console = open_console()
    cases = load_cases()
    started = time.monotonic()
    faults: list[str] = []
    with _Signals() as signals, _folder() as folder, contextlib.ExitStack() as stack:
        stages: dict[str, Stage] = {}
        try:
            names = list(dict.fromkeys(case.model for case in cases))
            with console.status(f"starting {len(names)} sidecars and as many stand-in schedulers"):
                for name in names:
                    path = stack.enter_context(as_file(model_folder(name)))
                    with signals.hold():
                        stages[name] = stack.enter_context(Stage(path, folder / name, cases[0].record.framing))
                for stage in stages.values():
                    stage.wait_ready()
            table, accounts = _table(), []
            for name, stage in stages.items():
                mine = [case for case in cases if case.model == name]
                rows = _play(stage, mine)
                _add_rows(table, name, rows)
                faults += [f"{name}, {case.title}: {fault}" for case, found, _ in rows for fault in found.faults]
                account, wrong = _account(stage, mine)
                accounts.append((name, account))
                faults += [f"{name}: {fault}" for fault in wrong]
        except TransportError as error:
            console.print(f"sidecar: {error}", style="red", markup=False)
            _print_logs(console, stages)
            return error.exit_code
        console.print(table)
        _print_accounts(console, accounts)
        if faults:
            _print_logs(console, stages)
    for fault in faults:
        console.print(f"✗ {fault}", style="red", markup=False)
    if not faults:
        seconds = time.monotonic() - started
        console.print(f"✓ everything was as it must be ({len(cases)} messages, {seconds:.1f} s)", style="green")
    return 1 if faults else 0


def _play(stage: Stage, cases: Sequence[Case]) -> list[tuple[Case, Finding, float | None]]:
    """Send each request, wait for what comes out, and judge it; the time in between, in seconds."""
    from sidecar.demo.cases import judge

    rows: list[tuple[Case, Finding, float | None]] = []
    for case in cases:
        sent = stage.send(case.record)
        if not case.arrives:
            rows.append((case, judge(case, None), None))
            continue
        arrived = stage.receive()
        rows.append((case, judge(case, arrived), arrived.mono_ns / 1e9 - sent))
    return rows


def _account(stage: Stage, cases: Sequence[Case]) -> tuple[str, list[str]]:
    """The accounting identity of a sidecar that has been sent these requests, and what is wrong with it."""
    from sidecar.demo.cases import expected_outcomes, identity, summary

    wanted = expected_outcomes(cases)

    def settled(metrics: dict[str, float]) -> bool:
        received, outcomes, inflight = identity(metrics)
        return received == sum(outcomes.values()) == sum(wanted.values()) and not inflight

    received, outcomes, inflight = identity(stage.metrics(settled))
    faults = []
    if received != sum(outcomes.values()) + inflight:
        faults.append(f"accounting: {received} received, but {summary(outcomes)} + {inflight} in flight")
    if outcomes != wanted:
        faults.append(f"accounting: {summary(outcomes)}; expected {summary(wanted)}")
    faults += stage.stop()
    arrived, expected = stage.arrived, sum(case.arrives for case in cases)
    if arrived != expected:
        faults.append(f"{arrived} messages reached the scheduler; expected {expected}")
    return f"{received} received = {summary(outcomes)} + {inflight} in flight", faults


def _table() -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    table.add_column("request", max_width=27)
    table.add_column("what came in", max_width=34)
    table.add_column("what was done")
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    return table


def _add_rows(table: Table, model: str, rows: Sequence[tuple[Case, Finding, float | None]]) -> None:
    from rich.text import Text

    table.add_section()
    table.add_row(Text(model, "bold"))
    for case, found, seconds in rows:
        refused = case.expect.startswith(("refused", "dropped"))
        table.add_row(
            Text(f" {case.title}"),
            Text(found.came, "dim"),
            Text("\n".join(found.done), "yellow" if refused else ""),
            f"{seconds * 1000:.1f}" if seconds is not None else "",
            Text("✗", "red") if found.faults else Text("✓", "green"),
        )


def _print_accounts(console: Console, accounts: Sequence[tuple[str, str]]) -> None:
    from rich.text import Text

    console.print(Text("\naccounting, from each sidecar's /metrics", "dim"))
    width = max(len(name) for name, _ in accounts)
    for name, account in accounts:
        console.print(Text(f" {name:<{width}}  {account}"))
    console.print()


def _print_logs(console: Console, stages: dict[str, Stage]) -> None:
    for name, stage in stages.items():
        for child in (stage.sidecar, stage.sink):
            if child.said:
                console.print(f"— standard error of the {child.name} of {name}:", style="dim", markup=False)
                console.print(child.said, markup=False, highlight=False)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A private folder that is gone afterwards; below /tmp if the usual place is too deep for a socket."""
    with tempfile.TemporaryDirectory(prefix="sidecar-demo-") as usual:
        if len(usual.encode()) <= _FOLDER_BYTES:
            yield Path(usual)
            return
    with tempfile.TemporaryDirectory(prefix="sidecar-demo-", dir="/tmp") as short:
        yield Path(short)


class _Signals:
    """While entered, SIGTERM and SIGINT unwind like exceptions, so that every context closes.

    `hold` puts that off: a process that has just been started must first be somebody's to end.
    """

    def __init__(self) -> None:
        self._held = False
        self._pending = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Until the end of the block a signal waits."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._pending:
            self._leave(self._pending, None)

    def _leave(self, number: int, frame: FrameType | None) -> None:
        if self._held:
            self._pending = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)
