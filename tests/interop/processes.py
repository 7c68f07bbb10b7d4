"""Programs that run beside the tests: started, waited for, killed, and their output kept for the failure's text."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

START_S = 60.0


class Program:
    """A child process whose output goes to a file. Killed and reaped by `kill`, `stop` or `close`."""

    def __init__(self, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def output(self) -> str:
        """Everything that it has printed so far."""
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, to the process and its children."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self, timeout: float = 15.0) -> int:
        """SIGTERM; the exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout)

    def freeze(self) -> None:
        """SIGSTOP: there, and silent."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, whatever its state."""
        if self.running:
            self.kill()

    def _signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)


def wait_for(
    what: str, check: Callable[[], object], timeout: float = START_S, *, logs: Sequence[Program] = ()
) -> float:
    """Ask until `check` says yes; the seconds that it took. Fails with the programs' last words otherwise."""
    begin = time.monotonic()
    while True:
        if check():
            return time.monotonic() - begin
        if time.monotonic() - begin > timeout:
            tails = "\n".join(f"--- {program.log.name}\n{program.output()[-3000:]}" for program in logs)
            raise AssertionError(f"{what}: not within {timeout} s\n{tails}")
        time.sleep(0.02)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
