"""Both sides in one process, run by the Python of the engine's environment: prints one line of JSON.

The engine's side is its own code, from bytes to bytes: `MsgpackDecoder`, `ensure_pad_values`,
`compute_mrope_positions`, `pad_input_tokens`, `MsgpackEncoder`. The sidecar's is `pipeline.run` with the
default configuration, which checks the request as well. Before a case is timed the engine decodes what
both made of it, and the results are compared.
"""

from __future__ import annotations

import argparse
import json
import types
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from tests.interop.engine import stubs

stubs.install()

import torch  # noqa: E402
from tokenspeed.runtime.engine.io_struct import (  # noqa: E402
    MsgpackDecoder,
    MsgpackEncoder,
    TokenizedGenerateReqInput,
)
from tokenspeed.runtime.multimodal.embedder import pad_input_tokens  # noqa: E402
from tokenspeed.runtime.multimodal.hash import hash_feature  # noqa: E402
from tokenspeed.runtime.multimodal.mrope import compute_mrope_positions  # noqa: E402

from benchmarks.contexts import call, context, model  # noqa: E402
from benchmarks.measure import interleave  # noqa: E402
from benchmarks.requests import CASES, segment  # noqa: E402
from sidecar.materialize.hashing import HASHES  # noqa: E402
from sidecar.model import ModelSpec  # noqa: E402
from sidecar.pipeline import open_message  # noqa: E402

DECODER = MsgpackDecoder(TokenizedGenerateReqInput)
ENCODER = MsgpackEncoder()


def namespace(config: Any) -> Any:
    """A model's config as the engine reads it, by attribute."""
    if not isinstance(config, dict):
        return config
    return types.SimpleNamespace(**{key: namespace(value) for key, value in config.items()})


def engine_path(frames: Sequence[bytes], config: Any) -> Callable[[], list[Any]]:
    """A function that does with a message what the engine's own frontend does before it sends it."""

    def process() -> list[Any]:
        request = DECODER.decode(frames)
        media = request.multimodal_inputs
        if media is not None and media.mm_items:
            media.ensure_pad_values()
            positions, delta = compute_mrope_positions(config, request.input_ids, media.mm_items)
            media.mrope_positions = positions
            media.mrope_position_delta = delta
            media.mrope_position_delta_scalar = int(delta.flatten()[0].item())
            request.input_ids_unpadded = request.input_ids
            request.input_ids = pad_input_tokens(request.input_ids, media)
        return list(ENCODER.encode(request))

    return process


def same(theirs: Sequence[Any], ours: Sequence[Any]) -> bool:
    """Whether the engine reads the same out of two messages: ids, pad values and positions."""
    a, b = DECODER.decode(theirs), DECODER.decode(ours)
    if (a.rid, a.input_ids, a.input_ids_unpadded) != (b.rid, b.input_ids, b.input_ids_unpadded):
        return False
    if a.multimodal_inputs is None or b.multimodal_inputs is None:
        return a.multimodal_inputs is b.multimodal_inputs
    mine, other = a.multimodal_inputs, b.multimodal_inputs
    return (
        torch.equal(mine.mrope_positions, other.mrope_positions)
        and torch.equal(mine.mrope_position_delta, other.mrope_position_delta)
        and mine.mrope_position_delta_scalar == other.mrope_position_delta_scalar
        and [item.pad_value for item in mine.mm_items] == [item.pad_value for item in other.mm_items]
    )


def compare(name: str, frames: list[bytes], spec: ModelSpec, budget_s: float) -> list[dict[str, Any]]:
    """Rows of one case: two for text, whose ids can be trusted."""
    theirs = engine_path(frames, namespace(dict(spec.config)))
    # Only in this comparison the sidecar hashes as the engine does: pads of other hashes differ.
    if not same(theirs(), call(frames, context(spec, materialize__hash="tokenspeed"))().messages[0]):
        raise SystemExit(f"{name}: the engine and the sidecar disagree")
    rows = []
    for ids in ("strict", "trusted") if name.startswith("text") else ("strict",):
        ours = call(frames, context(spec, admission__token_ids=ids))
        engine_s, sidecar_s = interleave([theirs, ours], budget_s, least=7)
        label = f"{name}, {ids}" if name.startswith("text") else name
        rows.append({"name": label, "engine_s": engine_s, "sidecar_s": sidecar_s})
    return rows


def compare_hashes(spec: ModelSpec, budget_s: float) -> dict[str, Any]:
    """The content hash of one feature, and the engine's own."""
    frames = CASES["image, aux, no hash"]()
    item = open_message(frames, context(spec)).content.media.items[0]
    tensor = DECODER.decode(frames).multimodal_inputs.mm_items[0].feature
    if hash_feature(tensor) != HASHES["tokenspeed"](item):
        raise SystemExit("the engine and the sidecar do not hash the same bytes")
    canonical = HASHES["canonical"]
    engine_s, sidecar_s = interleave([lambda: hash_feature(tensor), lambda: canonical(item)], budget_s)
    return {"name": "hash", "engine_s": engine_s, "sidecar_s": sidecar_s}


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_process", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    budget_s = 0.5 if parser.parse_args().quick else 4.0
    torch.set_num_threads(1)
    spec = model()
    rows: list[dict[str, Any]] = []
    with segment():
        for name, build in CASES.items():
            rows += compare(name, build(), spec, budget_s)
    hashes = compare_hashes(spec, budget_s)
    print(json.dumps({"engine": f"tokenspeed {version('tokenspeed')}", "requests": rows, "hash": hashes}))


if __name__ == "__main__":
    main()
