"""What an operator has decided, as far as the rules and the materialization ask for it. Frozen."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from sidecar.wire.framing import Framing


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one message: bytes of all frames, frames, media items, containers inside one another."""

    message_bytes: int = 2**30
    frames: int = 4096
    items: int = 1024
    nesting: int = 32


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that the pure core obeys. Names and meanings are those of the configuration keys."""

    ingress_framing: Framing = Framing.NATIVE
    egress_framing: Framing = Framing.NATIVE
    engine_kind: Literal["tokenspeed", "vllm", "sglang"] = "tokenspeed"
    role: Literal["colocated", "prefill", "decode"] = "colocated"
    language_model_only: bool = False
    max_model_len: int | None = None
    output_logprobs: bool = False
    finalize_sampling: bool = True
    upstream: Literal["complete", "passthrough"] = "complete"
    mrope_ownership: Literal["any-field", "positions"] = "any-field"
    hash: Literal["canonical", "tokenspeed"] = "canonical"
    trust_client_hash: bool = True
    hoist_bytes: int = 32768
    expand_placeholders: bool = True
    text_requests: Literal["forward", "reject"] = "forward"
    token_ids: Literal["strict", "trusted"] = "strict"
    control_tags: frozenset[str] = frozenset({"AbortReq"})
    shared_memory: Literal["check", "forward", "refuse"] = "check"
    shared_memory_pattern: re.Pattern[str] = re.compile(r"^(psm|smg|tokenspeed)[A-Za-z0-9_.-]*$")
    unlink_refused: bool = True
    limits: Limits = field(default_factory=Limits)
