"""Folders of raw frames read like recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.recording import Direction, Framing, Reader, RecordingError


def put(folder: Path, *frames: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, frame in enumerate(frames):
        (folder / f"{number}.bin").write_bytes(frame)


def test_one_message(tmp_path: Path) -> None:
    put(tmp_path, *(b"%d" % i for i in range(12)))
    (tmp_path / "decoded.json").write_text("{}")
    (record,) = Reader(tmp_path)
    assert record.frames == [b"%d" % i for i in range(12)]
    assert (record.direction, record.framing) == (Direction.INGRESS, Framing.NATIVE)
    assert record.metadata == {"source": tmp_path.name}


def test_a_case(tmp_path: Path) -> None:
    put(tmp_path / "in_frames", b"request")
    put(tmp_path / "out_frames", b"materialized", b"aux")
    reader = Reader(tmp_path)
    assert [(r.frames, r.direction) for r in reader] == [
        ([b"request"], Direction.INGRESS),
        ([b"materialized", b"aux"], Direction.EGRESS),
    ]
    assert reader.count() == 2


def test_a_conversation(tmp_path: Path) -> None:
    put(tmp_path / "a-case" / "000-smg2engine-ADD", b"\x00", b"request")
    put(tmp_path / "a-case" / "001-engine2smg-OUT", b"output")
    put(tmp_path / "a-case" / "005-smg2engine-ABORT", b"\x01", b"\x91\xa1r")
    records = list(Reader(tmp_path))
    assert [r.direction for r in records] == [Direction.INGRESS, Direction.OUTPUT, Direction.INGRESS]
    assert [r.framing for r in records] == [Framing.TYPED, Framing.NATIVE, Framing.TYPED]
    assert [r.metadata["source"] for r in records] == [
        "a-case/000-smg2engine-ADD",
        "a-case/001-engine2smg-OUT",
        "a-case/005-smg2engine-ABORT",
    ]


def test_a_missing_frame_is_named(tmp_path: Path) -> None:
    put(tmp_path, b"0", b"1", b"2")
    (tmp_path / "1.bin").unlink()
    with pytest.raises(RecordingError, match=r"frame 1 is missing \(1\.bin\)"):
        list(Reader(tmp_path))


def test_a_folder_without_frames_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.bin").write_bytes(b"")
    with pytest.raises(RecordingError, match=r"no frames \(N\.bin\)"):
        list(Reader(tmp_path))


def test_a_folder_cannot_be_sought_in(tmp_path: Path) -> None:
    put(tmp_path, b"0")
    with pytest.raises(RecordingError, match="can be sought"):
        Reader(tmp_path).seek(0)
