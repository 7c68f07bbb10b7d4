"""Plans to positions with numpy: a copy or an add per segment, into memory that is written once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .plan import CONSTANT, LINEAR, Axis, Pattern, Plan

TEMPLATE_BYTES: Final = 32 << 20
"""How many bytes of templates are kept. A template repays itself from its second use on."""

RAMP_TOKENS: Final = 1 << 20
"""The longest ramp that is kept, 8 MB of int64: text whose positions lie below it is a plain copy."""

_ramps: dict[np.dtype[Any], npt.NDArray[Any]] = {}
_templates: dict[np.dtype[Any], dict[Pattern, npt.NDArray[Any]]] = {}
_template_bytes = 0


def fill_numpy(plan: Plan) -> npt.NDArray[Any]:
    """The plan's positions, [axes, n] of `plan.dtype`, in a new C-contiguous array."""
    out = np.empty((plan.axes, plan.n), plan.dtype)
    integral = plan.dtype.kind == "i"
    ramp = _ramp(plan.dtype, 1)
    add = np.add
    for start, stop, base, pattern, skip in plan.segments:
        length = stop - start
        if pattern is LINEAR:
            if integral:
                first = base + skip
                if first + length > len(ramp):
                    ramp = _ramp(plan.dtype, first + length)
                out[:, start:stop] = ramp[first : first + length]
            else:
                if skip + length > len(ramp):
                    ramp = _ramp(plan.dtype, skip + length)
                add(ramp[skip : skip + length], base, out[:, start:stop])
        elif type(base) is tuple:
            column = np.array(base, plan.dtype)[:, None]
            if pattern is CONSTANT:
                out[:, start:stop] = column
            else:
                add(_template(pattern, plan.dtype)[:, skip : skip + length], column, out[:, start:stop])
        elif pattern is CONSTANT:
            out[:, start:stop] = base
        elif length == pattern.size:
            add(_template(pattern, plan.dtype), base, out[:, start:stop])
        else:
            add(_template(pattern, plan.dtype)[:, skip : skip + length], base, out[:, start:stop])
    return out


def _ramp(dtype: np.dtype[Any], length: int) -> npt.NDArray[Any]:
    """0, 1, 2, … for at least `length` values; the same array as before where that is long enough."""
    ramp = _ramps.get(dtype)
    if ramp is not None and len(ramp) >= length:
        return ramp
    ramp = np.arange(max(1 << 16, 1 << (length - 1).bit_length()), dtype=dtype)
    if len(ramp) <= RAMP_TOKENS:
        _ramps[dtype] = ramp
    return ramp


def _template(pattern: Pattern, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The pattern written out with base 0, [axes, size]."""
    global _template_bytes
    kept = _templates.setdefault(dtype, {})
    template = kept.get(pattern)
    if template is None:
        template = _write(pattern.axes, pattern.size, dtype)
        if template.nbytes <= TEMPLATE_BYTES // 8:
            if _template_bytes + template.nbytes > TEMPLATE_BYTES:
                _templates.clear()
                _template_bytes = 0
            kept[pattern] = template
            _template_bytes += template.nbytes
    return template


def _write(axes: tuple[Axis, ...], size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    template = np.empty((len(axes), size), dtype)
    for row, (run, period, values) in zip(template, axes, strict=True):
        counts = np.arange(period, dtype=dtype) if values is None else np.asarray(values, dtype)
        row.reshape(-1, period, run)[...] = counts[:, None]
    return template
