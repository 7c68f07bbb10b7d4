"""M-RoPE positions from offsets and grids: a plan per family, and fills that write a plan out.

    planner = bind(MODEL_TYPES[config["model_type"]], config)
    plan = planner.plan(n, items, ids)      # checks everything, costs microseconds, raises Rejection
    positions = fill_numpy(plan)            # [plan.axes, n] of plan.dtype

See docs/mrope.md.
"""

from .families import ARCHITECTURES, MODEL_TYPES, NO_MROPE_MODEL_TYPES
from .media import MediaItem
from .numpy_fill import fill_numpy
from .plan import Plan
from .planner import Ids, Planner
from .registry import FAMILIES, Reference, bind
from .runs import Media, items_from_ids
from .torch_fill import Pending, fill_torch, resolve_device, submit

__all__ = [
    "ARCHITECTURES",
    "FAMILIES",
    "MODEL_TYPES",
    "NO_MROPE_MODEL_TYPES",
    "Ids",
    "Media",
    "MediaItem",
    "Pending",
    "Plan",
    "Planner",
    "Reference",
    "bind",
    "fill_numpy",
    "fill_torch",
    "items_from_ids",
    "resolve_device",
    "submit",
]
