"""What lies between a source and a sink: nothing, libzmq's proxy, a bare loop in Python, or the sidecar."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
START_S: Final = 30.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SAMPLE: Final = re.compile(r'^sidecar_requests_total\{.*outcome="(\w+)".*\} (\S+)$', re.MULTILINE)


class Process:
    """A child process that talks in lines of JSON, or is just there."""

    def __init__(self, command: Sequence[str | Path], stderr: Path | None = None) -> None:
        self.started = time.monotonic()
        with open(stderr or os.devnull, "ab") as errors:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors if stderr is not None else None,
                text=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def read(self) -> dict[str, Any]:
        """Its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def cpu_seconds(self) -> float:
        """The CPU time of all its threads so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory(self) -> dict[str, int]:
        """Bytes: resident (RSS), its share of them (PSS), and the most that was ever resident."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        rollup = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        return {"rss": _kib(status, "VmRSS"), "pss": _kib(rollup, "Pss"), "peak_rss": _kib(status, "VmHWM")}

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def say(**values: Any) -> None:
    """Print a line of JSON for the process that started this one."""
    print(json.dumps(values), flush=True)


def _kib(text: str, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    assert match is not None, name
    return int(match[1]) * 1024


def peer(role: str, address: str, **options: Any) -> Process:
    """One of `benchmarks.peers`. True stands for an option without a value, None for none."""
    command = [sys.executable, "-m", "benchmarks.peers", role, address]
    for name, value in options.items():
        if value is not None and value is not False:
            command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return Process(command)


class Line:
    """Two addresses. A source connects to `entry`; a sink connects to `exit`, or binds it if it `binds`."""

    name = "direct"
    binds = True

    def __init__(self, folder: Path, hwm: int) -> None:
        self.hwm = hwm
        self.entry = self.exit = f"ipc://{folder}/direct.sock"
        self.process: Process | None = None

    def close(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.close()

    def check(self) -> None:
        """Raise `SystemExit` if not everything was forwarded."""


class Proxy(Line):
    """`zmq_proxy`, libzmq's own: no program on these sockets does less."""

    name = "proxy"
    binds = False

    def __init__(self, folder: Path, hwm: int) -> None:
        super().__init__(folder, hwm)
        self.entry, self.exit = f"ipc://{folder}/proxy-in.sock", f"ipc://{folder}/proxy-out.sock"
        self.process = peer("proxy", self.entry, out=self.exit, hwm=hwm)
        self.process.read()


class Relay(Line):
    """A loop in Python that receives and sends: what is left for the sidecar's own work is below it."""

    name = "relay"
    binds = False

    def __init__(self, folder: Path, hwm: int, size: str) -> None:
        super().__init__(folder, hwm)
        self.entry, self.exit = f"ipc://{folder}/relay-in.sock", f"ipc://{folder}/relay-out.sock"
        self.process = peer("relay", self.entry, out=self.exit, hwm=hwm, size=size)
        self.process.read()


class Sidecar(Line):
    """`sidecar serve`, with all checks, accounting and metrics; `sets` are configuration keys."""

    name = "sidecar"
    binds = False

    def __init__(self, folder: Path, hwm: int, *sets: str) -> None:
        super().__init__(folder, hwm)
        self.entry, self.exit = f"ipc://{folder}/sidecar-in.sock", f"ipc://{folder}/sidecar-out.sock"
        self.port = free_port()
        keys = {
            "ingress.bind": self.entry,
            "egress.bind": self.exit,
            "ingress.hwm": hwm,
            "egress.hwm": hwm,
            "admin.bind": f"127.0.0.1:{self.port}",
        }
        command = [sys.executable, "-m", "sidecar", "serve"]
        for pair in (*(f"{key}={value}" for key, value in keys.items()), *sets):
            command += ["--set", pair]
        self.process = Process(command, stderr=folder / "sidecar.log")

    def wait_for(self, path: str) -> float:
        """Wait until an admin path answers 200; the seconds since the process was started."""
        assert self.process is not None
        while time.monotonic() - self.process.started < START_S:
            if self.process.ended:
                break
            try:
                if self.get(path).split(maxsplit=2)[1] == "200":
                    return time.monotonic() - self.process.started
            except OSError:
                pass
            time.sleep(0.005)
        raise SystemExit(f"the sidecar does not answer {path}")

    def get(self, path: str) -> str:
        """The answer to a GET, head and body."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def check(self) -> None:
        """A benchmark whose requests are refused measures something else."""
        outcomes: dict[str, float] = {}
        for name, value in _SAMPLE.findall(self.get("/metrics")):
            outcomes[name] = outcomes.get(name, 0) + float(value)
        other = {name: count for name, count in outcomes.items() if count and name != "forwarded"}
        if other or not outcomes.get("forwarded"):
            raise SystemExit(f"the sidecar did not forward everything: {outcomes}")


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
