"""What the relay remembers of an engine beyond its own end."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import msgpack
import pytest

from sidecar.transport.relay.memory import Introduction, Memory, Remembered

ONE = Remembered(Introduction(b"hello", b"ready", b"registration"), "ipc:///gw-out.sock")
TWO = Remembered(Introduction(b"\x80\xff", b"", b""))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    Memory(tmp_path).save(0, ONE)
    Memory(tmp_path).save(65535, TWO)
    assert Memory(tmp_path).load() == {0: ONE, 65535: TWO}


def test_the_last_word_counts(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.save(3, ONE)
    memory.save(3, TWO)
    assert memory.load() == {3: TWO}
    memory.forget(3)
    memory.forget(3)
    assert memory.load() == {}
    assert list(tmp_path.iterdir()) == []


def test_nobody_else_reads_it(tmp_path: Path) -> None:
    Memory(tmp_path).save(0, ONE)
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_folder_that_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(tmp_path / "missing")
    assert memory.load() == {}
    with caplog.at_level(logging.WARNING, "sidecar"):
        memory.save(0, ONE)
    assert "must be restarted" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xc1", b"\x80", msgpack.packb([1]), msgpack.packb({"hello": 1}), msgpack.packb(7),
        msgpack.packb({"hello": b"", "ready": b"", "registration": b"", "attached": 1}),
        msgpack.packb({"hello": "text", "ready": b"", "registration": b"", "attached": None}),
        msgpack.packb({"hello": b"", "ready": b"", "registration": b"", "attached": None})[:-1],
        msgpack.packb({"hello": b"", "ready": b"", "registration": b"", "attached": None}) + b"\0",
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_left_out(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rank-1.state").write_bytes(content)
    Memory(tmp_path).save(2, TWO)
    with caplog.at_level(logging.WARNING, "sidecar"):
        assert Memory(tmp_path).load() == {2: TWO}
    assert "rank-1.state" in caplog.text


@pytest.mark.parametrize("name", ["rank-x.state", "rank-.state", "rank-65536.state", "rank-²³.state", "rank-1.new"])
def test_other_files_are_not_ours(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80")
    assert Memory(tmp_path).load() == {}
