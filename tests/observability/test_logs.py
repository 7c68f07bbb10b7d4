"""Log lines: their fields, what hostile text can do to them, and how often they may come."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import Reason
from sidecar.observability.logs import (
    MAX_FIELD,
    MAX_MESSAGE,
    JsonFormatter,
    RateLimitedLogger,
    TextFormatter,
    setup,
)


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"msg": message, "levelname": "WARNING", "name": "sidecar.service", **extra})
    made.created = 1_767_225_600.25
    return made


@pytest.fixture
def logging_untouched() -> Iterator[None]:
    """Puts the process's logging back as it was."""
    root, package = logging.getLogger(), logging.getLogger("sidecar")
    before = root.handlers[:], root.level, package.level
    yield
    root.handlers[:], root.level, package.level = before


def test_text_is_time_level_message_and_fields_on_one_line():
    line = TextFormatter().format(record("request refused", rid="ab 12", reason=Reason.GRID_MISMATCH, suppressed=3))
    assert line == ('2026-01-01T00:00:00.250Z WARNING request refused rid="ab 12" reason=grid_mismatch suppressed=3')


def test_json_is_one_object_with_the_same_fields():
    line = JsonFormatter().format(record("request refused", rid="ab 12", reason=Reason.GRID_MISMATCH))
    assert json.loads(line) == {
        "time": "2026-01-01T00:00:00.250Z",
        "level": "warning",
        "logger": "sidecar.service",
        "message": "request refused",
        "rid": "ab 12",
        "reason": "grid_mismatch",
    }


@given(st.text(), st.text())
def test_no_text_of_a_peer_makes_a_second_line_or_reaches_the_terminal_raw(message, rid):
    line = TextFormatter().format(record(message.replace("%", ""), rid=rid))
    assert line.isprintable()
    parsed = json.loads(JsonFormatter().format(record(message.replace("%", ""), rid=rid[:MAX_FIELD])))
    assert parsed["rid"] == rid[:MAX_FIELD]


def test_a_rid_of_a_megabyte_is_cut_in_both_forms():
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record("m" * 10_000, rid="r" * 2**20))
        assert "(1048576 characters)" in line
        assert "(10000 characters)" in line
        assert len(line) < MAX_FIELD + MAX_MESSAGE + 300


def test_a_traceback_follows_the_line_and_is_a_field_in_json():
    try:
        raise ValueError("broken")
    except ValueError as error:
        failed = record("failed")
        failed.exc_info = (type(error), error, error.__traceback__)
    text = TextFormatter().format(failed)
    assert text.startswith("2026-01-01T00:00:00.250Z WARNING failed\nTraceback")
    assert json.loads(JsonFormatter().format(failed))["traceback"].endswith("ValueError: broken")


@pytest.mark.usefixtures("logging_untouched")
def test_the_level_counts_for_this_package_and_others_are_heard_from_warning_on():
    stream = io.StringIO()
    setup("debug", "json", stream)
    logging.getLogger("sidecar.transport").debug("ours")
    logging.getLogger("asyncio").info("theirs, chatty")
    logging.getLogger("asyncio").error("theirs, serious")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["ours", "theirs, serious"]


@pytest.mark.usefixtures("logging_untouched")
def test_setting_up_twice_says_nothing_twice():
    stream = io.StringIO()
    setup("info", "text", stream)
    setup("info", "text", stream)
    logging.getLogger("sidecar").info("once")
    assert len(re.findall("once", stream.getvalue())) == 1


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def limited(caplog) -> tuple[RateLimitedLogger, Clock]:
    caplog.set_level(logging.INFO)
    clock = Clock()
    return RateLimitedLogger(logging.getLogger("sidecar.test"), per_second=0.5, burst=3, clock=clock), clock


def test_a_flood_is_cut_to_its_burst_and_the_next_line_says_how_many_were_left_out(limited, caplog):
    log, clock = limited
    assert [log.warning("duplicate", "again", {"rid": str(i)}) for i in range(1000)] == [True] * 3 + [False] * 997
    clock.now += 2
    assert log.warning("duplicate", "again", {"rid": "x"})
    assert [getattr(entry, "suppressed", None) for entry in caplog.records] == [None, None, None, 997]
    assert log.suppressed == 997


def test_one_kind_does_not_silence_another(limited, caplog):
    log, _ = limited
    for _ in range(100):
        log.warning("duplicate", "a")
    assert log.info("unreadable", "b")
    assert [entry.getMessage() for entry in caplog.records] == ["a", "a", "a", "b"]


@given(st.lists(st.floats(min_value=0, max_value=5), max_size=60))
def test_no_pattern_of_arrival_exceeds_burst_and_rate(gaps):
    clock = Clock()
    log = RateLimitedLogger(logging.getLogger("sidecar.silent"), per_second=0.5, burst=3, clock=clock)
    logged = 0
    for gap in gaps:
        clock.now += gap
        logged += log.info("kind", "text")
        assert logged <= 3 + 0.5 * (clock.now - 100.0) + 1e-6
    assert logged + log.suppressed == len(gaps)


def test_a_message_with_percent_signs_is_no_format_string(limited, caplog):
    log, _ = limited
    log.warning("kind", "100% of %s and %d")
    assert caplog.records[0].getMessage() == "100% of %s and %d"


def test_time_is_monotonic_by_default():
    log = RateLimitedLogger(logging.getLogger("sidecar.silent"))
    assert log._clock is time.monotonic
