"""The status page in a real browser, with traffic behind it."""

from __future__ import annotations

import re
import subprocess

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="module")
def dom(stack, tmp_path_factory) -> str:
    """The page, less its script, as the browser has it after a few polls."""
    profile = tmp_path_factory.mktemp("chromium")
    command = ["chromium", *FLAGS, f"--user-data-dir={profile}", "--virtual-time-budget=9000", "--dump-dom", stack.url]
    done = subprocess.run(command, capture_output=True, timeout=90, check=True)
    return re.sub(r"<script>.*</script>", "", done.stdout.decode(), flags=re.DOTALL)


def test_it_shows_that_the_sidecar_is_ready_and_the_engine_connected(dom):
    assert re.search(r'id="state"[^>]*>ready<', dom)
    assert re.search(r'id="engine"[^>]*>connected<', dom)
    assert "no answer from the sidecar" not in dom


def test_it_shows_rates_percentiles_and_the_configuration(dom):
    assert re.search(r'id="in"[^>]*>[\d.,]+ <small>requests/s', dom)
    assert re.search(r'<td>parse</td><td class="n">[\d.]+ (µs|ms)</td>', dom)
    assert re.search(r"<dt>model</dt><dd>[^<]*qwen3_5", dom)
    assert "ingress.bind" in dom
    assert '<path class="in" d="M' in dom
