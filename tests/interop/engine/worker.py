"""The real engine's request path on a CPU, as a process that reads messages from stdin.

Run by the Python of a virtual environment that holds `tokenspeed` and `tokenspeed-scheduler`. What a
scheduler process does with a message, up to the first forward pass, is the engine's own code: the
receiving socket's decoder, shared memory, the request handler, the C++ scheduler, the sampler's pools,
the plan of the encoders, the positions. What needs a GPU is replaced: the vision tower's blocks by a
matrix product (behind the model's own `pre_encode`), pinned memory by ordinary; there is no language model.

A request on stdin is a length (4 bytes, little-endian) and a msgpack map; so is the answer on stdout.
"""

from __future__ import annotations

import struct
import sys
import traceback
from types import SimpleNamespace
from typing import Any

import msgpack
import stubs

stubs.install()

import torch  # noqa: E402
import zmq  # noqa: E402
from tokenspeed.runtime.engine import zmq_msgpack  # noqa: E402
from tokenspeed.runtime.engine.generation_output_processor import OutputProcesser  # noqa: E402
from tokenspeed.runtime.engine.io_struct import (  # noqa: E402
    IpcReceiver,
    IpcSender,
    MsgpackDecoder,
    TokenizedGenerateReqInput,
)
from tokenspeed.runtime.engine.request_handler import RequestHandler  # noqa: E402
from tokenspeed.runtime.engine.scheduler_utils import make_config  # noqa: E402
from tokenspeed.runtime.epd.prefill_hooks import _is_epd_request  # noqa: E402
from tokenspeed.runtime.execution.multimodal_runtime import MultimodalRuntime  # noqa: E402
from tokenspeed.runtime.models.qwen3_5 import Qwen3_5ForConditionalGeneration  # noqa: E402
from tokenspeed.runtime.multimodal import shm_transport  # noqa: E402
from tokenspeed.runtime.multimodal.embedder import EncoderSpec, MultimodalEmbedder, pad_input_tokens  # noqa: E402
from tokenspeed.runtime.multimodal.inputs import Modality, multimodal_context_for_forward  # noqa: E402
from tokenspeed.runtime.multimodal.mrope import compute_mrope_positions  # noqa: E402
from tokenspeed.runtime.sampling.backends.triton import TritonSamplingBackend  # noqa: E402
from tokenspeed_scheduler import CacheGroupConfig, Scheduler  # noqa: E402

PAGES, PAGE = 1 << 15, 16
HIDDEN = 8
MAX_MODEL_LEN = 1 << 17

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
GROUP = torch.distributed.group.WORLD


class _Unpinned:
    """torch as the shared-memory transport sees it: pinned memory needs an accelerator."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.empty(*size, **options)


shm_transport.torch = _Unpinned()


class Socket:
    """A queue of messages with the receiving interface of a socket."""

    def __init__(self, messages: list[list[bytes]]) -> None:
        self.messages = messages

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        if not self.messages:
            raise zmq.Again
        return self.messages.pop(0)


class Sent:
    """The sending interface of a socket: keeps what the engine answers."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []

    def send_multipart(self, frames: list[Any], flags: int = 0, copy: bool = True) -> None:
        self.messages.append([bytes(frame) for frame in frames])

    def send(self, frame: bytes, flags: int = 0) -> None:
        self.messages.append([frame])


class Tower:
    """A vision tower whose blocks are a matrix product: checks widths and rows as the real one must."""

    device, dtype = "cpu", torch.float32

    def __init__(self, width: int, merge: int) -> None:
        self.weight = torch.ones(width, HIDDEN)
        self.merge = merge
        self.model = SimpleNamespace(visual=self)

    def prepare_patch_embed(self, pixels: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        rows = int(grid.prod(dim=1).sum())
        return pixels @ self.weight + torch.zeros(rows, HIDDEN)

    def encode(self, items: list[Any]) -> torch.Tensor:
        tokens, _ = Qwen3_5ForConditionalGeneration.pre_encode(self.model, items)
        return tokens.reshape(-1, self.merge**2, HIDDEN).mean(dim=1)


class Engine:
    """One scheduler process: fresh state, the engine's own steps in its own order."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.stage = "receive"
        self.sent = Sent()
        self.handler = object.__new__(RequestHandler)
        vars(self.handler).update(
            server_args=SimpleNamespace(
                disaggregation_bootstrap_port=8998,
                disaggregation_mode=options.get("role", "null"),
                kvstore_storage_backend=None,
            ),
            tokenizer=None,
            hf_eos_token_id=[2],
            max_req_len=(options.get("max_model_len") or MAX_MODEL_LEN) - 1,
            max_new_tokens_budget=None,
            supports_input_logprobs=True,
            attn_dp_size=1,
            attn_dp_cpu_group=None,
            _pending_weight_ops=[],
            _pending_internal_ops=[],
            send_func=IpcSender(self.sent),
            pause_controller=SimpleNamespace(
                **dict.fromkeys(("handle_pause", "handle_resume", "handle_is_paused"), id)
            ),
            memory_controller=SimpleNamespace(
                **dict.fromkeys(("handle_release", "handle_resume", "handle_is_sleeping"), id)
            ),
            _try_clear_replica_cache=lambda **_: True,
            can_clear_cache_fn=lambda: True,
            clear_cache_fn=lambda: True,
        )
        self.handler.control_request_dispatcher = lambda request: None
        self.output = OutputProcesser(IpcSender(self.sent), metrics=SimpleNamespace(enabled=False))
        pool = CacheGroupConfig()
        pool.group_id, pool.block_granularity, pool.total_pages = "kv", PAGE, PAGES
        self.scheduler = Scheduler(
            make_config(PAGES, MAX_MODEL_LEN, 64, PAGE, 0, True, False, "null", cache_groups=[pool])
        )
        self.pools = object.__new__(TritonSamplingBackend)
        self.pools._temperature_pool = torch.ones(2)
        self.pools._top_k_pool = torch.ones(2, dtype=torch.int32)
        self.pools._top_p_pool = torch.ones(2)
        self.pools._seed_pool = torch.zeros(2, dtype=torch.int64)
        self.embedder = MultimodalEmbedder()
        self.encoders = {}
        if options.get("width"):
            tower = Tower(options["width"], options["merge"])
            self.encoders = {kind: EncoderSpec(tower.encode) for kind in (Modality.IMAGE, Modality.VIDEO)}
        self.positions = object.__new__(MultimodalRuntime)
        self.positions.model_is_mrope = bool(options.get("mrope"))
        self.positions.device = "cpu"
        self.positions.input_buffers = SimpleNamespace()
        self.positions._mrope_decode_deltas_cpu_idx = 0

    def run(self, messages: list[list[bytes]]) -> list[dict[str, Any]]:
        """Receive the messages in one turn of the event loop, and run the first forward pass."""
        requests, results = self.receive(messages)
        self.stage = "shared memory"
        shm_transport.prepare_shm_features(requests, GROUP)
        self.stage = "request handler"
        specs, states, _, _ = self.handler.process_requests(requests)
        admitted = []
        for spec, state in zip(specs, states, strict=True):
            if state.finished:
                self.stage = "terminal abort"
                self.output.publish_finished_at_admission(spec.request_id, state)
            else:
                self.output.register(spec.request_id, state)
                # Without an encode worker the engine would run its own tower on such an item, and end.
                if not (self.options.get("encode_worker", True) and _is_epd_request(state)):
                    admitted.append(spec)
        self.stage = "scheduler"
        if admitted:
            self.scheduler.submit_requests(admitted)
            self.forward(states)
        return results

    def receive(self, messages: list[list[bytes]]) -> tuple[list[Any], list[dict[str, Any]]]:
        options = self.options
        results: list[dict[str, Any]] = []
        requests = []
        for frames in messages:
            if options["framing"] == "typed":
                receiver = zmq_msgpack.MsgpackRecvSocket(
                    Socket([frames]),
                    options.get("vocab") or 1 << 31,
                    enable_output_logprobs=False,
                    supports_prompt_logprobs=False,
                )
            else:
                receiver = RECEIVER
                receiver._socket = Socket([frames])
            try:
                request = receiver.recv_pyobj(zmq.NOBLOCK)
            except zmq.Again:
                results.append({"outcome": "not decoded"})
                continue
            requests.append(request)
            results.append(describe(request, facts=options.get("facts", False)))
        return requests, results

    def forward(self, states: list[Any]) -> None:
        """Prefill of all that was admitted, then one decode step, without the language model."""
        embedding = torch.nn.Embedding(64, HIDDEN)
        for batch in self.scheduler.next_execution_plan().forward:
            self.stage = "sampling pools"
            for rid in batch.request_ids:
                self.pools._reset_slot(1, self.output.rid_to_state[rid].sampling_params)
            self.stage = "multimodal context"
            context = multimodal_context_for_forward(batch, self.output.rid_to_state)
            self.stage = "positions"
            self.set_positions(batch, context)
            if context is None:
                continue
            self.stage = "encoder"
            ids = torch.tensor(batch.input_ids, dtype=torch.int64)
            if self.encoders:
                with torch.no_grad():
                    self.embedder.apply(ids, embedding, context, self.encoders, None)
            else:
                self.embedder._plan(context)
            self.stage = "decode positions"
            self.set_positions(
                SimpleNamespace(
                    input_lengths=[1] * len(batch.request_ids), num_extends=lambda: 0, extend_prefix_lens=[]
                ),
                context,
            )

    def set_positions(self, batch: Any, context: Any) -> None:
        total = sum(batch.input_lengths)
        buffers = self.positions.input_buffers
        buffers.positions_buf = torch.arange(total)
        buffers.mrope_positions_buf = torch.zeros(3, total, dtype=torch.int64)
        self.positions._mrope_decode_deltas_buf = torch.zeros(total, dtype=torch.int64)
        self.positions._mrope_decode_deltas_cpu = [torch.zeros(total, dtype=torch.int64) for _ in range(2)]
        self.positions.build_positions_override(batch, context, total)


RECEIVER = IpcReceiver(Socket([]))
# The union is made of the classes that exist when a process opens its socket: the scheduler's.
RECEIVER._decoder = MsgpackDecoder(
    __import__("tokenspeed.runtime.engine.io_struct", fromlist=["x"]).ipc_message_union()
)
MATERIALIZER = MsgpackDecoder(TokenizedGenerateReqInput)


def facts_of(tensor: Any) -> list[Any] | None:
    if tensor is None:
        return None
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), data]


def describe(request: Any, *, facts: bool) -> dict[str, Any]:
    """What the decoder made of a message."""
    if not isinstance(request, TokenizedGenerateReqInput):
        return {"outcome": "control", "tag": type(request).__name__, "rid": request.rid}
    found: dict[str, Any] = {"outcome": "generate", "rid": request.rid, "error": request.validation_error}
    if not facts:
        return found
    found |= {"input_ids": request.input_ids, "unpadded": request.input_ids_unpadded, "media": None}
    media = request.multimodal_inputs
    if media is not None:
        found["media"] = {
            "positions": facts_of(media.mrope_positions),
            "delta": facts_of(media.mrope_position_delta),
            "scalar": media.mrope_position_delta_scalar,
            "items": [
                {
                    "modality": item.modality.value,
                    "hash": item.hash,
                    "pad": item.pad_value,
                    "offsets": [list(offset) for offset in item.offsets or ()],
                    "feature": facts_of(item.feature),
                    "data": {name: facts_of(value) for name, value in item.model_specific_data.items()},
                }
                for item in media.mm_items
            ],
        }
    return found


def materialize(frames: list[bytes], config: dict[str, Any]) -> dict[str, Any]:
    """What the engine's own `InputProcessor.tokenize_one_request` does to precomputed media."""
    request = MATERIALIZER.decode(frames)
    media = request.multimodal_inputs
    if media is not None and request.input_ids_unpadded is None:
        media.ensure_pad_values()
        ids = request.input_ids
        if ids is not None and media.mrope_positions is None:
            positions, delta = compute_mrope_positions(namespace(config), ids, media.mm_items)
            media.mrope_positions, media.mrope_position_delta = positions, delta
            if delta is not None:
                media.mrope_position_delta_scalar = int(delta.flatten()[0].item())
        request.input_ids_unpadded = ids
        request.input_ids = pad_input_tokens(ids, media)
    return describe(request, facts=True)


def namespace(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{key: namespace(entry) for key, entry in value.items()})
    return value


def answer(question: dict[str, Any]) -> dict[str, Any]:
    if question["op"] == "materialize":
        try:
            return {"result": materialize(question["frames"], question["config"])}
        except Exception as error:
            return {"died": f"{type(error).__name__}: {error}"[:500]}
    engine = Engine(question)
    try:
        results = engine.run([list(message) for message in question["messages"]])
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = str(error).strip().splitlines() or [""]
        return {
            "died": f"{type(error).__name__}: {what[0]}"[:500],
            "stage": engine.stage,
            "where": f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}",
        }
    terminal = [msgpack.unpackb(frames[0], strict_map_key=False)[:4] for frames in engine.sent.messages]
    return {"results": results, "terminal": terminal}


def main() -> None:
    pipe, out = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while head := pipe.read(4):
        question = msgpack.unpackb(pipe.read(struct.unpack("<I", head)[0]), strict_map_key=False)
        reply = msgpack.packb(answer(question), default=str)
        out.write(struct.pack("<I", len(reply)) + reply)
        out.flush()


if __name__ == "__main__":
    main()
