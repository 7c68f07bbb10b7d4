"""Every configuration key: its type, its default and its one-line meaning, one class a section.

A key's description is the only place where its meaning is written: `print-config` and
`config/sidecar.toml` are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sidecar.settings.types import (
    Address,
    Count,
    CurveKey,
    CurveKeys,
    Depth,
    Device,
    FileMode,
    Flag,
    HostPort,
    Length,
    Messages,
    Names,
    Natural,
    Pattern,
    PlainTable,
    PositiveSeconds,
    PositiveSize,
    Seconds,
    Size,
    Text,
    TokenIds,
)

Mode = Literal["push-pull", "relay"]
Framing = Literal["native", "typed"]

DEFAULT_CONTROL_TAGS: Final = (
    "AbortReq",
    "FlushCacheReqInput",
    "PauseSchedulerReqInput",
    "ResumeSchedulerReqInput",
    "IsSchedulerPausedReqInput",
    "IsSleepingReqInput",
    "GetInternalStateReq",
    "ProfileReq",
)
"""Control messages that change no weights and no memory."""


class Section(BaseModel):
    """A table of the configuration file. Unknown keys are errors; values are not converted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class EndpointSection(Section):
    """A section with a `bind`/`connect` pair: naming one drops the default of the other."""

    @model_validator(mode="before")
    @classmethod
    def _one_of_the_pair(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("connect") is not None and "bind" not in data:
            return {**data, "bind": None}
        return data

    @property
    def address(self) -> str:
        """The address of whichever of the pair is set."""
        address: str | None = getattr(self, "bind", None) or getattr(self, "connect", None)
        if address is None:
            raise ValueError("neither bind nor connect is set")
        return address


class Ingress(EndpointSection):
    """The PULL socket that requests come in on."""

    bind: Address | None = Field(
        default="ipc:///tmp/sidecar/ingress.sock",
        description="address to bind for the frontend's PUSH socket",
    )
    connect: Address | None = Field(
        default=None, description="address to connect to, for a frontend that binds its PUSH socket itself"
    )
    hwm: Messages = Field(default=8, description="high-water mark, in messages")
    framing: Framing = Field(
        default="native",
        description='"native" is [payload, *aux], "typed" is [type byte, payload, *aux]; relay mode is typed',
    )


class Egress(EndpointSection):
    """The PUSH socket that requests leave on."""

    bind: Address | None = Field(
        default="ipc:///tmp/sidecar/scheduler.sock",
        description="address to bind for a scheduler that connects",
    )
    connect: Address | None = Field(default=None, description="address to connect to, for a scheduler that binds")
    hwm: Messages = Field(default=8, description="high-water mark, in messages")
    framing: Framing = Field(default="native", description="same values as ingress.framing, and its value by default")
    stall_timeout_s: PositiveSeconds = Field(
        default=10.0, description="no progress for this long while something waits: not ready"
    )


class Relay(Section):
    """Relay mode: the sidecar stands between a gateway and the engine that dials it."""

    frontend_handshake: Address | None = Field(
        default=None,
        description="what to dial as the engine: the gateway's handshake address, or its worker URL (ipc:///path)",
    )
    engine_handshake: Address | None = Field(default=None, description="handshake address to bind for the engine")
    socket_dir: Text = Field(default="/tmp/sidecar", description="folder for the ipc sockets that the relay binds")
    ready_overrides: Literal["auto"] | PlainTable = Field(
        default="auto",
        description="keys merged into the engine's ready message; auto: mrope_positions = false for M-RoPE",
    )
    observe_outputs: Flag = Field(
        default=True, description="outputs pass through the sidecar, so that it knows which requests are live"
    )


class Model(Section):
    """The model behind the engine."""

    path: Text = Field(
        default="config/models/qwen3_5", description="a folder with config.json, the file itself, or a hub id"
    )
    image_placeholder_ids: TokenIds | None = Field(
        default=None,
        description="ids of the model's native image placeholder, where its tokenizer needs remote code",
    )
    trust_remote_code: Flag = Field(default=False, description="run code that comes with the model")


class Engine(Section):
    """The engine that the requests are for."""

    kind: Literal["tokenspeed", "vllm", "sglang"] = Field(
        default="tokenspeed", description="which form of placeholders the engine expects"
    )
    role: Literal["colocated", "prefill", "decode"] = Field(
        default="colocated", description="the engine's part in disaggregated serving"
    )
    language_model_only: Flag = Field(default=False, description="the engine runs without its media encoders")
    max_model_len: Length | None = Field(
        default=None,
        description="longest sequence the engine serves; relay mode takes the ready message's value",
    )
    output_logprobs: Flag = Field(default=False, description="the engine was started with output logprobs")
    finalize_sampling: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="normalize and verify sampling params here; auto: for native egress framing only",
    )


class Materialize(Section):
    """What is filled in on the way."""

    upstream: Literal["complete", "passthrough"] = Field(
        default="complete",
        description="requests materialized upstream: fill what is missing, or touch nothing",
    )
    mrope_ownership: Literal["any-field", "positions"] = Field(
        default="any-field", description="which M-RoPE fields make the payload the owner of its positions"
    )
    mrope_reference: Literal["engine", "transformers"] = Field(
        default="engine", description="whose positions are exact: the target engine's or transformers'"
    )
    device: Device = Field(default="auto", description='where M-RoPE is filled: "auto", "cpu", "cuda", "cuda:1"')
    device_min_tokens: Natural = Field(default=65536, description="shorter prompts are filled on the CPU")
    hash: Literal["canonical", "tokenspeed"] = Field(
        default="canonical",
        description="hash for items that come without one: collision-proof, or the engine's own",
    )
    trust_client_hash: Flag = Field(default=True, description="false: recompute the hash of every inline item")
    hoist_bytes: Size = Field(
        default=32768, description="inline tensors at least this large leave as aux frames; 0: never"
    )
    expand_placeholders: Flag = Field(
        default=True, description="one placeholder an image becomes the model's full sequence"
    )


class Admission(Section):
    """What is let through."""

    text_requests: Literal["forward", "reject"] = Field(
        default="forward", description="reject: refuse requests without media, in pools that serve only media"
    )
    token_ids: Literal["strict", "trusted"] = Field(
        default="strict", description="trusted: skip the type and range scan of the prompt"
    )
    duplicate_window_s: Seconds = Field(
        default=30.0,
        description="a rid is not forwarded twice within this time; 0: off; exact where outputs are observed",
    )
    control_tags: Names = Field(default=DEFAULT_CONTROL_TAGS, description="native control messages that may pass")
    shared_memory: Literal["check", "forward", "refuse"] = Field(
        default="check", description="items in shared memory: check the segment, forward unchecked, or refuse"
    )
    shared_memory_pattern: Pattern = Field(
        default=r"^(psm|smg|tokenspeed)[A-Za-z0-9_.-]*$",
        description="segment names that may be looked at and, when refused, unlinked",
    )
    unlink_refused: Flag = Field(default=True, description="unlink the segments of refused requests")


class Limits(Section):
    """Bounds on one message and on all that is in flight."""

    message_bytes: PositiveSize = Field(default=2**30, description="largest message")
    frames: Count = Field(default=4096, description="most frames a message")
    items: Count = Field(default=1024, description="most media items a request")
    nesting: Depth = Field(default=32, description="deepest nesting of a payload")
    inflight_bytes: PositiveSize = Field(
        default=2**31, description="stop reading when this much is held; one larger message passes alone"
    )
    inflight_requests: Count = Field(default=4096, description="stop reading when this many requests are held")


class Shutdown(Section):
    """What happens after SIGTERM."""

    grace_s: Seconds = Field(default=10.0, description="time to deliver what is held")
    spill_dir: Text | None = Field(
        default=None, description="folder where undelivered requests are written, as a recording"
    )


class Quarantine(Section):
    """Messages that could not be answered."""

    dir: Text | None = Field(default=None, description="folder where messages without a readable rid are kept")
    max_bytes: PositiveSize = Field(default=2**26, description="most that the folder may hold")


class Security(Section):
    """Who may speak to the sidecar."""

    allow_remote: Flag = Field(
        default=False, description="allow TCP addresses that other hosts can reach; they need CURVE as well"
    )
    secret_key_file: Text | None = Field(
        default=None,
        description="the sidecar's own CURVE key, mode 0600 (sidecar keygen); bound TCP sockets use it",
    )
    allowed_client_keys: CurveKeys = Field(
        default=(), description="CURVE public keys of the peers that may connect to a bound TCP socket"
    )
    ingress_server_key: CurveKey | None = Field(
        default=None, description="CURVE public key of the frontend that ingress.connect names"
    )
    egress_server_key: CurveKey | None = Field(
        default=None, description="CURVE public key of the scheduler that egress.connect names"
    )
    socket_mode: FileMode = Field(default=0o600, description="file mode of bound ipc sockets")


class Admin(Section):
    """The HTTP server for operators."""

    bind: HostPort = Field(
        default="127.0.0.1:9464",
        description="host and port of /metrics, /healthz, /readyz and the status page",
    )


class Log(Section):
    """What the process says."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="least severe level shown")
    format: Literal["text", "json"] = Field(default="text", description="for people or for machines")


class Settings(Section):
    """The whole configuration, validated and frozen. `load` makes it; the defaults alone are usable."""

    mode: Mode = Field(
        default="push-pull",
        description='"push-pull" between two sockets, or "relay" between a gateway and its engine',
    )
    ingress: Ingress = Ingress()
    egress: Egress = Egress()
    relay: Relay = Relay()
    model: Model = Model()
    engine: Engine = Engine()
    materialize: Materialize = Materialize()
    admission: Admission = Admission()
    limits: Limits = Limits()
    shutdown: Shutdown = Shutdown()
    quarantine: Quarantine = Quarantine()
    security: Security = Security()
    admin: Admin = Admin()
    log: Log = Log()

    FOLLOWS: ClassVar[Mapping[str, str]] = {"egress.framing": "ingress.framing"}
    """Keys whose default is the value of another key."""
