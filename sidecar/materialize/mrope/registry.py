"""Families by name, and how a model's config is bound to its planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from sidecar.errors import ConfigError

from .glm_image import GlmImage
from .hunyuan import HunyuanVl, HyV4Vl, hunyuan_axes
from .minicpm import bind_minicpm
from .planner import Planner
from .qwen2_5_omni import Qwen25Omni
from .qwen3_omni import Qwen3Omni
from .qwen3_omni_engine import Qwen3OmniEngine
from .qwen_vl import Ernie45Vl, Qwen2Vl, Qwen3Vl, Qwen25Vl, Qwen35Engine

Reference = Literal["engine", "transformers"]
"""Whose arithmetic to reproduce, where a family has more than one."""

Factory = Callable[[Mapping[str, Any], Reference], Planner]


def _vision(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("vision_config") or {}


def _merge(config: Mapping[str, Any]) -> int:
    return int(_vision(config).get("spatial_merge_size", 2))


def _qwen3_5(config: Mapping[str, Any], reference: Reference) -> Planner:
    return Qwen35Engine(_merge(config)) if reference == "engine" else Qwen3Vl(_merge(config))


def _qwen2_5_omni(config: Mapping[str, Any], reference: Reference) -> Planner:
    thinker = config.get("thinker_config") or config
    rate, seconds = thinker.get("position_id_per_seconds", 25), thinker.get("seconds_per_chunk", 2)
    return Qwen25Omni(_merge(thinker), rate, seconds)


def _qwen3_omni(config: Mapping[str, Any], reference: Reference) -> Planner:
    thinker = config.get("thinker_config") or config
    seconds = float(thinker.get("seconds_per_chunk", 2.0))
    if reference == "engine":
        return Qwen3OmniEngine(_merge(thinker), float(thinker.get("position_id_per_seconds", 13)), seconds)
    window = (thinker.get("audio_config") or {}).get("n_window", 50)
    return Qwen3Omni(_merge(thinker), thinker.get("position_id_per_seconds", 25), seconds, window)


FAMILIES: Final[Mapping[str, Factory]] = {
    "qwen2_vl": lambda config, _: Qwen2Vl(_merge(config)),
    "qwen2_5_vl": lambda config, _: Qwen25Vl(_merge(config), _vision(config).get("tokens_per_second", 4)),
    "ernie4_5_vl_moe": lambda config, _: Ernie45Vl(_merge(config), _vision(config).get("temporal_merge_size", 2)),
    "qwen3_vl": lambda config, _: Qwen3Vl(_merge(config)),
    "qwen3_5": _qwen3_5,
    "glm4v": lambda config, _: Qwen3Vl(_merge(config)),
    "glm_image": lambda config, _: GlmImage(1),
    "hunyuan_vl": lambda config, _: HunyuanVl(_merge(config), hunyuan_axes(config)),
    "hy_v4_vl": lambda config, _: HyV4Vl(_merge(config)),
    "qwen2_5_omni": _qwen2_5_omni,
    "qwen3_omni_moe": _qwen3_omni,
    "minicpmv4_7": lambda config, _: bind_minicpm(config),
}
"""Family name → what makes its planner from a config. Missing keys have the config class's defaults."""


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
