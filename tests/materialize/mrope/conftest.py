"""Tests marked `cuda` are left out where torch sees no CUDA device."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [item for item in items if item.get_closest_marker("cuda") is not None]
    if not wanted:
        return
    import torch

    if torch.cuda.is_available():
        return
    config.hook.pytest_deselected(items=wanted)
    items[:] = [item for item in items if item not in wanted]
