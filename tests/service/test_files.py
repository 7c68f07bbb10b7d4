"""Quarantine and spill: what is kept, in what form, and up to where."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sidecar.errors import Reason
from sidecar.outcome import Kind, Outcome, Result
from sidecar.recording import Direction, Framing, Reader
from sidecar.service import quarantine
from sidecar.service.quarantine import Quarantine
from sidecar.service.spill import Spill, count_recordings
from sidecar.settings.schema import DEFAULT_CONTROL_TAGS
from tests.build import context
from tests.service.fakes import Bench, read
from tests.service.loops import Run
from tests.service.messages import abort, settle, slow, text

DROPPED = Outcome(Kind.UNREADABLE, Result.DROPPED, reason=Reason.MALFORMED_REQUEST)


def test_quarantine_keeps_up_to_its_bound_over_processes(tmp_path: Path) -> None:
    folder = tmp_path / "q"
    noise = [os.urandom(1000) for _ in range(100)]  # nothing that would be stored smaller
    kept = Quarantine(folder, 50_000, Framing.TYPED)
    for number in range(100):
        kept.keep([b"\x00", noise[number]], DROPPED)
    kept.close()
    assert 0 < kept.messages < 60
    assert (kept.messages + kept.skipped, kept.bytes) == (100, kept.messages * 1001)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (file,) = folder.iterdir()
    assert file.stat().st_size <= 51_000
    with Reader(file) as reader:
        records = list(reader)
    assert len(records) == kept.messages
    assert records[3].frames[1] == noise[3]
    assert (records[3].framing, records[3].direction) == (Framing.TYPED, Direction.INGRESS)
    assert records[3].metadata["reason"] == "malformed_request"
    file.rename(folder / "quarantine-earlier.rec")
    again = Quarantine(folder, 50_000, Framing.TYPED)
    again.keep([bytes(2000)], DROPPED)
    again.close()
    assert (again.messages, again.skipped) == (0, 1)


def test_no_folder_keeps_nothing() -> None:
    kept = Quarantine(None, 1000, Framing.NATIVE)
    kept.keep([b"x"], DROPPED)
    kept.close()
    assert (kept.messages, kept.skipped) == (0, 1)


def test_a_disk_that_fails_ends_the_quarantine_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "q").touch()
    kept = Quarantine(tmp_path / "q" / "below", 1000, Framing.NATIVE)
    kept.keep([b"x"], DROPPED)
    kept.close()
    assert (kept.messages, kept.skipped) == (0, 1)
    assert "quarantine stops" in caplog.text


def test_a_flood_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MAX_QUEUED_BYTES", 10)
    kept = Quarantine(tmp_path, 10_000, Framing.NATIVE)
    kept.keep([bytes(11)], DROPPED)
    kept.close()
    assert (kept.messages, kept.skipped) == (0, 1)


@pytest.mark.parametrize("egress", [Framing.NATIVE, Framing.TYPED])
def test_spilled_messages_can_be_sent_in_again(tmp_path: Path, run: Run, egress: Framing) -> None:
    async def body() -> None:
        first = context(
            egress_framing=egress,
            finalize_sampling=egress is Framing.NATIVE,
            control_tags=frozenset(DEFAULT_CONTROL_TAGS),
        )
        bench = Bench(first, room=0)
        for message in (text("a"), slow("b"), text("a"), abort("elsewhere"), text("c"), slow("b"), text("c")):
            bench.receive(message)
        with Spill(tmp_path, first) as spill:
            outcomes = [
                (held.envelope.rid, str(outcome.result)) for held, outcome in spill.write(bench.lanes.surrender())
            ]
        assert [result for _, result in outcomes] == [
            "forwarded", "forwarded", "dropped", "forwarded", "forwarded", "dropped", "dropped",
        ]  # fmt: skip
        assert spill.messages == 4
        assert count_recordings(tmp_path) == 1
        with Reader(spill.path) as reader:
            records = list(reader)
        assert {record.framing for record in records} == {Framing.NATIVE}
        second = Bench(context(egress_framing=egress, finalize_sampling=egress is Framing.NATIVE))
        for record in records:
            second.receive(*(bytes(frame) for frame in record.frames))
        while second.pool.run_one():
            pass
        await settle()
        assert sorted(second.trace) == [("abort", "elsewhere"), ("add", "a"), ("add", "b"), ("add", "c")]
        if egress is Framing.NATIVE:  # they were materialized already, and left as they were
            assert [read(record.frames)[0] for record in records][1] == ("add", "b")
            assert [bytes(frame) for frame in records[0].frames] == [bytes(frame) for frame in second.egress.sent[0]]

    run(body())


def test_nothing_to_spill_makes_no_file(tmp_path: Path, run: Run) -> None:
    async def body() -> None:
        with Spill(tmp_path, context()) as spill:
            assert list(spill.write([])) == []
        assert count_recordings(tmp_path) == 0

    run(body())
