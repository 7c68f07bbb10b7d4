"""GLM-Image: images between start and end markers, unmerged; decoding counts on from the prompt's length.

Source: transformers 5.24, `GlmImageModel.get_rope_index`. Its delta is 0 whatever the images: the
positions of the image that it generates come from a table of its own.
"""

from __future__ import annotations

from sidecar.wire.tokenspeed import Modality

from .media import MediaItem
from .planner import Block, GridPlanner, image_block


class GlmImage(GridPlanner):
    """glm_image: text goes on at max(h, w) after an image."""

    modalities = frozenset({Modality.IMAGE})

    def block(self, item: MediaItem, t: int, height: int, width: int, seconds: float | None) -> Block:
        """Rows and columns of the image's own tokens."""
        return image_block(t, height, width, max(height, width))

    def delta(self, n: int, position: int, top: int) -> int:
        """Always 0."""
        return 0
