"""Each of the three processes ends in the middle of traffic: what is open ends, and new requests are answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException

import pytest

from tests.interop.gateway import BUILDS, png
from tests.interop.processes import wait_for
from tests.interop.setup import Pair

pytestmark = pytest.mark.interop

MODEL = "kimi_k25"
END_S = 20.0
"""Nobody waits longer than this for the end of an open request; it takes a fraction, see docs/relay.md."""


class OpenStream:
    """A stream that never ends by itself, read on a thread."""

    def __init__(self, pair: Pair) -> None:
        self.events = 0
        self.last: object = None
        self._pair = pair
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        wait_for("an open stream", lambda: self.events > 2, 15, logs=pair.programs)

    def _read(self) -> None:
        try:
            with self._pair.gateway.stream("mode=hang", max_tokens=30000, timeout=60) as stream:
                for event in stream:
                    self.events += 1
                    self.last = event
        except (OSError, HTTPException) as error:
            self.last = error

    def wait_end(self) -> float:
        """Wait for its end; the seconds that it took."""
        return wait_for(
            "the end of an open stream", lambda: not self._thread.is_alive(), END_S, logs=self._pair.programs
        )


Report = Callable[[str, float], None]


@pytest.fixture
def report(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Iterator[Report]:
    """Writes times to the terminal, for people: how long what was open took to end, and until new answers came."""
    lines = []

    def add(what: str, seconds: float) -> None:
        record_property(what, round(seconds, 2))
        lines.append(f"{what} {seconds:.2f} s")

    yield add
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n  {request.node.name}: {', '.join(lines)}")


@contextmanager
def broken(pair: Pair, report: Report) -> Iterator[None]:
    """Do something to one of the processes while a request is open; then that request ends."""
    stream = OpenStream(pair)
    yield
    report("open requests end after", stream.wait_end())


@pytest.fixture(params=BUILDS[:2])
def relay(request: pytest.FixtureRequest, pair: Callable[..., Pair]) -> Pair:
    """A pair of each build that is told apart by how it takes a death."""
    return pair(request.param, MODEL, relay=True, sets=("shutdown.grace_s=1",))


def test_engine_killed(relay: Pair, report: Report) -> None:
    with broken(relay, report):
        relay.engine.kill()
    relay.wait_log("the engine is gone")
    relay.start_engine()
    report("after the engine's start, answers", relay.wait_answer())


def test_engine_ends(relay: Pair, report: Report) -> None:
    with broken(relay, report):
        assert relay.engine.stop() == 0
    relay.start_engine()
    report("after the engine's start, answers", relay.wait_answer())


def test_engine_killed_by_a_request(relay: Pair, report: Report) -> None:
    """The very request that the engine dies of has its end, too."""
    with broken(relay, report):
        answer = relay.gateway.chat("mode=die", timeout=20)
        report("the request that killed it ends after", answer.seconds)
    assert not relay.engine.running or relay.engine.stop() != 0
    relay.start_engine()
    report("after the engine's start, answers", relay.wait_answer())


def test_gateway_restarted(relay: Pair, report: Report) -> None:
    with broken(relay, report):
        rid = relay.events()[-1]["rid"]
        relay.gateway.restart()
    report("after the gateway's start, answers", relay.wait_answer())
    aborted = relay.wait_event("abort")
    assert rid in [event["rid"] for event in aborted], "a request of the gateway that is gone is left in the engine"


def test_sidecar_ends(relay: Pair, report: Report) -> None:
    assert relay.sidecar is not None
    with broken(relay, report):
        assert relay.sidecar.stop() == 0
    relay.start_sidecar()
    report("after the sidecar's start, answers", relay.wait_answer())
    assert len(relay.events("connected")) == 1, "the engine was not to be restarted"


def test_sidecar_killed(relay: Pair, report: Report) -> None:
    assert relay.sidecar is not None
    with broken(relay, report):
        rid = relay.events()[-1]["rid"]
        relay.sidecar.kill()
        relay.start_sidecar()
    report("after the sidecar's start, answers", relay.wait_answer())
    assert len(relay.events("connected")) == 1, "the engine was not to be restarted"
    aborted = relay.wait_event("abort")
    assert rid in [event["rid"] for event in aborted], "a request of the earlier process is left in the engine"


def test_engine_stands_still(pair: Callable[..., Pair], report: Report) -> None:
    relay = pair(BUILDS[1], MODEL, relay=True, sets=("egress.stall_timeout_s=2",))
    with broken(relay, report):
        relay.engine.freeze()
        image = png(700, 700)  # large enough to fill what lies between the two
        clients = [threading.Thread(target=relay.gateway.chat, args=(image, "?")) for _ in range(12)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(END_S)
        assert not any(client.is_alive() for client in clients)
    relay.wait_log("has taken nothing for")
    relay.engine.thaw()
    report("after the engine goes on, answers", relay.wait_answer())


def test_traffic_goes_on_around_faults(pair: Callable[..., Pair]) -> None:
    """Clients that never stop asking: every request has an end, and the last ones are answered."""
    relay = pair(BUILDS[1], MODEL, relay=True, sets=("shutdown.grace_s=1",))
    stop = threading.Event()
    statuses: list[object] = []

    def ask() -> None:
        while not stop.is_set():
            try:
                statuses.append(relay.gateway.chat("Say hi.", timeout=20).status)
            except TimeoutError:
                statuses.append("hung")
            except (OSError, HTTPException):
                statuses.append("refused")
            stop.wait(0.02)

    clients = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for client in clients:
        client.start()
    assert relay.sidecar is not None
    relay.sidecar.kill()
    relay.start_sidecar()
    relay.wait_answer()
    relay.engine.kill()
    relay.start_engine()
    relay.wait_answer()
    relay.gateway.restart()
    relay.wait_answer()
    wait_for("answers to all", lambda: statuses[-20:] == [200] * 20, 30, logs=relay.programs)
    stop.set()
    for client in clients:
        client.join(30)
        assert not client.is_alive()
    assert "hung" not in statuses
