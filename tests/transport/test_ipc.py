"""Bound ipc sockets: nobody else's file is touched, nobody else gets in."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from sidecar.errors import TransportError
from sidecar.transport.ipc import IpcListener


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def is_socket(path: Path) -> bool:
    return stat.S_ISSOCK(path.lstat().st_mode)


def stale_socket(path: Path) -> None:
    """What a process that was killed leaves behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
        unix.bind(str(path))


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_mode_is_the_one_configured_whatever_the_umask(folder: Path, mode: int, umask: int) -> None:
    before = os.umask(umask)
    try:
        listener = IpcListener(str(folder / "s"), mode)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "s").stat().st_mode) == mode
    listener.close()
    assert list(folder.iterdir()) == []


def test_traffic_and_removal(folder: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    listener = IpcListener(str(folder / "s"), 0o600)
    pull = context.socket(zmq.PULL)
    listener.attach(pull)
    for number in range(3):
        with context.socket(zmq.PUSH) as push:
            push.connect(f"ipc://{folder}/s")
            push.send(b"%d" % number)
            assert pull.recv() == b"%d" % number
    pull.close()
    assert is_socket(folder / "s")  # libzmq leaves it: it is ours to remove
    listener.close()
    listener.close()
    assert list(folder.iterdir()) == []


def test_folder_is_made_for_us_alone(folder: Path) -> None:
    listener = IpcListener(str(folder / "new" / "deep" / "s"), 0o600)
    assert stat.S_IMODE((folder / "new" / "deep").stat().st_mode) == 0o700
    listener.close()


def test_second_one_fails_and_the_first_goes_on(folder: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    listener = IpcListener(str(folder / "s"), 0o600)
    pull = context.socket(zmq.PULL)
    listener.attach(pull)
    with pytest.raises(TransportError, match="another sidecar uses it"):
        IpcListener(str(folder / "s"), 0o600)
    with context.socket(zmq.PUSH) as push:
        push.connect(f"ipc://{folder}/s")
        push.send(b"still here")
        assert pull.recv() == b"still here"
    pull.close()
    listener.close()


def test_two_that_start_at_once(folder: Path) -> None:
    script = (
        "import sys, time; from sidecar.transport.ipc import IpcListener\n"
        "sys.stdin.readline()\n"
        "try: IpcListener(sys.argv[1], 0o600); print('bound', flush=True); sys.stdin.readline()\n"
        "except Exception as error: print(type(error).__name__, flush=True)\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(folder / "s")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = []
    for process in processes:
        assert process.stdout is not None
        answers.append(process.stdout.readline().strip())
    for process in processes:
        process.communicate("\n")
    assert sorted(answers) == ["TransportError"] * 3 + ["bound"]


def test_somebody_else_listens_there(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(folder / "s"))
        other.listen()
        with pytest.raises(TransportError, match="another process listens there"):
            IpcListener(str(folder / "s"), 0o600)
        assert is_socket(folder / "s")
    assert [path.name for path in folder.iterdir()] == ["s"]


def test_stale_socket_is_reclaimed(folder: Path) -> None:
    stale_socket(folder / "s")
    listener = IpcListener(str(folder / "s"), 0o600)
    listener.close()


def test_a_lock_of_a_process_that_was_killed_holds_nobody_up(folder: Path) -> None:
    stale_socket(folder / "s")
    (folder / "s.lock").touch()
    listener = IpcListener(str(folder / "s"), 0o600)
    listener.close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder", "link", "dangling link", "fifo"])
def test_what_is_no_socket_stays(folder: Path, kind: str) -> None:
    path = folder / "s"
    match kind:
        case "file":
            path.write_text("precious")
        case "folder":
            path.mkdir()
        case "link":
            (folder / "t").write_text("precious")
            path.symlink_to(folder / "t")
        case "dangling link":
            path.symlink_to(folder / "nowhere")
        case "fifo":
            os.mkfifo(path)
    before = path.lstat()
    with pytest.raises(TransportError, match="no socket"):
        IpcListener(str(path), 0o600)
    after = path.lstat()
    assert (before.st_ino, before.st_mode, before.st_size) == (after.st_ino, after.st_mode, after.st_size)


def test_what_was_put_in_our_place_is_not_removed(folder: Path) -> None:
    listener = IpcListener(str(folder / "s"), 0o600)
    (folder / "s").unlink()
    stale_socket(folder / "s")
    listener.close()
    assert is_socket(folder / "s")


def test_folder_that_everybody_can_write_in(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(TransportError, match="everybody can write"):
        IpcListener(str(folder / "s"), 0o600)
    folder.chmod(0o1777)  # as /tmp: others can add files, not replace ours
    IpcListener(str(folder / "s"), 0o600).close()
    folder.chmod(0o700)


def test_folder_of_somebody_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = folder.stat().st_uid
    (folder / "theirs").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        os.chown(folder / "theirs", 12345, 12345)
    with pytest.raises(TransportError, match="belongs to another user"):
        IpcListener(str(folder / "theirs" / "s"), 0o600)


def test_errors_of_the_system_name_the_address(folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(TransportError, match=r"cannot bind ipc://.*/file/s: Not a directory"):
        IpcListener(str(folder / "file" / "s"), 0o600)


@pytest.mark.parametrize(("mode", "folder_mode"), [(0o600, 0o700), (0o660, 0o750), (0o666, 0o755)])
def test_a_new_folder_is_open_to_those_who_may_speak_to_the_socket(folder: Path, mode: int, folder_mode: int) -> None:
    made = folder / "line"
    listener = IpcListener(str(made / "in.sock"), mode)
    try:
        assert stat.S_IMODE(made.stat().st_mode) == folder_mode
    finally:
        listener.close()
