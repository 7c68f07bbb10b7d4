"""Rules about M-RoPE fields that come with a request, and who owns the positions."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.admission.policy import Policy
from sidecar.errors import Reason, Rejection
from sidecar.wire.media import MediaView
from sidecar.wire.tensors import Tensor

_INT64_LIMIT: Final = 2**63


class Ownership(Enum):
    """Who says where the prompt's tokens stand.

    COMPUTE: nobody yet, all three fields are computed. PAYLOAD: the payload's positions are kept.
    DELTA_ONLY: the payload has a delta but no positions, and none are added.
    """

    COMPUTE = auto()
    PAYLOAD = auto()
    DELTA_ONLY = auto()


def check_positions(media: MediaView, n: int, axes: int, policy: Policy) -> Ownership:
    """`mrope_invalid`: positions that are no integers of shape [axes, n], or a delta without a value."""
    scalar = media.delta_scalar
    if scalar is not None and scalar >= _INT64_LIMIT:
        raise _bad(f"mrope_position_delta_scalar is {scalar}, which does not fit int64")
    if media.delta is not None:
        delta_value(media.delta)
    positions = media.positions
    if positions is not None:
        if positions.shape != (axes, n):
            raise _bad(f"mrope_positions has the shape {list(positions.shape)}; expected [{axes}, {n}]")
        _integers(positions, "mrope_positions")
        return Ownership.PAYLOAD
    if media.delta is None and media.delta_scalar is None:
        return Ownership.COMPUTE
    return Ownership.DELTA_ONLY if policy.mrope_ownership == "any-field" else Ownership.COMPUTE


def check_delta(media: MediaView, computed: int) -> None:
    """`mrope_invalid`: a delta of the payload that is not the one its own prompt and grids make."""
    stated = {"mrope_position_delta_scalar": media.delta_scalar}
    if media.delta is not None:
        stated["mrope_position_delta"] = delta_value(media.delta)
    for name, value in stated.items():
        if value is not None and value != computed:
            raise _bad(f"{name} is {value}; the prompt and its grids make {computed}")


def delta_value(delta: Tensor) -> int:
    """The first value of a delta tensor, as the engine reads it."""
    if not delta.elements:
        raise _bad(f"mrope_position_delta has the shape {list(delta.shape)} and no value; expected [1, 1]")
    return int(_integers(delta, "mrope_position_delta").flat[0])


def _integers(tensor: Tensor, name: str) -> NDArray[Any]:
    """The values, proved to survive a cast to int64."""
    values = tensor.array()
    if values.dtype.kind == "f":
        wide = values.astype(np.float64)  # float16 cannot hold the limit itself
        if not bool(np.isfinite(wide).all()) or not bool((np.abs(wide) < _INT64_LIMIT).all()):
            raise _bad(f"{name} is {tensor.dtype} with a value that is no int64")
    elif values.dtype == np.uint64 and values.size and int(values.max()) >= _INT64_LIMIT:
        raise _bad(f"{name} has a value that does not fit int64")
    return values


def _bad(what: str) -> Rejection:
    return Rejection(Reason.MROPE_INVALID, what)
