"""The media gate: what may carry media, and what happens to a request that does."""

from __future__ import annotations

from enum import Enum, auto

from sidecar.admission.policy import Policy
from sidecar.errors import Reason, Rejection
from sidecar.model import ModelSpec


class Gate(Enum):
    """What the gate decides about a request that it lets through."""

    TEXT = auto()
    STRIP = auto()
    MATERIALIZE = auto()


def check_gate(has_media: bool, spec: ModelSpec, policy: Policy) -> Gate:
    """`text_request` and `text_only_model`.

    A decode engine that skips its media encoders only sizes its cache by the expanded prompt: its
    requests lose their media and keep their ids.
    """
    if not has_media:
        if policy.text_requests == "reject":
            raise Rejection(
                Reason.TEXT_REQUEST,
                "the request carries no media, and this pool serves only requests that do (admission.text_requests)",
            )
        return Gate.TEXT
    if not spec.multimodal:
        raise Rejection(Reason.TEXT_ONLY_MODEL, "multimodal_inputs were provided for a text-only model")
    if policy.language_model_only:
        if policy.role == "decode":
            return Gate.STRIP
        raise Rejection(
            Reason.TEXT_ONLY_MODEL,
            "multimodal_inputs were provided for a text-only model: the engine runs with language_model_only",
        )
    return Gate.MATERIALIZE
