"""An engine without a model, run by the engine's own Python: its real handshake, sockets and decoder.

It answers each request with a few tokens and writes what the engine's decoder has seen to a file, one
JSON object a line. What it does with a request stands in the prompt: `mode=hang` (a token every 100 ms,
for ever), `mode=silent` (no output at all), `mode=die` (SIGKILL to itself).
Run as `python engine_process.py --handshake ADDRESS --events FILE --model FOLDER [--ranks N]`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
import time
import types
import zlib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "engine"))
import stubs

stubs.install()

import torch  # noqa: E402
import zmq  # noqa: E402
from tokenspeed.runtime.engine import zmq_msgpack, zmq_wire  # noqa: E402
from tokenspeed.runtime.engine.io_struct import (  # noqa: E402
    AbortReq,
    BatchTokenIDOut,
    TokenizedGenerateReqInput,
)
from tokenspeed.runtime.multimodal.mrope import compute_mrope_positions  # noqa: E402

POLL_MS = 2
HANG_S = 0.1
MODE = re.compile(r"mode=([a-z]+)")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--handshake", required=True)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--encoder-dtype", default="bfloat16")
    return parser.parse_args()


class Events:
    """The file that the tests read."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._lock = threading.Lock()

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        with self._lock:
            self._file.write(json.dumps({"event": event, "at": time.monotonic(), **fields}) + "\n")
            self._file.flush()


class Tokens:
    """The byte-level vocabulary of the test models, both ways."""

    def __init__(self, model: Path) -> None:
        vocab = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        chars = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
        self._ids = {byte: vocab[char] for byte, char in chars.items()}
        self._bytes = {i: byte for byte, i in self._ids.items()}

    def encode(self, text: str) -> list[int]:
        """Text to ids."""
        return [self._ids[byte] for byte in text.encode()]

    def decode(self, ids: list[int]) -> str:
        """Ids to text; special tokens and pad values are left out."""
        return bytes(self._bytes[i] for i in ids if i in self._bytes).decode(errors="replace")


def namespace(value: Any) -> Any:
    """A configuration as the attributes that the engine reads."""
    if isinstance(value, dict):
        return types.SimpleNamespace(**{key: namespace(item) for key, item in value.items()})
    return value


class Request:
    """A live request: the tokens still to be sent."""

    def __init__(self, obj: TokenizedGenerateReqInput, mode: str, tokens: list[int]) -> None:
        self.rid = obj.rid
        self.mode = mode
        self.tokens = tokens
        self.prompt = len(obj.input_ids)
        self.logprobs = bool(obj.return_logprob)
        self.aborted = bool(obj.validation_error)
        self.sent = 0
        self.due = 0.0


class Rank:
    """One data-parallel rank: its own connection to whoever plays the frontend."""

    def __init__(self, index: int, args: argparse.Namespace, events: Events, config: dict[str, Any]) -> None:
        self._index = index
        self._args = args
        self._events = events
        self._config = namespace(config)
        self._vocab = config.get("vocab_size") or config["text_config"]["vocab_size"]
        self._eos = config["eos_token_id"]
        self._tokens = Tokens(args.model)
        self._live: dict[str, Request] = {}
        self.output: zmq_msgpack.MsgpackSendSocket | None = None

    def run(self) -> None:
        """Handshake, then serve until the process ends."""
        ready = zmq_wire.WireEngineCoreReadyResponse(
            max_model_len=32768,
            num_gpu_blocks=4096,
            prefix_granularity=64,
            multimodal_encoder_dtype=self._args.encoder_dtype,
            vllm_version="tokenspeed-0.1.1",
            world_size=self._args.ranks,
            data_parallel_size=self._args.ranks,
            data_parallel_rank=self._index,
            max_num_seqs=256,
            max_num_batched_tokens=8192,
            instance_id="interop",
            kv_cache_size_tokens=262144,
        )
        receive, self.output = zmq_msgpack.connect_msgpack_engine(
            zmq.Context.instance(),
            self._args.handshake,
            self._index,
            ready,
            self._vocab,
            enable_output_logprobs=True,
            supports_prompt_logprobs=False,
        )
        self._events.write("connected", rank=self._index)
        while True:
            receive._socket.poll(POLL_MS)
            while True:
                try:
                    obj = receive.recv_pyobj(zmq.NOBLOCK)
                except zmq.Again:
                    break
                self._take(obj)
            self._step()

    def _take(self, obj: TokenizedGenerateReqInput | AbortReq) -> None:
        if isinstance(obj, AbortReq):
            known = self._live.pop(obj.rid, None) is not None
            self._events.write("abort", rank=self._index, rid=obj.rid, known=known)
            return
        if obj.rid in self._live:
            self._events.write("killed_by_duplicate", rank=self._index, rid=obj.rid)
            os.kill(os.getpid(), signal.SIGKILL)
        self._events.write("request", rank=self._index, **self._seen(obj))
        found = MODE.search(self._tokens.decode(obj.input_ids_unpadded or obj.input_ids))
        mode = found[1] if found else "normal"
        if mode == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        text = '{"a":"b"}' if obj.sampling_params.json_schema else "hello"
        self._live[obj.rid] = Request(obj, mode, [*self._tokens.encode(text), self._eos])

    def _seen(self, obj: TokenizedGenerateReqInput) -> dict[str, Any]:
        """What the engine's decoder made of a request, with the positions that its own code computes."""
        seen: dict[str, Any] = {
            "rid": obj.rid,
            "tokens": len(obj.input_ids),
            "ids": crc(obj.input_ids),
            "error": obj.validation_error,
            "sampling": repr(obj.sampling_params),
        }
        media = obj.multimodal_inputs
        if media is not None:
            seen["items"] = [
                [item.modality.name, item.hash, item.pad_value, list(map(list, item.offsets)), describe(item.feature)]
                for item in media.mm_items
            ]
            seen["positions"] = listed(media.mrope_positions)
            seen["delta"] = listed(media.mrope_position_delta)
            positions, delta = compute_mrope_positions(self._config, obj.input_ids_unpadded, media.mm_items)
            seen["engine_positions"] = listed(positions)
            seen["engine_delta"] = listed(delta)
        return seen

    def _step(self) -> None:
        now = time.monotonic()
        batch = []
        for request in list(self._live.values()):
            if request.mode == "silent" or now < request.due:
                continue
            if request.aborted:
                batch.append((request, [], {"type": "abort"}))
            elif request.mode == "hang":
                request.due = now + HANG_S
                batch.append((request, self._tokens.encode("x"), None))
            else:
                token = request.tokens.pop(0)
                batch.append((request, [token], {"type": "stop"} if not request.tokens else None))
        if not batch or self.output is None:
            return
        for request, ids, finish in batch:
            request.sent += len(ids)
            if finish is not None:
                del self._live[request.rid]
        self.output.set_load_snapshot(len(self._live), 0, 10 * len(self._live), 4096)
        self.output.send_pyobj(output(batch))


def output(batch: list[tuple[Request, list[int], dict[str, str] | None]]) -> BatchTokenIDOut:
    """A step's output as the engine's output processor makes it; columns without content are empty."""
    columns: dict[str, Any] = {name: [[] for _ in batch] for name in BatchTokenIDOut.__struct_fields__}
    logprobs = [request.logprobs for request, _, _ in batch]
    columns |= {
        "rids": [request.rid for request, _, _ in batch],
        "finished_reasons": [finish for _, _, finish in batch],
        "output_ids": [ids for _, ids, _ in batch],
        "prompt_tokens": [request.prompt for request, _, _ in batch],
        "completion_tokens": [request.sent for request, _, _ in batch],
        "cached_tokens": [0 for _ in batch],
        "output_token_logprobs_val": [[-0.5] * len(ids) * on for (_, ids, _), on in zip(batch, logprobs, strict=True)],
        "output_token_logprobs_idx": [ids * on for (_, ids, _), on in zip(batch, logprobs, strict=True)],
    }
    return BatchTokenIDOut(**columns)


def crc(ids: list[int]) -> int:
    """A short fingerprint of ids."""
    return zlib.crc32(json.dumps(ids).encode())


def listed(tensor: torch.Tensor | None) -> list[Any] | None:
    """A tensor as lists, with its dtype in front."""
    return None if tensor is None else [str(tensor.dtype), tensor.tolist()]


def describe(feature: torch.Tensor | None) -> list[Any] | None:
    """A feature's dtype, shape and the fingerprint of its bytes."""
    if feature is None:
        return None
    raw = feature.contiguous().view(torch.uint8).numpy().tobytes()
    return [str(feature.dtype), list(feature.shape), zlib.crc32(raw)]


def main() -> None:
    """Run all ranks until SIGTERM; then say goodbye as the engine does."""
    args = arguments()
    events = Events(args.events)
    config = json.loads((args.model / "config.json").read_text())
    ranks = [Rank(index, args, events, config) for index in range(args.ranks)]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    for rank in ranks:
        threading.Thread(target=rank.run, daemon=True).start()
    stop.wait()
    for rank in ranks:
        if rank.output is not None:
            rank.output.send_engine_dead()
    time.sleep(0.2)
    os._exit(0)


if __name__ == "__main__":
    main()
