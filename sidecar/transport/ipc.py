"""Bound ipc sockets: made so that nobody else can reach them, and so that nothing of others is lost.

libzmq by itself deletes whatever lies at the path, file or live socket, binds with the process's umask,
and at the end deletes the path again, whoever owns it by then. So the listening socket is made here and
handed to libzmq (`ZMQ_USE_FD`), which then leaves the file alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import Any, Final

import zmq

from sidecar.errors import TransportError

SCHEME: Final = "ipc://"

_BACKLOG: Final = 128
_PROBE_TIMEOUT_S: Final = 1.0
_WORLD_WRITABLE: Final = stat.S_IWOTH


class IpcListener:
    """A listening Unix-domain socket at a path, and the lock that makes it the only one there.

    The folder is made if it is missing, for those who may speak to the socket: mode 0700, or 0750 for a
    socket of mode 0660. A socket that nobody listens to is reclaimed;
    a live one, or anything that is no socket, is a `TransportError`, and stays as it is. `mode` is the
    socket's file mode from the first moment on.
    """

    def __init__(self, path: str, mode: int) -> None:
        self.path = Path(path)
        self._lock = -1
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._identity: tuple[int, int] | None = None
        try:
            self._prepare_folder(mode)
            self._lock = _lock(self.path)
            self._make_room()
            self._bind(mode)
        except OSError as error:
            self.close()
            raise self._error(error.strerror or str(error)) from error
        except BaseException:
            self.close()
            raise

    def attach(self, zmq_socket: zmq.Socket[Any]) -> None:
        """Let a ZMQ socket accept what connects here."""
        zmq_socket.set(zmq.USE_FD, self._socket.fileno())
        try:
            zmq_socket.bind(f"{SCHEME}{self.path}")
        except zmq.ZMQError as error:
            raise self._error(str(error)) from error
        finally:
            zmq_socket.set(zmq.USE_FD, -1)
        self._socket.detach()  # libzmq closes it

    def close(self) -> None:
        """Remove the socket's file, if it is still this one's, and let go of the path. Safe to call twice."""
        self._socket.close()
        if self._identity is not None:
            with contextlib.suppress(OSError):
                if _identity(self.path) == self._identity:
                    self.path.unlink()
            self._identity = None
        if self._lock >= 0:
            with contextlib.suppress(OSError):
                _lock_path(self.path).unlink()
            os.close(self._lock)
            self._lock = -1

    def _prepare_folder(self, mode: int) -> None:
        folder = self.path.parent
        if not folder.exists():
            # Who may speak to the socket must be able to reach it.
            reach = (0o050 if mode & 0o060 else 0) | (0o005 if mode & 0o006 else 0)
            folder.mkdir(mode=0o700 | reach, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_mode & _WORLD_WRITABLE and not status.st_mode & stat.S_ISVTX:
            raise self._error(
                f"everybody can write in {folder}, and so put another socket in this one's place; "
                f"use a folder of your own, or chmod o-w {folder}"
            )
        if status.st_uid not in (0, os.geteuid()):
            raise self._error(f"{folder} belongs to another user; use a folder of your own")

    def _make_room(self) -> None:
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(status.st_mode):
            raise self._error("something that is no socket lies there; remove it or use another path")
        if _is_live(self.path):
            raise self._error("another process listens there; stop it or use another path")
        self.path.unlink()

    def _bind(self, mode: int) -> None:
        before = os.umask(0o777 & ~mode)
        try:
            self._socket.bind(str(self.path))
        finally:
            os.umask(before)
        self._identity = _identity(self.path)
        self.path.chmod(mode)
        self._socket.listen(_BACKLOG)

    def _error(self, what: str) -> TransportError:
        return TransportError(f"cannot bind {SCHEME}{self.path}: {what}")


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _is_live(path: Path) -> bool:
    """Whether somebody listens at a socket's path. What cannot be asked counts as live."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True


def _lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _lock(path: Path) -> int:
    """Take the lock beside a socket's path; it is the file descriptor's, and ends with the process.

    Two processes that start at once would both find the path free. A lock file is removed by its owner,
    so one that was opened may be gone when it is locked: then it is opened anew.
    """
    name = _lock_path(path)
    while True:
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same_file(lock, name):
                return lock
        except BlockingIOError:
            os.close(lock)
            raise TransportError(
                f"cannot bind {SCHEME}{path}: another sidecar uses it (it holds {name}); stop it or use another path"
            ) from None
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
