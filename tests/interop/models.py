"""Tiny model folders: a byte-level tokenizer and the configs that a gateway reads, no weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIALS: Final = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>",
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
    "<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>",
    "<|image|>", "<|image_start|>", "<|image_end|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>",
)  # fmt: skip
VOCAB_SIZE: Final = 256 + len(SPECIALS)
SPECIAL_IDS: Final = {token: 256 + i for i, token in enumerate(SPECIALS)}
EOS: Final = SPECIAL_IDS["<|im_end|>"]

CONTEXT: Final = 32768
_ORDERED: Final = sorted(pre_tokenizers.ByteLevel.alphabet())

_TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text }}"
    "{% elif p.type == 'image' or 'image_url' in p %}__IMAGE__"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_QWEN_IMAGES: Final = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}
_KIMI_IMAGES: Final = {
    "media_proc_cfg": {
        "in_patch_limit": 16384,
        "patch_size": 14,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "merge_kernel_size": 2,
        "fixed_output_tokens": None,
        "patch_limit_on_one_side": 512,
        "in_patch_limit_each_frame": 4096,
        "in_patch_limit_video": None,
        "sample_fps": 2.0,
        "max_num_frames_each_video": None,
        "temporal_merge_kernel_size": 4,
        "timestamp_mode": "hh:mm:ss.fff",
        "config_type": "media_proc.processors.moonvit.MoonViTMediaProcessorConfig",
    }
}
_LLAMA_IMAGES: Final = {
    "image_processor_type": "Llama4ImageProcessorFast",
    "size": {"height": 336, "width": 336},
    "max_patches": 4,
}


def _qwen(model_type: str) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "image_token_id": SPECIAL_IDS["<|image_pad|>"],
        "video_token_id": SPECIAL_IDS["<|video_pad|>"],
        "vision_start_token_id": SPECIAL_IDS["<|vision_start|>"],
        "vision_end_token_id": SPECIAL_IDS["<|vision_end|>"],
        "text_config": {
            "model_type": f"{model_type}_text",
            "max_position_embeddings": CONTEXT,
            "vocab_size": VOCAB_SIZE,
            "rope_scaling": {"mrope_section": [11, 11, 10], "rope_type": "default"},
        },
        "vision_config": {
            "model_type": model_type,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }


def _kimi(model_type: str) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "media_placeholder_token_id": SPECIAL_IDS["<|media_pad|>"],
        "text_config": {"model_type": "kimi_k2", "max_position_embeddings": CONTEXT},
        "vision_config": {"model_type": "moonvit", "patch_size": 14, "merge_kernel_size": [2, 2]},
    }


def _llama4(model_type: str) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "image_token_index": SPECIAL_IDS["<|patch|>"],
        "boi_token_index": SPECIAL_IDS["<|image_start|>"],
        "eoi_token_index": SPECIAL_IDS["<|image_end|>"],
        "vision_config": {"patch_size": 14, "image_size": 336, "pixel_shuffle_ratio": 0.5},
    }


_QWEN_IMAGE: Final = "<|vision_start|><|image_pad|><|vision_end|>"
_KIMI_IMAGE: Final = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
_Make = Callable[[str], dict[str, Any]]
_MODELS: Final[Mapping[str, tuple[_Make, Mapping[str, Any], str, str]]] = {
    "qwen3_5": (_qwen, _QWEN_IMAGES, _QWEN_IMAGE, "Qwen3_5ForConditionalGeneration"),
    "kimi_k25": (_kimi, _KIMI_IMAGES, _KIMI_IMAGE, "KimiK25ForConditionalGeneration"),
    "kimi_k3": (_kimi, _KIMI_IMAGES, "<|media_pad|>", "KimiK3ForConditionalGeneration"),
    "llama4": (_llama4, _LLAMA_IMAGES, "<|image|>", "Llama4ForConditionalGeneration"),
}
NAMES: Final = tuple(_MODELS)


def build(name: str, root: Path) -> Path:
    """Write the folder of a model below `root`, if it is not there, and return its path."""
    folder = root / name
    if (folder / "tokenizer_config.json").exists():
        return folder
    make, image_processor, image, architecture = _MODELS[name]
    folder.mkdir(parents=True, exist_ok=True)
    _tokenizer().save(str(folder / "tokenizer.json"))
    config = make(name) | {"architectures": [architecture], "eos_token_id": EOS}
    config.setdefault("vocab_size", VOCAB_SIZE)
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {"eos_token_id": [EOS, SPECIAL_IDS["<|endoftext|>"]]})
    _write(folder / "preprocessor_config.json", image_processor)
    flags = dict.fromkeys(("normalized", "lstrip", "rstrip", "single_word"), False)
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": CONTEXT,
            "chat_template": _TEMPLATE.replace("__IMAGE__", image),
            "added_tokens_decoder": {
                str(i): {"content": token, "special": True} | flags for token, i in SPECIAL_IDS.items()
            },
        },
    )
    return folder


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(_ORDERED)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1))
