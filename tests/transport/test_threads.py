"""The priority of libzmq's threads, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.transport import threads
from sidecar.transport.threads import NICE, ReceivingThread

SCRIPT = """
import os
import zmq
from sidecar.settings import Security
from sidecar.transport.sockets import Sockets
from sidecar.transport.threads import ReceivingThread

sockets = Sockets(Security())
pull = sockets.create(zmq.PULL, hwm=1)
receiver = ReceivingThread()
nice = {os.getpriority(os.PRIO_PROCESS, int(task)) for task in os.listdir("/proc/self/task")}
assert len(nice) == 1
assert receiver.give_way()
assert not receiver.give_way()
for task in sorted(map(int, os.listdir("/proc/self/task"))):
    print(open(f"/proc/self/task/{task}/comm").read().strip(), os.getpriority(os.PRIO_PROCESS, task))
pull.close()
sockets.close()
"""


def nice_threads(process: int) -> list[str]:
    """The names of threads that give way to others."""
    base = os.getpriority(os.PRIO_PROCESS, process)
    return [
        (task / "comm").read_text().strip()
        for task in Path(f"/proc/{process}/task").iterdir()
        if os.getpriority(os.PRIO_PROCESS, int(task.name)) > base
    ]


def test_receiving_gives_way_and_nothing_else_does() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    nice = dict(line.rsplit(" ", 1) for line in result.stdout.splitlines())
    base = os.getpriority(os.PRIO_PROCESS, 0)
    own = {name: int(value) for name, value in nice.items()}
    assert own.pop("ZMQbg/IO/0") == min(base + NICE, 19)
    assert "ZMQbg/IO/1" in own
    assert set(own.values()) == {base}


def test_where_no_thread_is_found_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_RECEIVER", "/none")
    monkeypatch.setattr(threads, "_PATIENCE_S", 0.0)
    assert not ReceivingThread().give_way()


def test_a_sandbox_that_forbids_it_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(which: int, who: int, priority: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", forbid)
    monkeypatch.setattr(threads, "_find", os.getpid)
    assert not ReceivingThread().give_way()
