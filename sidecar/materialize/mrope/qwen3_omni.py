"""Qwen3-Omni as transformers computes it: float32 positions, video and audio in order of time.

Source: transformers 5.24, `Qwen3OmniMoePreTrainedModelForConditionalGeneration.get_rope_index` and
`_get_feat_extract_output_lengths`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .omni import Omni
from .omni_walk import Piece, Vision, to_float32
from .plan import FLOAT32, LINEAR


class Qwen3Omni(Omni):
    """qwen3_omni_moe. `window` is the audio encoder's `n_window`."""

    zero = 0.0
    markers = LINEAR
    dtype = FLOAT32

    def __init__(self, merge: int, rate: float, default_seconds: float, window: int) -> None:
        super().__init__(merge, rate, default_seconds)
        self.window = window

    @staticmethod
    def rounding(value: Any) -> Any:
        """Every sum becomes a float32."""
        return to_float32(value)

    def audio_tokens(self, length: int) -> int:
        """Three halvings of each chunk of 2 · n_window mel frames; a full chunk makes 13 tokens."""
        full, left = divmod(length, self.window * 2)
        halved = (left - 1) // 2 + 1
        return ((halved - 1) // 2 + 1 - 1) // 2 + 1 + full * 13

    def clock(self, t: int, seconds: float | None) -> npt.NDArray[Any]:
        """`arange(t) * seconds * rate` in float32."""
        index = np.arange(t, dtype=np.float32)
        return (index if seconds is None else index * np.float32(seconds)) * np.float32(self.rate)

    def interleave(self, video: Vision, audio: int, base: float) -> tuple[list[Piece], float]:
        """A frame stands before the audio tokens that are not earlier than it."""
        t, height, width, times = video
        area = height * width
        beats = np.arange(audio, dtype=np.float32) + np.float32(base)
        starts = times + np.float32(base)
        pieces: list[Piece] = []
        heard = shown = 0
        for frame, earlier in enumerate(np.searchsorted(beats, starts, "left").tolist()):
            if earlier > heard:
                if frame > shown:
                    pieces.append(Piece(True, shown * area, frame * area))
                pieces.append(Piece(False, heard, earlier))
                heard, shown = earlier, frame
        pieces.append(Piece(True, shown * area, t * area))
        if heard < audio:
            pieces.append(Piece(False, heard, audio))
            return pieces, float(beats[-1])
        return pieces, max(float(starts[-1]), to_float32(base + max(height, width) - 1))
