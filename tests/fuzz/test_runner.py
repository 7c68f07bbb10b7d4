"""A bounded run of the mutation runner, and that it would find something."""

from __future__ import annotations

import random

import pytest

from sidecar import pipeline
from sidecar.outcome import Kind, Result
from sidecar.wire.framing import Framing
from tests.cases import goldens
from tests.fuzz.corpus import framed, seeds
from tests.fuzz.mutate import mutate, pack, parse
from tests.fuzz.refusals import REFUSAL_BYTES, measure
from tests.fuzz.runner import Finding, Fuzzer
from tests.hostile import HOSTILE


def test_a_few_thousand_mutated_messages() -> None:
    with Fuzzer(seed=2026) as fuzzer:
        for _ in range(4000):
            fuzzer.step()
    assert fuzzer.accounted
    assert fuzzer.received[Kind.GENERATE] > 3000
    reasons = {reason for (_, result, reason), _ in fuzzer.counts.items() if result is Result.REJECTED}
    assert len(reasons) > 15


def test_what_is_mutated_was_valid() -> None:
    recorded = {*goldens(), *(f"{name}, materialized" for name in goldens())}
    with Fuzzer(seed=1) as fuzzer:
        for seed in seeds():
            for framing in Framing:
                outcome = fuzzer.check(framed(seed, framing), fuzzer._context(seed, framing))
                if seed.name not in recorded and seed.name != "validation_error":
                    assert outcome.result is Result.FORWARDED, (seed.name, outcome.message)
    assert fuzzer.counts[Kind.GENERATE, Result.FORWARDED, None] > 2 * 100


def test_a_run_repeats() -> None:
    for seed in seeds()[:20]:
        first = mutate(seed.payload, seed.aux, random.Random(5))
        assert first == mutate(seed.payload, seed.aux, random.Random(5))
        assert pack(parse(seed.payload)) is not None


def test_an_exception_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("deep inside")

    monkeypatch.setattr(pipeline._BY_NAME["tokenspeed"].__class__, "process", fail)
    with Fuzzer(seed=3) as fuzzer:
        good = framed(seeds()[0], Framing.NATIVE)
        with pytest.raises(Finding, match="ZeroDivisionError deep inside"):
            fuzzer.check(good, fuzzer._context(seeds()[0], Framing.NATIVE))


def test_claims_cost_little_memory() -> None:
    for hostile in HOSTILE:
        if "claim" in hostile.name:
            assert measure(hostile, Framing.NATIVE).peak < REFUSAL_BYTES
