"""Reading: whole and cut files, pipes, indexes that fit and ones that lie."""

from __future__ import annotations

import os
import pickle
import resource
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest

from sidecar.recording import Direction, Framing, Reader, Record, RecordingError, Writer
from sidecar.recording.format import FILE_HEADER, RECORD_HEADER, Kind, encode_info, file_header, record_header

RECORDS = [
    Record([b"payload %d" % i, b"aux" * i], Direction.EGRESS, Framing.TYPED, 1000 + i, i, {"number": i})
    for i in range(20)
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Writer(tmp_path / "some.rec", info={"made": "by a test"}) as writer:
        for record in RECORDS:
            assert writer.write(record)
    return tmp_path / "some.rec"


def without_index(path: Path) -> Path:
    """The recording as it is while it is being written."""
    data = path.read_bytes()
    (offset,) = struct.unpack_from("<Q", data, len(data) - 16)
    path.write_bytes(data[:offset])
    return path


def test_records_come_in_order(path: Path) -> None:
    with Reader(path) as reader:
        assert list(reader) == RECORDS
        assert reader.info == {"made": "by a test"}
        assert reader.truncation is None
        assert reader.count() == len(RECORDS)


def test_the_index_is_not_needed(path: Path) -> None:
    with Reader(without_index(path)) as reader:
        assert list(reader) == RECORDS
        assert reader.count() == len(RECORDS)
        assert reader.truncation is None


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("number", [0, 1, 13, 19, 20, 500])
def test_seeking_by_number(path: Path, indexed: bool, number: int) -> None:
    with Reader(path if indexed else without_index(path)) as reader:
        reader.seek(number)
        assert list(reader) == RECORDS[number:]


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(("time", "first"), [(0, 0), (1000, 0), (1007, 7), (1019, 19), (2000, 20)])
def test_seeking_by_time(path: Path, indexed: bool, time: int, first: int) -> None:
    with Reader(path if indexed else without_index(path)) as reader:
        reader.seek_time(time)
        assert list(reader) == RECORDS[first:]


def test_going_back_to_one_record_does_not_disturb_the_iteration(path: Path) -> None:
    with Reader(path) as reader:
        seen, offsets = [], []
        for record in reader:
            seen.append(record)
            offsets.append(reader.record_offset)
            assert reader.read_at(offsets[0]) == RECORDS[0]
        assert seen == RECORDS
        assert reader.read_at(offsets[7]) == RECORDS[7]


def test_a_file_cut_anywhere_gives_what_is_whole(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    ends = []
    with Reader(path) as reader:
        for _ in reader:
            ends.append(reader._position)
    cut = tmp_path / "cut.rec"
    for size in range(FILE_HEADER.size, ends[3] + 1):
        cut.write_bytes(data[:size])
        with Reader(cut) as reader:
            whole = list(reader)
        assert whole == RECORDS[: sum(end <= size for end in ends)]
        complete = size == FILE_HEADER.size or size in ends
        first = RECORD_HEADER.size + len(encode_info({"made": "by a test"})[1]) + FILE_HEADER.size
        assert (reader.truncation is None) == (complete or size == first)
        if reader.truncation is not None:
            assert reader.truncation.offset + reader.truncation.nbytes == size
            assert "cut short" in str(reader.truncation)


def test_zeros_that_a_crash_left_are_a_cut_tail(path: Path) -> None:
    without_index(path)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(5000))
    with Reader(path) as reader:
        assert list(reader) == RECORDS
        assert reader.truncation is not None
        assert reader.truncation.offset == size


def test_a_growing_file_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "growing.rec"
    with Writer(path) as writer:
        for number, record in enumerate(RECORDS, 1):
            writer.write(record)
            with Reader(path) as reader:
                assert list(reader) == RECORDS[:number]
                assert reader.truncation is None


def test_joined_recordings_read_as_one(path: Path, tmp_path: Path) -> None:
    joined = tmp_path / "joined.rec"
    joined.write_bytes(path.read_bytes() + without_index(path).read_bytes())
    with Reader(joined) as reader:
        assert list(reader) == RECORDS * 2
        assert reader.count() == 2 * len(RECORDS)


@pytest.mark.parametrize("damage", ["offset", "count", "table"])
def test_an_index_that_does_not_fit_is_not_used(path: Path, damage: str) -> None:
    data = bytearray(path.read_bytes())
    at = {"offset": len(data) - 16, "count": len(data) - 16 - 16 * len(RECORDS) - 24, "table": len(data) - 24}[damage]
    data[at] ^= 0xFF
    path.write_bytes(data)
    with Reader(path) as reader:
        assert reader._index is None
        reader.seek(5)
        assert next(iter(reader)) == RECORDS[5]


def test_unknown_kinds_are_skipped(path: Path) -> None:
    without_index(path)
    body = b"from a later version"
    with path.open("ab") as file:
        file.write(record_header(77, [body]) + body)  # type: ignore[arg-type]
    with Reader(path) as reader:
        assert list(reader) == RECORDS
        assert reader.count() == len(RECORDS)


@pytest.mark.parametrize("at", [5, 8, 11, 14, 25, 60])
def test_damage_names_its_offset(path: Path, at: int) -> None:
    with Reader(path) as reader:
        next(iter(reader))
        start = reader.record_offset
    data = bytearray(path.read_bytes())
    data[start + at] ^= 0x10
    path.write_bytes(data)
    with Reader(path) as reader, pytest.raises(RecordingError, match=rf"some\.rec: .*offset {start}"):
        list(reader)


def test_a_record_beyond_the_limit_is_refused_before_it_is_read(path: Path) -> None:
    head = RECORD_HEADER.pack(1 << 50, Kind.MESSAGE, 0, 0, 0, 0)[:-4]
    path.write_bytes(file_header() + head + zlib.crc32(head).to_bytes(4, "little") + b"x" * 100)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Reader(path) as reader, pytest.raises(RecordingError, match=f"a record of {1 << 50} bytes"):
        list(reader)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_length_that_the_file_does_not_have_allocates_nothing(path: Path) -> None:
    head = RECORD_HEADER.pack(1 << 30, Kind.MESSAGE, 0, 0, 0, 0)[:-4]
    path.write_bytes(file_header() + head + zlib.crc32(head).to_bytes(4, "little") + b"x" * 100)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Reader(path) as reader:
        assert list(reader) == []
        assert reader.truncation is not None
        assert reader.truncation.nbytes == 120
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


class Bomb:
    """A pickle that would run code, if anything unpickled it."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os._exit, (99,))  # type: ignore[return-value]


def test_a_pickle_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "captured.pkl"
    path.write_bytes(pickle.dumps(Bomb()))

    def opened(*arguments: object) -> None:
        raise AssertionError("it was opened")

    monkeypatch.setattr("builtins.open", opened)
    with pytest.raises(RecordingError, match="pickles are never read"):
        Reader(path)


def test_a_pickle_under_another_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "captured.rec"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(RecordingError, match="looks like a pickle"):
        Reader(path)


def test_the_package_never_imports_pickle() -> None:
    """Even with everything in it loaded."""
    code = (
        "import sys, sidecar.recording, sidecar.recording.tap\n"
        "import pickle; pickle.loads = pickle.load = pickle.Unpickler = None\n"
        "from sidecar.recording import Reader\n"
        "list(Reader(sys.argv[1]))\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent.parent / "data/recordings/small.rec")], check=True
    )


def test_a_pipe_reads_like_a_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()

    def feed() -> None:
        with os.fdopen(writing, "wb") as file:
            file.write(path.read_bytes()[:-3])

    thread = threading.Thread(target=feed)
    thread.start()
    with os.fdopen(reading, "rb") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with Reader("-") as reader:
            assert list(reader) == RECORDS
            assert reader.truncation is not None
            with pytest.raises(RecordingError, match="a pipe has no length"):
                reader.count()
            with pytest.raises(RecordingError, match="can be sought"):
                reader.seek(1)
    thread.join()
