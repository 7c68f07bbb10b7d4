"""Families by name, and how a model's config is bound to its planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from sidecar.errors import ConfigError

from . import qwen_vl
from .planner import Planner

Reference = Literal["engine", "transformers"]
"""Whose arithmetic to reproduce, where a family has more than one."""

Factory = Callable[[Mapping[str, Any], Reference], Planner]


def _qwen3_5(config: Mapping[str, Any], reference: Reference) -> Planner:
    merge = qwen_vl.merge_size(config)
    return qwen_vl.Qwen35Engine(merge) if reference == "engine" else qwen_vl.Qwen3Vl(merge)


def _qwen2_5_vl(config: Mapping[str, Any], reference: Reference) -> Planner:
    rate = (config.get("vision_config") or {}).get("tokens_per_second", 4)
    return qwen_vl.Qwen25Vl(qwen_vl.merge_size(config), rate)


def _ernie(config: Mapping[str, Any], reference: Reference) -> Planner:
    temporal = (config.get("vision_config") or {}).get("temporal_merge_size", 2)
    return qwen_vl.Ernie45Vl(qwen_vl.merge_size(config), temporal)


FAMILIES: Final[Mapping[str, Factory]] = {
    "qwen2_vl": lambda config, reference: qwen_vl.Qwen2Vl(qwen_vl.merge_size(config)),
    "qwen2_5_vl": _qwen2_5_vl,
    "ernie4_5_vl_moe": _ernie,
    "qwen3_vl": lambda config, reference: qwen_vl.Qwen3Vl(qwen_vl.merge_size(config)),
    "qwen3_5": _qwen3_5,
    "glm4v": lambda config, reference: qwen_vl.Qwen3Vl(qwen_vl.merge_size(config)),
}
"""Family name → what makes its planner from a config."""


def bind(family: str, config: Mapping[str, Any], reference: Reference = "engine") -> Planner:
    """The planner of a family for one model.

    `config` is the model's resolved Hugging Face config as JSON. `reference` matters only for the
    families that TokenSpeed computes itself (qwen3_5, qwen3_omni_moe); all others follow transformers.

    Raises:
        ConfigError: the family is unknown, or the config lacks what it needs.
    """
    factory = FAMILIES.get(family)
    if factory is None:
        known = ", ".join(sorted(FAMILIES))
        raise ConfigError(f"no M-RoPE family {family!r}; known are {known}")
    return factory(config, reference)
