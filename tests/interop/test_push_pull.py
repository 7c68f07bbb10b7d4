"""Push-pull mode into the real engine's receiver and request handler: what would end it does not, and all ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
import zmq

from sidecar.wire.framing import Framing
from tests.build import QWEN, QWEN_CONFIG, flat
from tests.hostile import HOSTILE, Hostile
from tests.interop.engine.client import Engine
from tests.interop.processes import Program, free_port, wait_for
from tests.interop.setup import SIDECAR
from tests.service.messages import control, slow, text

pytestmark = pytest.mark.interop

# Those of one model, so that one process serves all; what depends on an earlier message needs the memory of rids.
CASES = [one for one in HOSTILE if one.spec is QWEN and not (one.rules or one.segments or one.first)]
TIMEOUT_MS = 10_000
LAST = [control()]
"""A barrier: it leaves after all that came before it."""


class Between:
    """A sidecar process between a PUSH and a PULL of the test's."""

    def __init__(self, folder: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        model = folder / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(dict(QWEN_CONFIG)))
        sets = [
            f"ingress.bind=ipc://{folder}/in.sock",
            f"egress.bind=ipc://{folder}/out.sock",
            f"model.path={model}",
            f"admin.bind=127.0.0.1:{free_port()}",
            "admission.duplicate_window_s=0",
        ]
        self._program = Program(
            [SIDECAR, "serve", *(part for key in sets for part in ("--set", key))], folder / "sidecar.log"
        )
        wait_for("the sidecar", lambda: "ready for messages" in self._program.output(), logs=[self._program])
        self._push = context.socket(zmq.PUSH)
        self._push.connect(f"ipc://{folder}/in.sock")
        self._pull = context.socket(zmq.PULL)
        self._pull.connect(f"ipc://{folder}/out.sock")

    def through(self, *messages: list[bytes]) -> list[list[bytes]]:
        """What comes out for messages."""
        for message in (*messages, LAST):
            self._push.send_multipart(message)
        passed = []
        while not passed or passed[-1] != LAST:
            assert self._pull.poll(TIMEOUT_MS), self._program.output()
            passed.append(self._pull.recv_multipart())
        return passed[:-1]

    def close(self) -> None:
        """End the process and the sockets."""
        self._push.close(0)
        self._pull.close(0)
        self._program.close()


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Between]:
    """One process for all messages."""
    with zmq.Context() as context:
        made = Between(tmp_path_factory.mktemp("push-pull"), context)
        yield made
        made.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A process of the engine's code."""
    with Engine() as process:
        yield process


@pytest.mark.parametrize("hostile", CASES, ids=lambda hostile: hostile.name)
def test_what_would_end_the_engine_ends_as_an_abort(hostile: Hostile, between: Between, engine: Engine) -> None:
    messages = between.through(flat(hostile.frames(Framing.NATIVE)))
    assert len(messages) == (hostile.reason is not None)
    answer = engine.receive(messages, Framing.NATIVE, hostile.spec)
    assert "died" not in answer, answer
    ended = [(rids, reasons[0]["type"]) for _, rids, reasons, *_ in answer["terminal"]]
    assert ended == ([] if hostile.reason is None else [(["r"], "abort")])


def test_text_and_media_arrive_as_the_engine_makes_them(between: Between, engine: Engine) -> None:
    messages = between.through([slow("m")], [text("t")])
    answer = engine.receive(messages, Framing.NATIVE, QWEN, facts=True)
    assert "died" not in answer, answer
    assert answer["terminal"] == []
    assert [result["outcome"] for result in answer["results"]] == ["generate", "generate"]


def test_aborts_and_control_messages_pass(between: Between, engine: Engine) -> None:
    sent = [[msgpack.packb(["AbortReq", "nobody", None])], [msgpack.packb(["GetInternalStateReq", None, None])]]
    passed = between.through(*sent)
    assert passed == sent
    assert "died" not in engine.receive(passed, Framing.NATIVE, QWEN)
