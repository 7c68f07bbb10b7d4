"""Which device fills a plan, and what happens when it fails."""

from __future__ import annotations

import numpy as np
import pytest

from sidecar.errors import ConfigError
from sidecar.materialize.mrope import MediaItem, Plan, fill_numpy
from sidecar.service import fills
from sidecar.service.fills import Fills
from sidecar.wire.tokenspeed import Modality
from tests.build import QWEN, bind


def plan(n: int) -> Plan:
    """A plan of a prompt of n tokens with one image of four."""
    assert QWEN.mrope_family is not None
    item = MediaItem(0, Modality.IMAGE, ((1, 4),), ((1, 4, 4),))
    return bind(QWEN.mrope_family, QWEN.config).plan(n, [item], lambda: np.zeros(n, np.int64))


def test_without_a_device_the_cpu_fills() -> None:
    fill = Fills("cpu", 10)
    assert np.array_equal(fill(plan(50)), fill_numpy(plan(50)))
    assert fill.counts == {"cpu": 1, "cuda": 0}
    assert fill.devices == {"cpu": 1, "cuda": 0}


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="cuda:99"):
        Fills("cuda:99", 10)


def test_long_prompts_go_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fills, "resolve_device", lambda setting: "cuda")
    monkeypatch.setattr(fills, "fill_torch", lambda plan, device: fill_numpy(plan))
    fill = Fills("auto", 20)
    fill(plan(19))
    fill(plan(20))
    assert fill.counts == {"cpu": 1, "cuda": 1}
    assert fill.devices == {"cpu": 0, "cuda": 1}


def test_a_device_that_fails_is_given_up(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(plan: Plan, device: str) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(fills, "resolve_device", lambda setting: "cuda")
    monkeypatch.setattr(fills, "fill_torch", fail)
    fill = Fills("auto", 20)
    assert np.array_equal(fill(plan(50)), fill_numpy(plan(50)))
    assert fill.device is None
    assert fill.devices == {"cpu": 1, "cuda": 0}
    assert fill.counts == {"cpu": 1, "cuda": 0}
    assert "out of memory" in caplog.text
