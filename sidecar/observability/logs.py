"""Log lines for people and for machines, and a limit on those that hostile input can cause.

Fields such as the rid and the reason travel as `extra` of the standard logging call. No line holds
prompt content: callers log what `Rejection.message` says, which never does, and the formatters
escape control characters and cut what a peer chose the length of.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TextIO

LOGGER: Final = "sidecar"
"""The logger above all loggers of the package."""

MAX_MESSAGE: Final = 2000
MAX_FIELD: Final = 200
"""Characters shown of a field: a rid may be a megabyte."""

Format = Literal["text", "json"]
Clock = Callable[[], float]

_RESERVED: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_BARE: Final = re.compile(r"[A-Za-z0-9_.:/+-]+")


def setup(level: str, style: Format, stream: TextIO | None = None) -> None:
    """Send all logging of the process to one stream (standard error by default).

    `level` counts for this package; other packages show warnings and errors.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(LOGGER).setLevel(level.upper())


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a record was given as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _RESERVED}


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.250Z WARNING request refused rid=ab12 reason=grid_mismatch`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback below it where there is one."""
        words = [
            _timestamp(record.created),
            f"{record.levelname:<7}",
            _printable(_cut(record.getMessage(), MAX_MESSAGE)),
        ]
        words += [f"{name}={_text_value(value)}" for name, value in fields_of(record).items()]
        line = " ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: the fields, then `time`, `level`, `logger` and `message`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        entry = {name: _json_value(value) for name, value in fields_of(record).items()}
        entry["time"] = _timestamp(record.created)
        entry["level"] = record.levelname.lower()
        entry["logger"] = record.name
        entry["message"] = _cut(record.getMessage(), MAX_MESSAGE)
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class RateLimitedLogger:
    """A logger for events that a peer can cause at will: a token bucket for each kind of event.

    A kind may speak `burst` times at once and `per_second` times a second after that. A line that
    follows suppressed ones says how many (`suppressed`); `suppressed` here counts all of them.
    Kinds come from a closed set (reasons, names of events), never from the wire. A suppressed call
    costs about 0.3 us.
    """

    def __init__(
        self, logger: logging.Logger, *, per_second: float = 1.0, burst: int = 5, clock: Clock = time.monotonic
    ) -> None:
        self.suppressed = 0
        self._logger = logger
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def log(self, level: int, kind: str, message: str, fields: Mapping[str, Any] | None = None) -> bool:
        """Log an event of a kind unless its bucket is empty. Returns whether it was logged."""
        now = self._clock()
        bucket = self._buckets.get(kind)
        if bucket is None:
            bucket = self._buckets[kind] = _Bucket(self._burst, now)
        tokens = min(self._burst, bucket.tokens + (now - bucket.since) * self._per_second)
        bucket.since = now
        if tokens < 1.0:
            bucket.tokens = tokens
            bucket.suppressed += 1
            self.suppressed += 1
            return False
        bucket.tokens = tokens - 1.0
        extra = dict(fields or {})
        if bucket.suppressed:
            extra["suppressed"] = bucket.suppressed
            bucket.suppressed = 0
        # The message is no format string here: it may hold what a peer sent.
        self._logger.log(level, "%s", message, extra=extra)
        return True

    def warning(self, kind: str, message: str, fields: Mapping[str, Any] | None = None) -> bool:
        """`log` with the level of what an operator should look at."""
        return self.log(logging.WARNING, kind, message, fields)

    def info(self, kind: str, message: str, fields: Mapping[str, Any] | None = None) -> bool:
        """`log` with the level of what is in order."""
        return self.log(logging.INFO, kind, message, fields)


class _Bucket:
    __slots__ = ("since", "suppressed", "tokens")

    def __init__(self, tokens: float, since: float) -> None:
        self.tokens = tokens
        self.since = since
        self.suppressed = 0


def _timestamp(created: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(created))}.{int(created * 1000) % 1000:03d}Z"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _printable(text: str) -> str:
    """The text on one line, without what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _text_value(value: Any) -> str:
    text = _printable(_cut(str(value), MAX_FIELD))
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _json_value(value: Any) -> Any:
    if isinstance(value, str):
        return _cut(str(value), MAX_FIELD)
    return value
