"""Short ways to run one message through the pipeline."""

from __future__ import annotations

from typing import Any

from sidecar.context import Context
from sidecar.errors import Reason
from sidecar.outcome import Outcome, Result
from sidecar.pipeline import run
from sidecar.wire.framing import Framing
from sidecar.wire.tokenspeed import Request
from tests.build import (
    IMAGE,
    context,
    decoded,
    frames,
    item,
    media,
    prompt,
    request,
    sent,
)

SHM = {"shm_name": "psm_1", "shape": [16, 24], "dtype": "float32"}
UNPADDED = prompt(11, 12, (IMAGE, 4), 13, 14)


def outcome(message: Any, rules: Context | None = None, *aux: bytes) -> Outcome:
    rules = rules or context()
    return run(frames(message, *aux, framing=rules.policy.ingress_framing), rules)


def refusal(message: Any, rules: Context | None = None, *aux: bytes) -> tuple[Reason | None, str]:
    found = outcome(message, rules, *aux)
    assert found.result is Result.REJECTED, found
    return found.reason, found.message


def media_of(found: Outcome, framing: Framing = Framing.NATIVE) -> Any:
    return decoded(sent(found), framing)[Request.MULTIMODAL_INPUTS]


def upstream(**fields: Any) -> Any:
    entry = item(hash=5, pad=1_000_005)
    return request(ids=prompt(11, 12, (1_000_005, 4), 13, 14), unpadded=UNPADDED, mm=media(entry, **fields))
