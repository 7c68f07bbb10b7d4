"""Letters from other threads: all of them, in order, and few wake-ups."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from sidecar.transport.mailbox import Mailbox
from tests.service.loops import Run


def test_letters_arrive_in_order_however_many_threads_write(run: Run) -> None:
    async def main() -> None:
        got: list[tuple[int, int]] = []
        calls = 0
        done = asyncio.Event()

        def take(letters: deque[tuple[int, int]]) -> None:
            nonlocal calls
            calls += 1
            while letters:
                got.append(letters.popleft())
            if len(got) == 4000:
                done.set()

        mailbox: Mailbox[tuple[int, int]] = Mailbox(take)

        def write(writer: int) -> None:
            for number in range(1000):
                mailbox.put((writer, number))

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        await done.wait()
        for thread in threads:
            thread.join()
        for writer in range(4):
            assert [number for who, number in got if who == writer] == list(range(1000))
        assert calls <= 4000

    run(main())


def test_one_wake_up_for_what_has_come_since_the_last(run: Run) -> None:
    async def main() -> None:
        batches: list[list[int]] = []

        def take(letters: deque[int]) -> None:
            batches.append(list(letters))
            letters.clear()

        mailbox = Mailbox(take)
        for number in range(3):
            mailbox.put(number)
        await asyncio.sleep(0.01)
        mailbox.put(3)
        await asyncio.sleep(0.01)
        assert batches == [[0, 1, 2], [3]]

    run(main())


def test_a_closed_mailbox_wakes_nobody(run: Run) -> None:
    async def main() -> Mailbox[int]:
        mailbox: Mailbox[int] = Mailbox(lambda letters: letters.clear())
        mailbox.close()
        mailbox.put(1)
        await asyncio.sleep(0.01)
        assert len(mailbox._letters) == 1
        return Mailbox(lambda letters: letters.clear())

    mailbox = run(main())
    mailbox.put(1)  # its loop is gone
