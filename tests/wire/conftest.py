"""Every test of the wire runs twice: with the scans in C, and with the functions in Python that they stand in for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sidecar.wire import ids, msgpack, native, spans, text


@pytest.fixture(
    params=[
        pytest.param(native.scan, id="c", marks=pytest.mark.skipif(native.scan is None, reason="not compiled")),
        pytest.param(None, id="python"),
    ],
    scope="module",
    autouse=True,
)
def scan(request: pytest.FixtureRequest) -> Iterator[native.Scan | None]:
    """The scans that the modules of the wire use in a test."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (ids, msgpack, spans, text):
            patch.setattr(module, "scan", request.param)
        yield request.param
