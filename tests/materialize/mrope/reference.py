"""transformers' own get_rope_index, without weights: the model object is made without its __init__."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from .layouts import Prompt

torch.set_num_threads(1)  # every operation here is tiny: a pool of threads only waits for itself

CLASSES = {
    "qwen2_vl": "Qwen2VLModel",
    "paddleocr_vl": "PaddleOCRVLModel",
    "qwen2_5_vl": "Qwen2_5_VLModel",
    "ernie4_5_vl_moe": "Ernie4_5_VLMoeModel",
    "qwen3_vl": "Qwen3VLModel",
    "qwen3_vl_moe": "Qwen3VLMoeModel",
    "cosmos3_omni": "Cosmos3OmniModel",
    "cosmos3_edge": "Cosmos3EdgeModel",
    "cohere_compass": "CohereCompassModel",
    "qwen3_5": "Qwen3_5Model",
    "qwen3_5_moe": "Qwen3_5MoeModel",
    "qwen4_exp": "Qwen4ExpModel",
    "glm4v": "Glm4vModel",
    "glm4v_moe": "Glm4vMoeModel",
    "glm46v": "Glm46VModel",
    "glm_ocr": "GlmOcrModel",
    "glm_image": "GlmImageModel",
    "hunyuan_vl": "HunYuanVLModel",
    "hy_v4_vl": "HYV4VLModel",
    "qwen2_5_omni": "Qwen2_5OmniThinkerForConditionalGeneration",
    "qwen3_omni_moe": "Qwen3OmniMoeThinkerForConditionalGeneration",
    "minicpmv4_7": "MiniCPMV4_7Model",
}


@cache
def _class(model_type: str) -> type[Any]:
    module = import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    return getattr(module, CLASSES[model_type])


def _namespace(value: Any, keep: tuple[str, ...] = ("rope_parameters",)) -> Any:
    if not isinstance(value, dict):
        return value
    return SimpleNamespace(**{k: v if k in keep else _namespace(v, keep) for k, v in value.items()})


def _rows(rows: Any) -> torch.Tensor | None:
    return torch.tensor([list(row) for row in rows]) if rows else None


def reference(prompt: Prompt) -> tuple[np.ndarray, Any]:
    """Positions [axes, n] and delta."""
    model = object.__new__(_class(prompt.model_type))
    config = prompt.config.get("thinker_config", prompt.config)
    model.config = _namespace(config)
    media = prompt.media_only()
    ids = torch.tensor([prompt.ids])
    grids = {"image_grid_thw": _rows(media.image_grids), "video_grid_thw": _rows(media.video_grids)}
    family = prompt.family
    if family == "glm_image":
        out = model.get_rope_index(ids, image_grid_thw=grids["image_grid_thw"])
    elif family in ("qwen2_5_omni", "qwen3_omni_moe"):
        model.spatial_merge_size = config["vision_config"]["spatial_merge_size"]
        seconds = media.seconds or [float(config["seconds_per_chunk"])] * len(media.video_grids)
        out = model.get_rope_index(
            ids,
            **grids,
            attention_mask=torch.ones_like(ids),
            use_audio_in_video=media.use_audio_in_video,
            audio_seqlens=torch.tensor(media.audio_lengths) if media.audio_lengths else None,
            second_per_grids=torch.tensor(seconds),
        )
    else:
        types = torch.tensor([prompt.types])
        if family == "minicpmv4_7":
            grids = {
                "target_sizes": _rows(media.image_sizes),
                "target_sizes_videos": _rows(media.video_sizes),
            }
        elif family == "hunyuan_vl":
            del grids["video_grid_thw"]
        elif family == "qwen2_5_vl" and media.seconds is not None:
            seconds = list(media.seconds)
            if media.seconds_dtype is not None:
                seconds = torch.tensor(seconds, dtype=getattr(torch, media.seconds_dtype))
            grids["second_per_grid_ts"] = seconds
        out = model.get_rope_index(ids, mm_token_type_ids=types, **grids)
    return out[0][:, 0].numpy(), out[1].item()
