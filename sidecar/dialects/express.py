"""The short way: text requests in which everything but the rid and the ids has passed before.

What stands behind a text request's ids, its tail, has the sampling params and the flags. Whether it may
pass and what is edited in it depends on its bytes alone. So the tails of requests that took the long way
are remembered, and one that comes again leaves the ids, the length and the seed to look at: 1.0 us in
place of 8.5 for a request of 190 ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from sidecar.admission.policy import Policy
from sidecar.admission.prompt import RESERVED_TOKENS, vocabulary_limit
from sidecar.context import Context
from sidecar.wire.framing import TYPE_ADD, Framing
from sidecar.wire.msgpack import Buffer
from sidecar.wire.native import Tail
from sidecar.wire.text import pass_text

DIALECT: Final = "tokenspeed"

MAX_TAILS: Final = 1024
"""How many tails are remembered; at the bound, all are forgotten."""

MAX_BYTES: Final = 32 * 1024
"""A longer message has so many ids that to look at them is all that counts, and the long way does it once."""

Passage: TypeAlias = tuple[str, Sequence[Buffer], int]
"""(rid, the frames that leave, their bytes)."""


class Express:
    """The short way in a context; what its policy says is looked up once."""

    __slots__ = ("_context", "_frames", "_limit", "_longest", "_max_bytes", "_native", "_policy", "_same", "_typed")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._bind(context.policy)

    @classmethod
    def of(cls, context: Context) -> Express:
        """The one of a context."""
        if context.express is None:
            context.express = cls(context)
        express: Express = context.express
        return express

    def _bind(self, policy: Policy) -> None:
        self._policy = policy
        self._typed = policy.ingress_framing is Framing.TYPED
        self._native = policy.egress_framing is Framing.NATIVE
        self._same = policy.egress_framing is policy.ingress_framing
        self._frames = 2 if self._typed else 1
        limits = policy.limits
        self._max_bytes = min(limits.message_bytes, MAX_BYTES) if limits.frames >= self._frames else 0
        self._limit = vocabulary_limit(self._context.spec) if policy.token_ids == "strict" else None
        longest = policy.max_model_len
        self._longest = longest - RESERVED_TOKENS if longest is not None else None

    def read(self, frames: Sequence[Buffer], nbytes: int) -> Passage | None:
        """What a text request with a known tail becomes: the same as on the long way, which None leaves it to.

        `nbytes` are those of all frames. The rid is not yet claimed.
        """
        context = self._context
        if context.policy is not self._policy:
            self._bind(context.policy)
        if len(frames) != self._frames or nbytes > self._max_bytes:
            return None
        payload = frames[-1]
        if type(payload) is not bytes or (self._typed and frames[0] != TYPE_ADD):
            return None
        passed = pass_text(payload, context.tails, self._limit, self._longest)
        if passed is None:
            return None
        rid, leaves = passed
        if self._same and leaves is payload:
            return rid, frames, nbytes
        if self._native:
            return rid, (leaves,), len(leaves)
        return rid, (TYPE_ADD, leaves), len(TYPE_ADD) + len(leaves)


def remember_tail(context: Context, tail: bytes, known: Tail) -> None:
    """A request with this tail has passed on the long way, and so will every other."""
    if len(context.tails) >= MAX_TAILS:
        context.tails.clear()
    context.tails[tail] = known
