"""SIGTERM and SIGINT: the first asks for an orderly end, the second one does not ask."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from typing import Final

from sidecar.cli import EXIT_INTERRUPTED

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

logger = logging.getLogger(__name__)


class StopSignals:
    """While entered, on a running event loop: `received` is set by the first signal, the second one exits.

    `at_once` is called before that exit; it must not wait for anything.
    """

    def __init__(self, at_once: Callable[[], None]) -> None:
        self.received = asyncio.Event()
        self._at_once = at_once
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> StopSignals:
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(self, *exception: object) -> None:
        for number in SIGNALS:
            self._loop.remove_signal_handler(number)
            signal.signal(number, signal.default_int_handler)

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if not self.received.is_set():
            logger.info("%s: draining; a second signal ends the process at once", name)
            self.received.set()
            return
        logger.warning("%s again: leaving at once", name)
        self._at_once()
        os._exit(EXIT_INTERRUPTED)
