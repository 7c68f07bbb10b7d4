"""What processing a message depends on besides its bytes: the model, the policy, and what is remembered."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from sidecar.admission.memory import ContentMemory, RidMemory
from sidecar.admission.policy import Limits, Policy
from sidecar.admission.shm import SegmentMemory, SegmentProbe, SegmentStat
from sidecar.materialize.hashing import Rest, no_rest
from sidecar.materialize.mrope import Plan, Planner, bind, fill_numpy
from sidecar.materialize.placeholders import Encoder, NativePlaceholder, native_placeholder
from sidecar.model import ModelSpec
from sidecar.settings import Settings
from sidecar.wire.framing import Framing
from sidecar.wire.native import Tail


class NoSegments:
    """A probe for a place without shared memory."""

    def stat(self, name: str) -> SegmentStat | None:
        """Nothing is there."""
        return None

    def unlink(self, name: str) -> None:
        """Nothing is removed."""


def _no_time() -> float:
    return 0.0


@dataclass(slots=True)
class Context:
    """The model, the policy, the memories, and the few things that the core is lent.

    `now` is a steady clock in seconds, `probe` looks at shared memory, `fill` writes out a plan of
    M-RoPE positions (on whatever device), `rest` is called between the pieces of a long hash. `planner` is
    None for a model without M-RoPE, `native` the model's own placeholder where the engine searches for it,
    `encoder` the tokenizer of a model whose full sequence has text in it. The memories belong to one
    thread: they are asked by any, and written by `pipeline.commit` alone. `tails` are the ends of text
    requests that have passed every rule; they and `express` belong to `dialects.express`.
    """

    spec: ModelSpec
    policy: Policy = field(default_factory=Policy)
    planner: Planner | None = None
    now: Callable[[], float] = _no_time
    probe: SegmentProbe = field(default_factory=NoSegments)
    fill: Callable[[Plan], NDArray[Any]] = fill_numpy
    rest: Rest = no_rest
    native: NativePlaceholder | None = None
    encoder: Encoder | None = None
    rids: RidMemory = field(default_factory=lambda: RidMemory(30.0))
    contents: ContentMemory = field(default_factory=lambda: ContentMemory(30.0))
    segments: SegmentMemory = field(default_factory=SegmentMemory)
    tails: dict[bytes, Tail] = field(default_factory=dict)
    express: Any = field(default=None, init=False)

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        spec: ModelSpec,
        *,
        now: Callable[[], float] = _no_time,
        probe: SegmentProbe | None = None,
        fill: Callable[[Plan], NDArray[Any]] = fill_numpy,
        rest: Rest = no_rest,
        encoder: Encoder | None = None,
        exact_rids: bool = False,
    ) -> Context:
        """The context of a configuration. `exact_rids` is for a shell that sees the engine's outputs.

        Raises `ConfigError` for a model whose metadata the engine's placeholders cannot be made from.
        """
        window = settings.admission.duplicate_window_s
        family = spec.mrope_family
        return cls(
            spec=spec,
            policy=policy_of(settings),
            planner=bind(family, spec.config, settings.materialize.mrope_reference) if family is not None else None,
            now=now,
            probe=probe if probe is not None else NoSegments(),
            fill=fill,
            rest=rest,
            native=native_placeholder(spec, settings.engine.kind, encoder),
            encoder=encoder,
            rids=RidMemory(window, exact=exact_rids),
            contents=ContentMemory(window),
        )


def policy_of(settings: Settings) -> Policy:
    """The part of a configuration that the pure core obeys."""
    engine, materialize, admission, limits = settings.engine, settings.materialize, settings.admission, settings.limits
    relay = settings.mode == "relay"
    egress = Framing.TYPED if relay else Framing(settings.egress.framing)
    finalize = engine.finalize_sampling
    return Policy(
        ingress_framing=Framing.TYPED if relay else Framing(settings.ingress.framing),
        egress_framing=egress,
        engine_kind=engine.kind,
        role=engine.role,
        language_model_only=engine.language_model_only,
        max_model_len=engine.max_model_len,
        output_logprobs=engine.output_logprobs,
        finalize_sampling=finalize == "always" or (finalize == "auto" and egress is Framing.NATIVE),
        upstream=materialize.upstream,
        mrope_ownership=materialize.mrope_ownership,
        hash=materialize.hash,
        trust_client_hash=materialize.trust_client_hash,
        hoist_bytes=materialize.hoist_bytes,
        expand_placeholders=materialize.expand_placeholders,
        text_requests=admission.text_requests,
        token_ids=admission.token_ids,
        control_tags=frozenset(admission.control_tags),
        shared_memory=admission.shared_memory,
        shared_memory_pattern=re.compile(admission.shared_memory_pattern),
        unlink_refused=admission.unlink_refused,
        limits=Limits(limits.message_bytes, limits.frames, limits.items, limits.nesting),
    )
