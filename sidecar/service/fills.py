"""Where M-RoPE positions are filled: short prompts on the CPU, long ones on the device if there is one."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from numpy.typing import NDArray

from sidecar.materialize.mrope import Plan, fill_numpy, fill_torch, resolve_device

CPU: Final = "cpu"
CUDA: Final = "cuda"

logger = logging.getLogger(__name__)


class Fills:
    """Fills plans on whatever thread asks. Raises `ConfigError` for a device that is not there.

    `counts` are requests by device; `devices` has 1 for the device that long prompts are filled on, 0 for
    the other. A device that fails (out of memory, a driver that went away) is
    given up: positions are due either way, and the CPU's are the same.
    """

    def __init__(self, setting: str, min_tokens: int) -> None:
        self.device = resolve_device(setting)
        self.counts = {CPU: 0, CUDA: 0}
        self.devices = {CPU: int(self.device is None), CUDA: int(self.device is not None)}
        self._min_tokens = min_tokens
        self._lock = threading.Lock()

    def __call__(self, plan: Plan) -> NDArray[Any]:
        """The plan's positions, [axes, n]."""
        device = self.device
        if device is not None and plan.n >= self._min_tokens:
            try:
                positions = fill_torch(plan, device)
            except RuntimeError as error:  # torch's own errors are all of this type
                logger.error("M-RoPE is filled on the CPU from now on: %s failed: %s", device, str(error)[:200])
                self.device = None
                self.devices.update({CPU: 1, CUDA: 0})
            else:
                self._count(CUDA)
                return positions
        self._count(CPU)
        return fill_numpy(plan)

    def _count(self, device: str) -> None:
        with self._lock:
            self.counts[device] += 1
