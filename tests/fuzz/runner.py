"""Feeds mutated messages to the pipeline, and holds what every message must do."""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from sidecar.admission.memory import ContentMemory, RidMemory
from sidecar.context import Context
from sidecar.dialects.express import Express
from sidecar.errors import Reason
from sidecar.outcome import Kind, Outcome, Result
from sidecar.pipeline import run
from sidecar.wire.framing import Framing
from tests.build import context, flat
from tests.fuzz.corpus import Seed, framed, seeds
from tests.fuzz.mutate import mutate

SLOW_S: Final = 0.5
"""A mutated seed is a few kilobytes: one that takes this much processor time would block the event loop."""

LIVE_S: Final = 30.0

VARIANTS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {},
    {"mrope_ownership": "positions"},
    {"trust_client_hash": False},
    {"upstream": "passthrough"},
    {"hoist_bytes": 1},
    {"hoist_bytes": 0, "expand_placeholders": False},
    {"role": "decode", "language_model_only": True},
    {"text_requests": "reject", "max_model_len": 64},
    {"engine_kind": "vllm"},
    {"engine_kind": "sglang"},
    {"token_ids": "trusted"},
)
"""Policies apart from the default one. The last ones are for other engines, and for operators who know better."""

TOKENSPEED_VARIANTS: Final = 9


class Finding(AssertionError):  # noqa: N818 - the field's word for it
    """A message that did not do what every message must."""


class _Errors(logging.Handler):
    """Collects the log lines by which the pipeline reports an exception that is no refusal."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class Fuzzer:
    """A run: one random generator, one long-lived context for each seed and framing, one count."""

    def __init__(self, seed: int, engine: Any = None) -> None:
        self.rng = random.Random(seed)
        self.engine = engine
        self.counts: Counter[tuple[Kind, Result, Reason | None]] = Counter()
        self.received: Counter[Kind] = Counter()
        self.materialized = 0
        self.short = 0
        self.clock = 0.0
        self._contexts: dict[tuple[str, Framing, int], Context] = {}
        self._errors = _Errors()
        self._logger = logging.getLogger("sidecar")

    def __enter__(self) -> Fuzzer:
        self._logger.addHandler(self._errors)
        self._logger.propagate, self._propagate = False, self._logger.propagate
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self._errors)
        self._logger.propagate = self._propagate

    def step(self) -> None:
        """Mutate and process one message; every so often the unchanged seed behind it."""
        rng = self.rng
        seed = rng.choice(seeds())
        framing = rng.choice(tuple(Framing))
        variants = TOKENSPEED_VARIANTS if self.engine is not None else len(VARIANTS)
        rules = self._context(seed, framing, rng.randrange(variants))
        payload, aux = mutate(seed.payload, seed.aux, rng)
        message = framed(seed._replace(payload=payload, aux=aux), framing)
        self.clock += rng.choice((0.0, 1.0, LIVE_S, LIVE_S))
        outcome = self.check(message, rules, views=rng.random() < 0.3)
        if self.engine is not None and outcome.messages:
            check_engine(self.engine, message, outcome, rules, seed)
        if rng.random() < 0.02:
            self.clock += LIVE_S
            good = framed(seed, framing)
            expected = run(good, _alone(rules))
            got = self.check(good, rules)
            if (got.result, got.reason) != (expected.result, expected.reason):
                raise Finding(f"{seed.name}: {got.result} {got.reason} {got.message} behind a mutated message")

    def _context(self, seed: Seed, framing: Framing, variant: int = 0) -> Context:
        key = (seed.name, framing, variant)
        if key not in self._contexts:
            changes = {
                "hash": "tokenspeed" if self.engine is not None else "canonical",
                "shared_memory": "forward" if self.engine is None else "refuse",
                "role": "decode" if seed.name.endswith("decode") else "colocated",
            }
            fresh = context(seed.spec, framing, **{**changes, **VARIANTS[variant]})
            self._contexts[key] = dataclasses.replace(fresh, now=lambda: self.clock)
        return self._contexts[key]

    def check(self, message: Sequence[bytes], rules: Context, *, views: bool = False) -> Outcome:
        """Process a message and hold it to what holds for all. Raises `Finding`."""
        copies = [bytes(bytearray(frame)) for frame in message]
        short = Express.of(rules).read(list(message), sum(map(len, message)))
        started = time.process_time()
        outcome = run([memoryview(frame) for frame in message] if views else message, rules)
        took = time.process_time() - started
        if took > SLOW_S:
            raise Finding(f"took {took:.2f} s")
        self._no_exception()
        if list(message) != copies:
            raise Finding("the frames that came in were changed")
        if short is not None:
            self.short += 1
            rid, leaves, _ = short
            long = run(message, _alone(rules))
            if long.result is not Result.FORWARDED or rid != long.rid or flat(leaves) != flat(long.messages[0]):
                raise Finding(f"the short way lets it through, the long one says {long.result} {long.reason}")
        envelope = outcome.envelope
        self.received[envelope.kind if envelope is not None else outcome.kind] += 1
        self.counts[outcome.kind, outcome.result, outcome.reason] += 1
        sent = len(outcome.messages)
        if outcome.kind is Kind.GENERATE:
            if sent != (0 if outcome.result is Result.DROPPED else 1):
                raise Finding(f"{outcome.result} with {sent} messages")
            if outcome.result is Result.DROPPED and outcome.reason is not Reason.DUPLICATE_RID:
                raise Finding(f"a request with a rid was dropped: {outcome.reason}")
            if sent:
                self._check_again(outcome, rules)
        elif outcome.result is Result.REJECTED:
            raise Finding(f"{outcome.kind} was rejected")
        return outcome

    def _check_again(self, outcome: Outcome, rules: Context) -> None:
        """What leaves, fed in again, leaves as the same bytes."""
        first = flat(outcome.messages[0])
        again = run(first, _alone(rules))
        self._no_exception()
        if not again.messages or flat(again.messages[0]) != first:
            raise Finding(f"its own output becomes {again.result} {again.reason} {again.message}")

    def _no_exception(self) -> None:
        if self._errors.records:
            record = self._errors.records.pop()
            self._errors.records.clear()
            kind, error, trace = record.exc_info or (None, None, None)
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
            raise Finding(f"an exception that is no refusal: {kind.__name__ if kind else ''} {error} at {place}")

    @property
    def accounted(self) -> bool:
        """Whether every generate and every unreadable message has exactly one outcome."""
        outcomes = sum(n for (kind, _, _), n in self.counts.items() if kind in (Kind.GENERATE, Kind.UNREADABLE))
        return outcomes == self.received[Kind.GENERATE] + self.received[Kind.UNREADABLE]


def _alone(rules: Context) -> Context:
    """The same rules without a memory."""
    return dataclasses.replace(rules, rids=RidMemory(0), contents=ContentMemory(0), tails={})


def check_engine(engine: Any, message: Sequence[bytes], outcome: Outcome, rules: Context, seed: Seed) -> None:
    """Let the real engine receive what leaves. Raises `Finding` if it ends, or does not answer a refusal."""
    if outcome.kind is not Kind.GENERATE or outcome.dialect != "tokenspeed":
        return
    framing = rules.policy.egress_framing
    left = flat(outcome.messages[0])
    answer = engine.receive([left], framing, rules.spec, facts=True)
    if "died" in answer:
        raise Finding(f"{outcome.result}, and the engine ends at its {answer['stage']}: {answer['died']}")
    (result,) = answer["results"]
    if result["outcome"] != "generate":
        raise Finding(f"{outcome.result}, and the engine cannot decode it")
    if result["rid"] != outcome.rid:
        raise Finding(f"the engine reads the rid {result['rid']!r}, not {outcome.rid!r}")
    if outcome.result is Result.REJECTED:
        if not result["error"] or [rids for _, rids, *_ in answer["terminal"]] != [[outcome.rid]]:
            raise Finding(f"the engine does not end the refused request: {answer['terminal']}")
        return
    own_way = outcome.delta_without_positions or not rules.policy.trust_client_hash
    if seed.config is None or outcome.substituted == 0 or own_way:
        return
    own = engine.materialize(message[1:] if framing is Framing.TYPED else message, seed.config)
    if "died" in own:
        return  # metadata as plain numbers, which its decoder does not take
    difference = differs(own["result"], result)
    if difference:
        raise Finding(f"the engine's own materialization differs in {difference}")


def differs(own: dict[str, Any], ours: dict[str, Any]) -> str:
    """The names of what differs between the engine's own materialization and the sidecar's."""
    names = [name for name in ("input_ids", "unpadded") if own[name] != ours[name]]
    names += [name for name in ("positions", "delta", "scalar") if own["media"][name] != ours["media"][name]]
    for index, (theirs, mine) in enumerate(zip(own["media"]["items"], ours["media"]["items"], strict=True)):
        names += [f"item {index}: {name}" for name in theirs if theirs[name] != mine[name]]
    return ", ".join(names)
