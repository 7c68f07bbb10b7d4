"""The engine process as seen from the tests: ask it what becomes of messages."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgpack

from sidecar.model import ModelSpec
from sidecar.wire.framing import Framing
from sidecar.wire.tokenspeed import Modality

HOME_VARIABLE: Final = "INTEROP_HOME"
"""Names the folder of the virtual environments that scripts/interop-venvs.sh has made."""


def engine_python() -> str:
    """The Python of the environment that holds the engine."""
    return str(Path(os.environ.get(HOME_VARIABLE, ".interop")) / "engine" / "bin" / "python")


class Engine:
    """A process of `worker.py`; every question starts from a fresh scheduler."""

    def __init__(self, python: str | None = None) -> None:
        path = python or engine_python()
        here = Path(__file__).parent
        self._process = subprocess.Popen(
            [path, str(here / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", ""), "CUDA_VISIBLE_DEVICES": "", "HOME": os.environ.get("HOME", "/")},
        )

    def receive(
        self,
        messages: Sequence[Sequence[bytes]],
        framing: Framing,
        spec: ModelSpec | None = None,
        *,
        facts: bool = False,
        max_model_len: int | None = None,
    ) -> dict[str, Any]:
        """What one turn of the engine's event loop makes of messages.

        `died` says that its process ends, with the exception; else `results` has an entry a message
        and `terminal` the outputs that the engine sent.
        """
        question: dict[str, Any] = {
            "op": "receive",
            "messages": [[bytes(frame) for frame in message] for message in messages],
            "framing": framing.value,
            "facts": facts,
            "max_model_len": max_model_len,
        }
        if spec is not None:
            shape = spec.feature_shapes.get(Modality.IMAGE)
            question |= {"vocab": spec.vocab_size, "mrope": spec.mrope_family is not None}
            if shape is not None and spec.mrope_family == "qwen3_5":
                question |= {"width": shape.tail[-1], "merge": spec.spatial_merge_size}
        return self._ask(question)

    def materialize(self, message: Sequence[bytes], config: Mapping[str, Any]) -> dict[str, Any]:
        """What the engine's own input processor makes of a request in native framing."""
        return self._ask({"op": "materialize", "frames": [bytes(frame) for frame in message], "config": config})

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        pipe, out = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert out is not None
        data = msgpack.packb(question)
        pipe.write(struct.pack("<I", len(data)) + data)
        pipe.flush()
        head = out.read(4)
        if len(head) < 4:
            raise RuntimeError(f"the engine process itself has ended with {self._process.wait()}")
        answer: dict[str, Any] = msgpack.unpackb(out.read(struct.unpack("<I", head)[0]), strict_map_key=False)
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
