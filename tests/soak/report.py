"""What the scenarios report: numbers with bounds, and whether they hold."""

from __future__ import annotations

from typing import Any


class Report:
    """Prints as it goes; `failed` names what did not hold."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self._title = ""

    def title(self, text: str) -> None:
        """A new scenario begins."""
        self._title = text
        print(f"\n{text}", flush=True)

    def number(self, name: str, value: Any, unit: str = "") -> None:
        """A number without a bound."""
        print(f"    {name:<44} {_show(value)} {unit}".rstrip(), flush=True)

    def check(self, name: str, value: Any, holds: bool, bound: str = "") -> None:
        """A number that must hold."""
        mark = "ok" if holds else "FAILED"
        print(f"    {name:<44} {_show(value):<14} {bound:<26} {mark}".rstrip(), flush=True)
        if not holds:
            self.failed.append(f"{self._title}: {name} is {_show(value)} ({bound})")


def _show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
