"""Which of libzmq's threads has a core first when both want it."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Final

NICE: Final = 10
_NICEST: Final = 19
_RECEIVER: Final = "/IO/0"
_PATIENCE_S: Final = 0.1

logger = logging.getLogger(__name__)


class ReceivingThread:
    """The thread of libzmq's that receives, which can give way to all others, the one that sends above all.

    Where cores are short, both get the same share, and what comes in piles up until the bound of bytes is
    reached: from then on a text waits for two large messages of another peer to leave, since one is read for
    each that left. A thread that gives way takes what the line can carry, so the wait is the frontend's
    and the bound stays out of reach: text p99 beside a flood falls from 15 to 7 ms, memory from the bound to
    a few messages, for one image in eight.

    Where there are only small messages it is the other way round: one that has given way works off last what a
    moment without a core has left, and text p99 at half of the capacity rises from 0.5 to 0.9 ms. So it does
    at the first large message, and from then on: without privileges a thread becomes nicer and never less so.

    Where programs other than ours want all cores twice over, receiving waits for them: some ms more.

    Must be made before anything is sent by reference: pyzmq opens a context of its own then, whose thread has
    the same name. A process that has contexts beside the sidecar's has several such threads.
    """

    def __init__(self) -> None:
        self._thread = _find()
        if self._thread is None:
            logger.info("libzmq's receiving thread competes with the sending one: it was not found")

    def give_way(self) -> bool:
        """Give way from now on. Whether that was just done: not twice, and not where a sandbox forbids it."""
        thread, self._thread = self._thread, None
        if thread is None:
            return False
        try:
            nice = os.getpriority(os.PRIO_PROCESS, thread) + NICE
            os.setpriority(os.PRIO_PROCESS, thread, min(nice, _NICEST))
        except OSError as error:
            logger.info("libzmq's receiving thread competes with the sending one: %s", error)
            return False
        return True


def _find() -> int | None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:  # a thread names itself, a moment after it was made
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if (task / "comm").read_text().strip().endswith(_RECEIVER):
                    return int(task.name)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.001)
