"""Structure fuzzing: valid requests with one node of their tree replaced by anything that msgpack can say."""

from __future__ import annotations

import copy
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.outcome import Result
from sidecar.wire.framing import Framing
from sidecar.wire.tokenspeed import Request
from tests.build import decoded, flat
from tests.fuzz.corpus import Seed, framed, seeds
from tests.fuzz.mutate import Pairs, Raw, pack, parse
from tests.fuzz.runner import Fuzzer

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=16)),
    st.builds(lambda data: Raw(b"\xc7" + bytes([len(data)]) + b"\xff" + data), st.binary(max_size=12)),
    st.builds(lambda data: Raw(bytes([0xA0 | len(data)]) + data), st.binary(max_size=8)),
    st.sampled_from(("image_grid_thw", "float32", "<f4", "int64", "psm_1")),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(st.tuples(st.one_of(st.text(max_size=8), leaves), inner), max_size=3).map(Pairs),
    ),
    max_leaves=8,
)


def places(tree: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """The paths of all nodes; of a long list of numbers, the first and the last."""
    found = [path]
    if isinstance(tree, list):
        keys = range(len(tree)) if len(tree) < 40 else (0, len(tree) - 1)
        for key in keys:
            found += places(tree[key][1] if isinstance(tree, Pairs) else tree[key], (*path, key))
    return found


def replace(tree: Any, path: tuple[int, ...], value: Any) -> Any:
    """The tree with the node at a path replaced."""
    if not path:
        return value
    tree = copy.copy(tree)
    key, *rest = path
    if isinstance(tree, Pairs):
        tree[key] = (tree[key][0], replace(tree[key][1], tuple(rest), value))
    else:
        tree[key] = replace(tree[key], tuple(rest), value)
    return tree


SEEDS = [seed for seed in seeds() if len(seed.payload) < 4000]
PARSED = {seed.name: parse(seed.payload) for seed in SEEDS}
PLACES = {name: places(tree) for name, tree in PARSED.items()}


@st.composite
def spoilt(draw: st.DrawFn) -> tuple[Seed, bytes]:
    """A seed, and its payload with one node replaced."""
    seed = draw(st.sampled_from(SEEDS))
    path = draw(st.sampled_from(PLACES[seed.name]))
    return seed, pack(replace(PARSED[seed.name], path, draw(trees)))


@settings(max_examples=300)
@given(spoilt(), st.sampled_from(tuple(Framing)))
def test_one_replaced_node(case: tuple[Seed, bytes], framing: Framing) -> None:
    seed, payload = case
    with Fuzzer(seed=0) as fuzzer:
        outcome = fuzzer.check(framed(seed._replace(payload=payload), framing), fuzzer._context(seed, framing))
    if outcome.result is Result.REJECTED and outcome.dialect == "tokenspeed":
        fields = decoded(flat(outcome.messages[0]), framing)
        assert fields[Request.INPUT_IDS] == []
        assert fields[Request.VALIDATION_ERROR]
