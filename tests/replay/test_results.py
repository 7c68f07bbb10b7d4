"""What a run measured: saved, read again, summed up, judged and shown."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import UsageError
from sidecar.replay.page import as_html
from sidecar.replay.render import as_csv, as_json, as_text, bucket_labels, default_edges
from sidecar.replay.results import UNSEEN, Results, load, save
from sidecar.replay.summary import summarize
from sidecar.replay.thresholds import parse_threshold
from sidecar.replay.workload import About

MS = 1_000_000


def results(n: int = 100, *, observed: bool = True) -> Results:
    """Request i is due at i ms, handed over 10 us later, done i + 1 ms later; every tenth is never seen."""
    run = Results({"recording": "a.rec", "target": "ipc:///x", "messages": n, "sending_s": 0.1, "achieved_rate": 990.0})
    for i in range(n):
        run.append(i * MS, i * MS + 10_000, About(1000, ("text", "image")[i % 2], f"rid-{i}"))
        if observed and i % 10:
            run.first[i] = run.done[i] = i * MS + (i + 1) * MS
            run.outcome[i] = "rejected" if i == 5 else "forwarded"
    run.facts |= {"requested_rate": 1000.0, "unseen": 10 if observed else 0}
    return run


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.text(max_size=5)), max_size=20))
def test_saving_and_loading(rows: list[tuple[int, int, str]]) -> None:
    run = Results({"recording": "a.rec", "number": 7})
    for due, took, text in rows:
        run.append(due, due + took, About(took, text, text))
        run.done[-1] = due + took if took % 2 else UNSEEN
    path = Path("/dev/shm") / "sidecar-results-test"
    save(run, str(path))
    try:
        assert load(str(path)) == run
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "line 1 is not JSON"),
        ("[1]\n", "not a results file"),
        ('{"format": "other"}\n', "not a results file"),
        ('{"format": "sidecar-results", "version": 9}\n', "version 9"),
        ('{"format": "sidecar-results", "version": 1}\nnonsense\n', "line 2 is not JSON"),
        ('{"format": "sidecar-results", "version": 1}\n[1, 2, 3]\n', "line 2 is no request"),
        ('{"format": "sidecar-results", "version": 1}\n[1, 2, null, -3, 0, "", "", ""]\n', "line 2 is no request"),
        ('{"format": "sidecar-results", "version": 1}\n[1, 2, null, 1e400, 0, "", "", ""]\n', "line 2 is no request"),
        ("[" * 100_000, "line 1 is not JSON"),
    ],
)
def test_what_is_no_results_file(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(UsageError, match=what):
        load(str(tmp_path / "x"))


def test_a_binary_file_is_no_results_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x80\x04\x95\xff")
    with pytest.raises(UsageError, match="not text"):
        load(str(tmp_path / "x"))


def test_the_summary() -> None:
    summary = summarize(results())
    assert summary.headline == "done"
    assert set(summary.latency) == {"handover", "done"}
    assert summary.latency["handover"].count == 100
    done = summary.headline_latency
    assert (done.count, done.minimum, done.maximum) == (90, 2 * MS, 100 * MS)
    assert done.percentile(50) == pytest.approx(51 * MS, rel=0.02)
    assert {name: h.count for name, h in summary.by_modality.items()} == {"image": 50, "text": 40}
    assert {name: h.count for name, h in summary.by_outcome.items()} == {"forwarded": 89, "rejected": 1, "sent": 0}
    assert summary.nbytes == 100_000
    assert summary.series.sent.sum() == 100
    assert summary.series.done.sum() == 90
    assert summary.series.nbytes.sum() == 100_000


def test_a_run_that_nobody_watched_has_the_handover_only() -> None:
    summary = summarize(results(observed=False))
    assert summary.headline == "handover"
    assert set(summary.latency) == {"handover"}
    assert summary.headline_latency.maximum == 10_000


def test_one_request_and_none() -> None:
    for n in (0, 1):
        summary = summarize(results(n, observed=False))
        assert summary.requests == n
        assert as_text(summary)
        assert as_html(summary)
        json.loads(as_json(summary))


def test_text_shows_every_percentile_and_the_rates() -> None:
    text = as_text(summarize(results()))
    assert re.search(r"latency .* p50 .* p99 .* p99\.9 .* max", text)
    assert "990.0/s achieved, 1000/s requested (-1.00%)" in text
    assert re.search(r"unseen +10\n", text)
    assert re.search(r"\nimage +50 ", text)
    assert re.search(r"\nrejected +1 ", text)
    rows = re.findall(r"^ +\S.* (\d+) +\d+\.\d\d%", text, re.MULTILINE)
    assert sum(map(int, rows)) == 90


def test_chosen_buckets() -> None:
    summary = summarize(results())
    text = as_text(summary, [10.0 * MS, 50.0 * MS])
    assert [int(n) for n in re.findall(r"(\d+) +\d+\.\d\d%", text)] == summary.headline_latency.rebinned(
        [10 * MS, 50 * MS]
    )
    assert bucket_labels([10.0 * MS, 50.0 * MS]) == ["below 10ms", "10ms - 50ms", "from 50ms"]
    assert bucket_labels([]) == ["all"]
    edges = default_edges(summary.headline_latency)
    assert edges == [5 * MS, 10 * MS, 20 * MS, 50 * MS]
    assert len(default_edges(summary.headline_latency, 2)) == 2


def test_json_is_in_seconds() -> None:
    document = json.loads(as_json(summarize(results()), thresholds=[{"threshold": "x", "met": True}]))
    assert document["latency"]["done"]["max"] == 0.1
    assert document["latency"]["handover"]["p99"] == pytest.approx(1e-5, rel=0.01)
    assert sum(document["histogram"]["counts"]) == 90
    assert document["thresholds"] == [{"threshold": "x", "met": True}]
    assert len(document["series"]["p99"]) == len(document["series"]["sent"])
    assert document["by_outcome"]["sent"] == {"count": 0}


def test_csv_has_a_row_a_request() -> None:
    rows = list(csv.DictReader(as_csv(results()).splitlines()))
    assert len(rows) == 100
    assert rows[1]["done"] == "0.003000000"
    assert rows[0]["done"] == ""
    assert rows[5]["outcome"] == "rejected"


def test_the_page_needs_nothing_from_outside() -> None:
    run = results()
    run.facts["recording"] = "<script>alert(1)</script>"
    page = as_html(summarize(run), thresholds=[(True, "met    a<b"), (False, "missed p99<1ms")])
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"(?:src|href|url|@import|https?:)\b", page)
    assert page.count("<svg") == page.count("</svg>") == 4
    for chart in ("Requests per second", "Latency over time", "Latency by percentile", "Histogram"):
        assert f"<figcaption>{chart}" in page
    assert 'class="missed">missed p99&lt;1ms' in page


def test_the_charts_are_well_formed_and_inside_their_frames() -> None:
    import xml.etree.ElementTree as ElementTree

    page = as_html(summarize(results()))
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        tree = ElementTree.fromstring(svg)
        width, height = map(float, tree.attrib["viewBox"].split()[2:])
        points = [
            tuple(map(float, p.split())) for path in tree.iter("path") for p in re.split("[ML]", path.attrib["d"])[1:]
        ]
        bars = [(float(r.attrib["x"]), float(r.attrib["y"])) for r in tree.iter("rect")]
        assert points or bars
        assert all(0 <= x <= width and 0 <= y <= height for x, y in [*points, *bars])
        assert len({y for _, y in [*points, *bars]}) > 1


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("p99<5ms", False),
        ("p99 < 200ms", True),
        ("p99.9<=101ms", True),
        ("max<=100ms", True),
        ("max<100ms", False),
        ("min>1ms", True),
        ("mean>50ms", True),
        ("handover.p50<1ms", True),
        ("image.p50<1ms", False),
        ("text.count<3", None),
        ("rejected.max<7ms", True),
        ("rate>=980", True),
        ("rate>=1000", False),
        ("unseen<1", False),
        ("requests>=100", True),
        ("rejected<1", False),
    ],
)
def test_thresholds(text: str, met: bool | None) -> None:
    if met is None:
        with pytest.raises(UsageError, match="no metric"):
            parse_threshold(text)
        return
    threshold = parse_threshold(text)
    found, line = threshold.check(summarize(results()))
    assert found is met
    assert line.startswith("met " if met else "missed")
    assert text.strip() in line


@pytest.mark.parametrize(
    "text", ["", "fast", "p99", "p99<", "p101<1ms", "p0<1ms", "p99<soon", "rate>fast", "q99<1ms", "p99=1ms"]
)
def test_what_is_no_threshold(text: str) -> None:
    with pytest.raises(UsageError):
        parse_threshold(text)


def test_a_group_that_the_run_lacks() -> None:
    with pytest.raises(UsageError, match="no video; it has done, forwarded, handover, image"):
        parse_threshold("video.p99<1ms").check(summarize(results()))


def test_percentiles_of_the_series_are_of_their_interval() -> None:
    series = summarize(results(), intervals=10).series
    known = [p for p in series.p50 if not math.isnan(p)]
    assert known == sorted(known)
    assert all(p50 <= p99 for p50, p99 in zip(series.p50, series.p99, strict=True) if not math.isnan(p50))
