"""What a replay measured, in memory and in a file that `sidecar report` reads.

The file is JSON lines: a header (`{"format": "sidecar-results", "version": 1, ...}` with the facts of the
run), then an array a request: due, sent, first, done (ns from the start of the run, null where it was not
seen), bytes, modality, outcome, rid.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import UsageError
from sidecar.replay.workload import About

FORMAT: Final = "sidecar-results"
VERSION: Final = 1
UNSEEN: Final = -1
_MAX_LINE: Final = 1 << 20


@dataclass
class Results:
    """One entry a request, in the order of sending; times in ns from the start of the run, -1 unseen.

    `facts` describe the run: recording, target, rates, when it began, how many messages of what kind.
    `done` of a request that is observed nowhere stays unseen; then `sent` is all there is to measure.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    due: array[int] = field(default_factory=lambda: array("q"))
    sent: array[int] = field(default_factory=lambda: array("q"))
    first: array[int] = field(default_factory=lambda: array("q"))
    done: array[int] = field(default_factory=lambda: array("q"))
    about: list[About] = field(default_factory=list)
    outcome: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.due)

    def times(self, name: str) -> NDArray[np.int64]:
        """One of the times as int64 [n]."""
        return np.array(getattr(self, name), np.int64)

    def append(self, due: int, sent: int, about: About) -> None:
        """Add a request that has been sent."""
        self.extend([about], [due], [sent])

    def extend(self, about: Sequence[About], due: Sequence[int], sent: Sequence[int]) -> None:
        """Add requests that have been sent."""
        self.about.extend(about)
        self.due.extend(due)
        self.sent.extend(sent)
        unseen = _UNSEEN * len(about)
        self.first.extend(unseen)
        self.done.extend(unseen)
        self.outcome.extend(_SENT * len(about))

    def count_from(self, start: int) -> None:
        """Make times of a clock into times from the start of the run."""
        for times in (self.due, self.sent, self.first, self.done):
            values = np.frombuffer(times, np.int64)
            values[values >= 0] -= start


_UNSEEN: Final = array("q", [UNSEEN])
_SENT: Final = ["sent"]


def save(results: Results, path: str) -> None:
    """Write the file; `-` is standard output."""
    if path == "-":
        sys.stdout.writelines(_lines(results))
        return
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(_lines(results))


def _lines(results: Results) -> Iterator[str]:
    yield json.dumps({"format": FORMAT, "version": VERSION, **results.facts}) + "\n"
    rows = zip(
        results.due, results.sent, results.first, results.done, results.about, results.outcome, strict=True
    )  # fmt: skip
    for due, sent, *seen, about, outcome in rows:
        first, done = (None if time == UNSEEN else time for time in seen)
        yield json.dumps([due, sent, first, done, about.nbytes, about.modality, outcome, about.rid]) + "\n"


def load(path: str) -> Results:
    """Read the file; `-` is standard input. Raises `UsageError` that names the line."""
    if path == "-":
        return _parse(sys.stdin, "standard input")
    try:
        with open(path, encoding="utf-8") as file:
            return _parse(file, path)
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a results file of `sidecar replay` (not text)") from None


def _parse(lines: Iterable[str], name: str) -> Results:
    rows = iter(lines)
    facts = _json(next(rows, ""), name, 1)
    if not isinstance(facts, dict) or facts.pop("format", None) != FORMAT:
        raise UsageError(f"{name}: not a results file; make one with `sidecar replay --results FILE`")
    if (version := facts.pop("version", None)) != VERSION:
        raise UsageError(f"{name}: results version {version!r}; this program reads version {VERSION}")
    results = Results(facts)
    for number, line in enumerate(rows, 2):
        row = _json(line, name, number)
        if not _is_row(row):
            raise UsageError(
                f"{name}: line {number} is no request: [due, sent, first, done, bytes, modality, outcome, rid]"
            )
        due, sent, first, done, nbytes, modality, outcome, rid = row
        results.append(due, sent, About(nbytes, modality, rid))
        results.first[-1] = UNSEEN if first is None else first
        results.done[-1] = UNSEEN if done is None else done
        results.outcome[-1] = outcome
    return results


def _json(line: str, name: str, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError(f"{name}: line {number} is not JSON") from None


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 8:
        return False
    due, sent, first, done, nbytes, *texts = row
    times = [due, sent, nbytes, *(time for time in (first, done) if time is not None)]
    return all(type(time) is int and 0 <= time < 2**62 for time in times) and all(
        isinstance(text, str) for text in texts
    )
