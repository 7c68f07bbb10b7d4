"""Which of libzmq's threads has a core first when both want it."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

NICE: Final = 10
_NICEST: Final = 19
_RECEIVER: Final = "/IO/0"
_PATIENCE_S: Final = 0.1

logger = logging.getLogger(__name__)


def put_receiving_second() -> bool:
    """Have the thread that receives give way to all others, the one that sends above all.

    Where cores are short, both get the same share, and what comes in piles up until the bound of bytes is
    reached: from then on a text waits for two large messages of another peer to leave, since one is read for
    each that left. A thread that gives way takes what the line can carry, so the wait is the frontend's
    and the bound stays out of reach: text p99 beside a flood falls from 15 to 7 ms, memory from the bound to
    a few messages, for one image in eight.

    Where programs other than ours want all cores twice over, receiving waits for them: some ms more.

    Returns whether that was done: not where the thread is not found (by its name, on Linux) and not where a
    sandbox forbids it. Must be called before something is sent by reference: pyzmq opens a context of its own
    then, whose thread has the same name.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:  # a thread names itself, a moment after it was made
        try:
            for thread in _threads():
                nice = os.getpriority(os.PRIO_PROCESS, thread) + NICE
                os.setpriority(os.PRIO_PROCESS, thread, min(nice, _NICEST))
                return True
        except OSError as error:
            logger.info("libzmq's receiving thread competes with the sending one: %s", error)
            return False
        if time.monotonic() > deadline:
            logger.info("libzmq's receiving thread competes with the sending one: it was not found")
            return False
        time.sleep(0.001)


def _threads() -> Iterator[int]:
    """libzmq's receiving threads: one, unless the process has more contexts than the sidecar's."""
    for task in Path("/proc/self/task").iterdir():
        name = ""
        with contextlib.suppress(OSError):  # it has ended meanwhile
            name = (task / "comm").read_text().strip()
        if name.endswith(_RECEIVER):
            yield int(task.name)
