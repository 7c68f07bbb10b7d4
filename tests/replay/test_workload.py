"""What a replay sends of a recording."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgpack
import pytest

from sidecar.errors import UsageError
from sidecar.recording import Direction, Framing, Record, Writer
from sidecar.replay import workload
from sidecar.replay.decode import MessageKind
from sidecar.replay.rewrite import abort_frames
from sidecar.replay.workload import Plan, Shot, Workload
from tests.build import frames, image_request, request


def message(rid: str, direction: Direction = Direction.INGRESS) -> Record:
    return Record(frames(request(rid)), direction, mono_ns=5)


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "some.rec"
    with Writer(path) as writer:
        writer.write(Record([b"an output"], Direction.OUTPUT))
        writer.write(message("a"))
        writer.write(message("a", Direction.EGRESS))
        writer.write(Record(frames(image_request("b"))))
        writer.write(Record(abort_frames("a", Framing.NATIVE)))
        writer.write(Record([msgpack.packb(["FlushCacheReqInput", None, None])]))
    return str(path)


def rids(shots: Workload) -> list[str]:
    return [shot.about.rid for shot in shots]


def test_the_first_direction_is_sent(path: str) -> None:
    shots = list(Workload(Plan(path)))
    assert [(shot.kind, shot.about.rid, shot.about.modality) for shot in shots] == [
        (MessageKind.GENERATE, "a", "text"),
        (MessageKind.GENERATE, "b", "image"),
        (MessageKind.ABORT, "a", ""),
        (MessageKind.CONTROL, "", ""),
    ]
    assert shots[0].mono_ns == 5
    assert shots[0].about.nbytes == len(shots[0].frames[0])
    assert rids(Workload(Plan(path, Direction.EGRESS))) == ["a"]


def test_another_framing_has_no_control_messages(path: str) -> None:
    work = Workload(Plan(path, framing=Framing.TYPED))
    assert [bytes(shot.frames[0]) for shot in work] == [b"\x00", b"\x00", b"\x01"]
    assert work.skipped == 1


def test_loops_get_new_rids(path: str) -> None:
    assert rids(Workload(Plan(path, loops=3)))[::4] == ["a", "a.2", "a.3"]
    typed = list(Workload(Plan(path, loops=2, framing=Framing.TYPED)))
    assert msgpack.unpackb(typed[5].frames[1]) == ["a.2"]
    assert list(itertools.islice(Workload(Plan(path, loops=0)), 10))[8].about.rid == "a.3"
    assert rids(Workload(Plan(path, loops=2, suffix=lambda loop: "")))[::4] == ["a", "a"]


def test_a_limit_counts_over_loops(path: str) -> None:
    assert len(list(Workload(Plan(path, loops=0, limit=7)))) == 7


def test_a_choice(path: str) -> None:
    plan = Plan(path, loops=2, select=lambda record: len(record.frames[0]) < 60)
    assert rids(Workload(plan)) == ["a", "", "a.2", ""]
    assert rids(Workload(Plan(path, loops=0, select=lambda record: False))) == []


@pytest.mark.parametrize("preload", [True, False])
def test_little_room_reads_on_while_sending(path: str, monkeypatch: pytest.MonkeyPatch, preload: bool) -> None:
    monkeypatch.setattr(workload, "READ_AHEAD_BYTES", 1)
    work = Workload(Plan(path, loops=2, preload=preload))
    assert len(work._ahead) == (4 if preload else 1)
    assert rids(work) == ["a", "b", "a", "", "a.2", "b.2", "a.2", ""]


def test_a_cut_tail_is_reported(path: str) -> None:
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: len(data) // 2])
    work = Workload(Plan(path))
    assert all(isinstance(shot, Shot) for shot in work)
    assert "cut short" in work.truncated


def test_errors_come_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("no recording")
    with pytest.raises(UsageError, match="not a recording"):
        Workload(Plan(str(tmp_path / "notes")))
    with pytest.raises(FileNotFoundError):
        Workload(Plan(str(tmp_path / "nothing")))
