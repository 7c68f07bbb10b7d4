"""Plans to positions with torch, on any device.

The segments travel as one small table of int64, and one fixed sequence of operations computes every
token: the number of kernel launches does not depend on the number of segments. torch is imported
when the first plan is filled, not before.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from sidecar.errors import ConfigError

from .plan import Pattern, Plan

if TYPE_CHECKING:
    import torch

DEVICE_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
"""Where a CUDA driver shows itself on Linux and under WSL."""


class Table:
    """A plan's segments as numbers: `columns` [4 + 4·axes, segments] and `values` [k], both int64.

    Rows of `columns`: the segment's start, length, skip and rise; then, an axis each, run, period,
    where its `values` begin (-1: it has none), and base. Bases and values of a float32 plan are
    float64 bit patterns: float64 holds every float32, and one dtype makes one copy.
    """

    def __init__(self, plan: Plan) -> None:
        axes = plan.axes
        stored = np.float64 if plan.dtype.kind == "f" else np.int64
        values: list[npt.NDArray[Any]] = []
        held = 0
        known: dict[Pattern, tuple[int, ...]] = {}
        columns: list[tuple[int, ...]] = []
        bases: list[tuple[float, ...]] = []
        for start, length, base, pattern, skip, _, rise in plan.segments:
            column = known.get(pattern)
            if column is None:
                each = pattern.axes if len(pattern.axes) == axes else pattern.axes * axes
                places = []
                for axis in each:
                    places.append(-1 if axis.values is None else held)
                    if axis.values is not None:
                        values.append(axis.values)
                        held += len(axis.values)
                column = (*(a.run for a in each), *(a.period for a in each), *places)
                known[pattern] = column
            columns.append((start, length, skip, rise, *column))
            bases.append(base if type(base) is tuple else (base,) * axes)
        upper = np.array(columns, np.int64).reshape(-1, 4 + 3 * axes)
        lower = np.array(bases, stored).reshape(-1, axes)
        self.columns = np.concatenate((upper, lower.view(np.int64)), axis=1).T
        self.values = np.concatenate([np.empty(0, stored), *values]).astype(stored).view(np.int64)

    def packed(self) -> npt.NDArray[np.int64]:
        """All of it in one array [k], columns first."""
        return np.concatenate((self.columns.ravel(), self.values))


class Pending:
    """Positions that a device is still computing."""

    def __init__(self, positions: torch.Tensor, event: Any = None) -> None:
        self._positions = positions
        self._event = event

    def done(self) -> bool:
        """Whether `result` would return at once."""
        return self._event is None or bool(self._event.query())

    def result(self) -> npt.NDArray[Any]:
        """The positions, [axes, n]. Waits for the device without holding the GIL."""
        if self._event is not None:
            self._event.synchronize()
        return self._positions.numpy()  # type: ignore[no-any-return]


def submit(plan: Plan, device: str | torch.device) -> Pending:
    """Start to compute a plan's positions on a device.

    On CUDA the table goes up and the positions come down through pinned memory, and this returns as
    soon as the work is queued. On other devices the work is done when it returns.
    """
    import torch

    where = torch.device(device)
    table = Table(plan)
    packed = torch.from_numpy(table.packed())
    cuda = where.type == "cuda"
    if cuda:
        packed = packed.pin_memory().to(where, non_blocking=True)
    elif where.type != "cpu":
        packed = packed.to(where)
    positions = _positions(packed, table.columns.shape, plan)
    if not cuda:
        return Pending(positions.cpu())
    landed = torch.empty(positions.shape, dtype=positions.dtype, pin_memory=True)
    landed.copy_(positions, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(where))
    return Pending(landed, event)


def fill_torch(plan: Plan, device: str | torch.device) -> npt.NDArray[Any]:
    """The plan's positions, [axes, n] of `plan.dtype`, computed on `device`; waits for them."""
    return submit(plan, device).result()


def _positions(packed: torch.Tensor, shape: tuple[int, ...], plan: Plan) -> torch.Tensor:
    """The formula of plan.py for every token at once, [axes, n]."""
    import torch

    floating = plan.dtype.kind == "f"
    size = shape[0] * shape[1]
    columns, values = packed[:size].view(shape), packed[size:]
    tokens = torch.arange(plan.n, device=packed.device)
    segment = torch.searchsorted(columns[0], tokens, right=True).sub_(1)
    own = columns.index_select(1, segment)
    start, length, skip, rise = own[:4]
    run, period, place, base = own[4:].view(4, plan.axes, plan.n)
    unit = (tokens - start).div(length, rounding_mode="floor")
    k = tokens - start - unit * length + skip
    counts = k.div(run, rounding_mode="floor").remainder_(period)
    lift = unit.mul_(rise)
    if len(values):
        has = place >= 0
        found = values[torch.where(has, place + counts, 0)]
        if floating:
            counts = torch.where(has, found.view(torch.float64), counts.to(torch.float64))
        else:
            counts = torch.where(has, found, counts)
    counts = torch.where(k < 0, k, counts)
    if floating:
        # One float32 addition, as in the reference; repeated units have whole positions only.
        return counts.to(torch.float32).add_((base.view(torch.float64) + lift).to(torch.float32))
    return counts.add_(base).add_(lift)


def resolve_device(setting: str) -> str | None:
    """What `materialize.device` means on this machine: a torch device, or None for numpy on the CPU.

    "auto" imports torch only where a CUDA driver shows itself.

    Raises:
        ConfigError: a CUDA device is asked for that is not there.
    """
    if setting == "cpu":
        return None
    if setting == "auto" and not any(Path(node).exists() for node in DEVICE_NODES):
        return None
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if setting == "auto":
        return "cuda" if count else None
    kind, _, index = setting.partition(":")
    if kind != "cuda" or (index and not index.isdecimal()):
        raise ConfigError(f'materialize.device is {setting!r}; it must be "auto", "cpu", "cuda" or "cuda:N"')
    if int(index or 0) >= count:
        raise ConfigError(
            f'materialize.device is {setting!r}, but torch sees {count} CUDA devices; set it to "auto" or "cpu"'
        )
    return setting
