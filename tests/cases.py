"""Recorded messages: requests and results of the real engine, and frames of the real gateway."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sidecar.admission.policy import Policy
from sidecar.context import Context
from sidecar.model import ModelSpec, from_config
from sidecar.recording import Reader
from sidecar.wire.framing import Framing
from tests.build import QWEN_CONFIG, context_of, policy

DATA = Path(__file__).parent / "data"


class Golden(NamedTuple):
    """A request in native framing, and the frames that the engine's own input processor made of it.

    `out` is empty where the engine refused the request. `quirk` says where it should have.
    """

    name: str
    frames: list[bytes]
    out: list[bytes]
    facts: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        """The model's config; cases that are about the wire alone have none of their own."""
        return self.facts.get("config") or dict(QWEN_CONFIG)

    def context(self, **changes: Any) -> Context:
        """A fresh context of the case's model and gate; `changes` are those of the policy."""
        gate = self.facts.get("gate") or {}
        spec = model(json.dumps(self.config))
        if gate.get("is_multimodal") is False:
            spec = dataclasses.replace(spec, multimodal=False)
        decode = "decode" in (gate.get("disaggregation_mode"), gate.get("role"))
        settings = {
            "hash": "tokenspeed",
            "shared_memory": "forward",
            "language_model_only": bool(gate.get("language_model_only")),
            "role": "decode" if decode else "colocated",
        }
        return context_of(spec, policy(**{**settings, **changes}))


class Capture(NamedTuple):
    """A message of the gateway in typed framing: `case` is the run it is from, `message` its place there."""

    case: str
    message: str
    frames: list[bytes]
    spec: ModelSpec

    @property
    def abort(self) -> bool:
        """Whether it is an ABORT."""
        return self.message.endswith("ABORT")

    def context(self, rules: Policy | None = None) -> Context:
        """A fresh context of the model that the gateway served."""
        return context_of(self.spec, rules or policy(Framing.TYPED))


@cache
def model(config: str) -> ModelSpec:
    """The model of a config in JSON."""
    return from_config(json.loads(config))


@cache
def goldens() -> dict[str, Golden]:
    """All cases by name."""
    with np.load(DATA / "goldens" / "tokenspeed.npz") as arrays, open(DATA / "goldens" / "tokenspeed.jsonl") as lines:
        found = {}
        for line in lines:
            facts = json.loads(line)
            name = facts["name"]
            found[name] = Golden(name, _frames(arrays, f"{name}/in"), _frames(arrays, f"{name}/out"), facts)
    return found


def _frames(arrays: Any, prefix: str) -> list[bytes]:
    frames: list[bytes] = []
    while (key := f"{prefix}/{len(frames)}") in arrays:
        frames.append(arrays[key].tobytes())
    return frames


@cache
def captures() -> list[Capture]:
    """All messages from the gateway to the engine, in their order."""
    return list(_captures())


def _captures() -> Iterator[Capture]:
    with Reader(DATA / "captures" / "gateway.rec") as records:
        for record in records:
            facts = record.metadata
            config = (DATA / "models" / str(facts["model"]) / "config.json").read_text()
            frames = [bytes(frame) for frame in record.frames]
            yield Capture(str(facts["case"]), str(facts["message"]), frames, model(config))
