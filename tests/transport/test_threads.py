"""The priority of libzmq's threads, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.transport import threads
from sidecar.transport.threads import NICE, IoThreads

SCRIPT = """
import os
import zmq
from sidecar.settings import Security
from sidecar.transport.sockets import IO_THREADS, Sockets
from sidecar.transport.threads import IoThreads

sockets = Sockets(Security())
pull = sockets.create(zmq.PULL, hwm=1)
threads = IoThreads(IO_THREADS)
tasks = sorted(map(int, os.listdir("/proc/self/task")))
assert len({os.getpriority(os.PRIO_PROCESS, task) for task in tasks}) == 1
assert threads.put_receiving_second()
assert not threads.put_receiving_second()
for task in tasks:
    nice, policy = os.getpriority(os.PRIO_PROCESS, task), os.sched_getscheduler(task)
    print(open(f"/proc/self/task/{task}/comm").read().strip(), nice, policy)
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
    rows = [line.rsplit(" ", 2) for line in result.stdout.splitlines()]
    base = os.getpriority(os.PRIO_PROCESS, 0)
    nice = {name: int(value) for name, value, _ in rows}
    assert nice.pop("ZMQbg/IO/0") == min(base + NICE, 19)
    assert "ZMQbg/IO/1" in nice
    assert set(nice.values()) == {base}
    assert {name for name, _, policy in rows if int(policy) == os.SCHED_BATCH} == {"ZMQbg/IO/0", "ZMQbg/IO/1"}


def test_where_no_thread_is_found_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_NAME", "/none")
    monkeypatch.setattr(threads, "_PATIENCE_S", 0.0)
    assert not IoThreads(2).put_receiving_second()


def test_a_sandbox_that_forbids_it_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", forbid)
    monkeypatch.setattr(os, "sched_setscheduler", forbid)
    monkeypatch.setattr(threads, "_find", lambda count: {"/IO/0": os.getpid(), "/IO/1": os.getpid()})
    assert not IoThreads(2).put_receiving_second()
