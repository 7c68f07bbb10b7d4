"""Writing: limits, going on with an old file, full disks, standard output."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sidecar.recording import Reader, Record, RecordingError, Writer
from sidecar.recording.writer import Index

RECORDS = [Record([b"payload %d" % i] * 3, wall_ns=i) for i in range(10)]


def read(path: Path) -> list[Record]:
    with Reader(path) as reader:
        return list(reader)


def test_max_bytes_bounds_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    with Writer(path, max_bytes=500) as writer:
        written = [writer.write(record) for record in RECORDS]
        assert writer.full
        assert writer.nbytes <= 500
        assert writer.write(Record([b""])) is False
    assert written == sorted(written, reverse=True)
    assert 0 < sum(written) < len(RECORDS)
    assert read(path) == RECORDS[: sum(written)]


def test_append_continues(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    for i in range(0, 10, 2):
        with Writer(path, append=True) as writer:
            assert writer.messages == i
            for record in RECORDS[i : i + 2]:
                writer.write(record)
    with Reader(path) as reader:
        assert list(reader) == RECORDS
        reader.seek(7)
        assert next(iter(reader)) == RECORDS[7]
        assert reader.count() == 10


def test_append_replaces_a_cut_tail(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    with Writer(path) as writer:
        for record in RECORDS[:3]:
            writer.write(record)
        size = writer.nbytes
    os.truncate(path, size - 5)
    with Writer(path, append=True) as writer:
        writer.write(RECORDS[9])
    assert read(path) == [*RECORDS[:2], RECORDS[9]]


def test_append_refuses_what_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("keep me")
    with pytest.raises(RecordingError, match="not a recording"):
        Writer(path, append=True)
    assert path.read_text() == "keep me"


def test_a_new_file_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    for records in (RECORDS, RECORDS[:1]):
        with Writer(path) as writer:
            for record in records:
                writer.write(record)
    assert read(path) == RECORDS[:1]


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.rec"):
        pass
    assert (tmp_path / "a.rec").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("taken", [0, 30])
def test_a_full_disk_leaves_whole_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    path = tmp_path / "a.rec"
    writev = os.writev
    room = [True]

    def limited(fd: int, buffers: Sequence[bytes]) -> int:
        if room[0]:
            return writev(fd, buffers)
        if taken and writev(fd, [bytes(buffers[0])[:taken]]):
            monkeypatch.setattr(os, "writev", no_room)
            return min(taken, len(buffers[0]))
        return no_room(fd, buffers)

    def no_room(fd: int, buffers: Sequence[bytes]) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", limited)
    writer = Writer(path)
    writer.write(RECORDS[0])
    room[0] = False
    with pytest.raises(OSError, match="No space"):
        writer.write(RECORDS[1])
    monkeypatch.setattr(os, "writev", writev)
    writer.write(RECORDS[2])
    writer.close()
    assert read(path) == [RECORDS[0], RECORDS[2]]


def test_closing_twice_is_nothing_and_writing_then_is_an_error(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.rec")
    writer.close()
    writer.close()
    with pytest.raises(RecordingError, match="closed"):
        writer.write(RECORDS[0])


def test_many_frames_take_several_writes(tmp_path: Path) -> None:
    record = Record([b"%d" % i for i in range(4096)])
    with Writer(tmp_path / "a.rec") as writer:
        writer.write(record)
    assert read(tmp_path / "a.rec") == [record]


def test_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "piped.rec"
    with path.open("wb") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with Writer("-") as writer:
            writer.write(RECORDS[0])
    assert read(path) == RECORDS[:1]


def test_a_long_index_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.recording.writer._INDEX_MAX_ENTRIES", 8)
    index = Index()
    for number in range(100):
        index.add(number * 10, number)
    body = bytes(index.encode(5000)[1])
    messages, stride, entries = (int.from_bytes(body[i : i + 8], "little") for i in (0, 8, 16))
    assert (messages, stride) == (100, 16)
    assert entries == 7
    offsets = [int.from_bytes(body[24 + 16 * i : 32 + 16 * i], "little") for i in range(entries)]
    assert offsets == [number * 10 for number in range(0, 100, 16)]
