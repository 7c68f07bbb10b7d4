"""Every metric that the process exports: name, type, meaning and the closed sets of its labels.

`Metrics` holds the numbers, `collector` renders them and `docs/operations.md` documents them; all
three read this table, and nothing else defines a metric.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from sidecar.errors import Reason

KINDS: Final = ("generate", "abort", "control", "unreadable")
DIALECTS: Final = ("tokenspeed", "preprocessed")
OUTCOMES: Final = ("forwarded", "rejected", "answered", "cancelled", "spilled", "dropped")
ABORT_OUTCOMES: Final = ("forwarded", "cancelled", "spilled", "dropped")
CONTROL_OUTCOMES: Final = ("forwarded", "spilled", "dropped")
REASONS: Final = tuple(reason.value for reason in Reason)
STAGES: Final = ("parse", "admit", "hash", "positions", "edit", "send")
MODALITIES: Final = ("image", "video", "audio")
DEVICES: Final = ("cpu", "cuda")
BUILD: Final = ("version", "python", "pyzmq", "uvloop")

STAGE_BOUNDS: Final = (50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0)
"""Upper bounds of a stage's histogram, in seconds."""

LAG_BOUNDS: Final = (500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the event loop's lag, in seconds."""

Type = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    `attribute` is where `Metrics` holds it. `labels` maps a label's name to all its values; a metric
    with one label is held as a dict by value, one with two as a dict by the pair of values.
    `bounds` are a histogram's upper bounds in seconds, without infinity.
    """

    name: str
    type: Type
    help: str
    attribute: str
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    bounds: tuple[float, ...] = ()

    def series(self) -> Iterator[tuple[str, ...]]:
        """All combinations of label values, in the order of the labels."""
        return itertools.product(*self.labels.values())


CATALOG: Final[tuple[Metric, ...]] = (
    # Messages and what became of them
    Metric(
        "sidecar_messages_received_total",
        "counter",
        "Messages taken off the ingress socket.",
        "received",
        {"kind": KINDS},
    ),
    Metric(
        "sidecar_requests_total",
        "counter",
        "Requests that came to their end. forwarded: handed to libzmq; rejected: forwarded with a validation_error "
        "that was set here; answered: the terminal output was sent from here; cancelled: aborted before it was "
        "forwarded; spilled: written to disk at shutdown; dropped: unreadable or a duplicate.",
        "requests",
        {"dialect": DIALECTS, "outcome": OUTCOMES},
    ),
    Metric("sidecar_rejected_total", "counter", "Refused requests, by reason.", "rejected", {"reason": REASONS}),
    Metric(
        "sidecar_aborts_total",
        "counter",
        "Aborted rids. cancelled: the request was still held, so neither it nor its abort was forwarded.",
        "aborts",
        {"outcome": ABORT_OUTCOMES},
    ),
    Metric(
        "sidecar_control_total",
        "counter",
        "Control messages. dropped: not allowed, not well-formed, or without a form in the egress framing.",
        "control",
        {"outcome": CONTROL_OUTCOMES},
    ),
    Metric("sidecar_received_bytes_total", "counter", "Bytes of received messages, all frames.", "received_bytes"),
    Metric("sidecar_sent_bytes_total", "counter", "Bytes of forwarded messages, all frames.", "sent_bytes"),
    Metric(
        "sidecar_media_items_total",
        "counter",
        "Media items of admitted requests.",
        "media_items",
        {"modality": MODALITIES},
    ),
    Metric(
        "sidecar_media_tokens_total",
        "counter",
        "Placeholder tokens of admitted media items.",
        "media_tokens",
        {"modality": MODALITIES},
    ),
    # Time
    Metric(
        "sidecar_stage_duration_seconds",
        "histogram",
        "Time that a request spent in a stage; one a batch is timed of text requests like others before, "
        "all but send as parse.",
        "stages",
        {"stage": STAGES},
        STAGE_BOUNDS,
    ),
    Metric(
        "sidecar_event_loop_lag_seconds",
        "histogram",
        "How much later than due the event loop ran a timer.",
        "loop_lag",
        bounds=LAG_BOUNDS,
    ),
    # What is held, and its bounds
    Metric("sidecar_inflight_requests", "gauge", "Messages between receipt and hand-over.", "inflight_requests"),
    Metric("sidecar_inflight_bytes", "gauge", "Bytes received that libzmq has not yet let go of.", "inflight_bytes"),
    Metric(
        "sidecar_inflight_requests_limit",
        "gauge",
        "limits.inflight_requests: reading stops there.",
        "inflight_requests_limit",
    ),
    Metric(
        "sidecar_inflight_bytes_limit", "gauge", "limits.inflight_bytes: reading stops there.", "inflight_bytes_limit"
    ),
    Metric(
        "sidecar_backpressure_seconds_total",
        "counter",
        "Time for which reading was stopped because a bound was reached.",
        "backpressure_seconds",
    ),
    Metric("sidecar_remembered_rids", "gauge", "Rids in the memory that finds duplicates.", "remembered_rids"),
    Metric(
        "sidecar_remembered_hashes", "gauge", "Content hashes in the memory that finds conflicts.", "remembered_hashes"
    ),
    Metric("sidecar_pool_threads", "gauge", "Threads of the pool for hashing and large requests.", "pool_threads"),
    Metric("sidecar_pool_active_tasks", "gauge", "Tasks that the pool is running.", "pool_active"),
    Metric("sidecar_pool_queued_tasks", "gauge", "Tasks that wait for a thread of the pool.", "pool_queued"),
    # The engine
    Metric("sidecar_engine_connected", "gauge", "1 while an engine is connected, else 0.", "engine_connected"),
    Metric("sidecar_engine_connects_total", "counter", "Times that an engine has connected.", "engine_connects"),
    Metric(
        "sidecar_engine_disconnects_total",
        "counter",
        "Times that a connected engine has gone away.",
        "engine_disconnects",
    ),
    Metric(
        "sidecar_egress_stalled_seconds",
        "gauge",
        "Time since something last moved to the engine while something waits, 0 when nothing waits.",
        "egress_stalled_seconds",
    ),
    Metric("sidecar_ready", "gauge", "1 when /readyz answers 200, else 0.", "ready"),
    Metric(
        "sidecar_relayed_outputs_total", "counter", "Output messages passed from engine to frontend.", "relayed_outputs"
    ),
    Metric("sidecar_relayed_output_bytes_total", "counter", "Bytes of those output messages.", "relayed_output_bytes"),
    # Positions
    Metric(
        "sidecar_mrope_device",
        "gauge",
        "1 for the device that M-RoPE positions of long prompts are filled on, 0 for the other.",
        "mrope_devices",
        {"device": DEVICES},
    ),
    Metric(
        "sidecar_mrope_fills_total",
        "counter",
        "Requests whose M-RoPE positions were filled, by device.",
        "mrope_fills",
        {"device": DEVICES},
    ),
    Metric(
        "sidecar_mrope_delta_without_positions_total",
        "counter",
        "Requests that brought an M-RoPE delta but no positions to an engine that prefills: it uses linear positions.",
        "delta_without_positions",
    ),
    # What could not be delivered
    Metric(
        "sidecar_quarantined_messages_total",
        "counter",
        "Messages kept in quarantine.dir.",
        "quarantined_messages",
    ),
    Metric("sidecar_quarantined_bytes_total", "counter", "Bytes of those messages.", "quarantined_bytes"),
    Metric(
        "sidecar_quarantine_skipped_total",
        "counter",
        "Messages that belong in quarantine but were not kept: no folder is set, or it is full.",
        "quarantine_skipped",
    ),
    Metric(
        "sidecar_spilled_messages_total",
        "counter",
        "Messages written to shutdown.spill_dir by this process.",
        "spilled_messages",
    ),
    Metric("sidecar_spilled_bytes_total", "counter", "Bytes of those messages.", "spilled_bytes"),
    Metric(
        "sidecar_spill_recordings",
        "gauge",
        "Recordings that lie in shutdown.spill_dir, those of earlier processes included.",
        "spill_recordings",
    ),
    Metric(
        "sidecar_shared_memory_unlinked_total",
        "counter",
        "Shared memory segments of refused requests that were unlinked.",
        "unlinked_segments",
    ),
    # Looking at it
    Metric("sidecar_taps", "gauge", "Taps that copy traffic out.", "taps"),
    Metric(
        "sidecar_tap_dropped_messages_total",
        "counter",
        "Messages that a tap missed because its reader was slow.",
        "tap_dropped",
    ),
    Metric("sidecar_log_suppressed_total", "counter", "Log lines left out by rate limits.", "log_suppressed"),
)
"""All metrics but `sidecar_build_info` and those of the process itself."""

BUILD_INFO: Final = Metric(
    "sidecar_build_info",
    "gauge",
    "Always 1; the labels say what runs.",
    "build",
    dict.fromkeys(BUILD, ()),
)
"""Its labels have one value each, known only when the process runs."""

PROCESS: Final[tuple[Metric, ...]] = (
    Metric("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", ""),
    Metric("process_max_fds", "gauge", "Maximum number of open file descriptors.", ""),
    Metric("process_open_fds", "gauge", "Number of open file descriptors.", ""),
    Metric("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", ""),
    Metric("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", ""),
    Metric("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", ""),
)
"""What prometheus_client's ProcessCollector exports on Linux."""
