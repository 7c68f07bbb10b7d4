"""M-RoPE fields that come with a request: all eight combinations, and what is no position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sidecar.admission.positions import Ownership, check_delta, check_positions, delta_value
from sidecar.errors import Reason, Rejection
from tests.build import item, media, media_view, policy, raw, tensor

POSITIONS = tensor(np.arange(24).reshape(3, 8))
DELTA = tensor([[-2]])


def owner(ownership: str = "any-field", n: int = 8, axes: int = 3, **fields: Any) -> Ownership:
    return check_positions(media_view(media(item(), **fields)), n, axes, policy(mrope_ownership=ownership))


@pytest.mark.parametrize("positions", [None, POSITIONS])
@pytest.mark.parametrize("delta", [None, DELTA])
@pytest.mark.parametrize("scalar", [None, -2])
def test_the_table(positions: Any, delta: Any, scalar: Any) -> None:
    fields = {"positions": positions, "delta": delta, "scalar": scalar}
    if positions is not None:
        expected = (Ownership.PAYLOAD, Ownership.PAYLOAD)
    elif delta is None and scalar is None:
        expected = (Ownership.COMPUTE, Ownership.COMPUTE)
    else:
        expected = (Ownership.DELTA_ONLY, Ownership.COMPUTE)
    assert (owner("any-field", **fields), owner("positions", **fields)) == expected


@pytest.mark.parametrize("shape", [(3, 7), (3, 9), (2, 8), (4, 8), (8, 3), (24,), (1, 3, 8), (), (3, 0)])
def test_shapes_of_positions(shape: tuple[int, ...]) -> None:
    with pytest.raises(Rejection) as caught:
        owner(positions=tensor(np.zeros(shape, np.int64)))
    assert caught.value.reason is Reason.MROPE_INVALID
    assert f"mrope_positions has the shape {list(shape)}; expected [3, 8]" in caught.value.message


def test_families_with_four_axes() -> None:
    assert owner(axes=4, positions=tensor(np.zeros((4, 8), np.int64))) is Ownership.PAYLOAD


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "float32", "float64", "bool", "uint64", "float16"])
def test_dtypes_that_become_int64(dtype: str) -> None:
    assert owner(positions=tensor(np.ones((3, 8), dtype))) is Ownership.PAYLOAD


@pytest.mark.parametrize(
    "values",
    [
        np.full((3, 8), np.nan),
        np.full((3, 8), np.inf, np.float32),
        np.full((3, 8), -1e30),
        np.full((3, 8), 2.0**63),
        np.full((3, 8), 2**63, np.uint64),
    ],
)
def test_values_that_do_not(values: Any) -> None:
    with pytest.raises(Rejection) as caught:
        owner(positions=tensor(values))
    assert caught.value.reason is Reason.MROPE_INVALID


def test_an_fp8_position_is_none() -> None:
    with pytest.raises(Rejection) as caught:
        owner(positions=["float8_e5m2", [3, 8], raw(b"\0" * 24)])
    assert caught.value.reason is Reason.MALFORMED_TENSOR


@pytest.mark.parametrize("scalar", [2**63, 2**64 - 1])
def test_a_scalar_that_does_not_fit(scalar: int) -> None:
    for positions in (None, POSITIONS):
        with pytest.raises(Rejection, match=f"scalar is {scalar}, which does not fit int64") as caught:
            owner(positions=positions, scalar=scalar)
        assert caught.value.reason is Reason.MROPE_INVALID
    assert owner(scalar=2**63 - 1) is owner(scalar=-(2**63)) is Ownership.DELTA_ONLY


@pytest.mark.parametrize("shape", [(0,), (0, 1), (1, 0)])
def test_a_delta_without_a_value(shape: tuple[int, ...]) -> None:
    with pytest.raises(Rejection, match="and no value") as caught:
        owner(delta=tensor(np.zeros(shape, np.int64)))
    assert caught.value.reason is Reason.MROPE_INVALID


def delta(values: Any) -> int:
    view = media_view(media(item(), delta=tensor(values)))
    assert view.delta is not None
    return delta_value(view.delta)


def test_a_delta_is_its_first_value() -> None:
    assert [delta([[-60]]), delta(-7), delta([[1, 2], [3, 4]]), delta([5.0])] == [-60, -7, 1, 5]


def test_a_delta_must_be_the_computed_one() -> None:
    check_delta(media_view(media(item(), delta=tensor([[-2]]), scalar=-2)), -2)
    check_delta(media_view(media(item())), 17)
    for fields, what in (
        ({"scalar": 3}, "mrope_position_delta_scalar is 3"),
        ({"delta": tensor([[4]])}, "mrope_position_delta is 4"),
    ):
        with pytest.raises(Rejection, match=f"{what}; the prompt and its grids make -2") as caught:
            check_delta(media_view(media(item(), **fields)), -2)
        assert caught.value.reason is Reason.MROPE_INVALID
