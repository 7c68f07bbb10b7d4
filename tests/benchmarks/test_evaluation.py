"""Ratios, medians and goals from given measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import engine, throughput
from benchmarks.latency import summarize
from benchmarks.report import Section


def row(name: str, engine_s: float, sidecar_s: float) -> dict[str, object]:
    return {"name": name, "engine_s": engine_s, "sidecar_s": sidecar_s}


def test_the_engine_comparison_counts_media_and_text_apart() -> None:
    section = Section("engine")
    section.data = {
        "engine": "tokenspeed 0",
        "requests": [
            row("text, 1k, strict", 1.0, 2.0),
            row("text, 1k, trusted", 1.0, 0.1),
            row("image", 8.0, 1.0),
            row("video", 1.0, 2.0),
        ],
        "hash": row("hash", 9.0, 1.0),
    }
    engine.evaluate(section)
    assert [(goal.measured, goal.met) for goal in section.goals] == [
        ("2.00x", False),  # the geometric mean of 8 and 1/2
        ("0.50x", False),
        ("0.50x", False),
        ("10.00x", True),
        ("9.00x", True),
    ]
    assert "video" in section.goals[1].what


def test_without_the_engine_the_comparison_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(engine.HOME_VARIABLE, str(tmp_path))
    section = engine.benchmark(quick=True)
    assert not section.goals
    assert not section.tables
    assert "scripts/interop-venvs.sh" in section.remark
    assert (engine.ROOT / "scripts" / "interop-venvs.sh").exists()


def test_added_latency_is_taken_run_by_run() -> None:
    runs = [
        [[1.0, 10.0], [2.0, 11.0]],
        [[1.0, 90.0], [3.0, 94.0]],
        [[1.0, 20.0], [4.0, 22.0]],
    ]
    assert summarize(runs) == {"direct": [1.0, 20.0], "line": [3.0, 22.0], "added": [2.0, 2.0]}


def test_no_rid_is_given_out_twice() -> None:
    first = throughput.next_rids(10)
    assert throughput.next_rids(1) == first + 10
