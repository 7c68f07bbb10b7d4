"""What became of every message: counted once, logged at a limited rate, kept where nobody else would know.

The identity that holds at every moment on the event loop:
received{generate} + received{unreadable} = sum of requests_total + requests in flight.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

from sidecar.admission.shm import SegmentProbe
from sidecar.dialects import express
from sidecar.observability.logs import RateLimitedLogger
from sidecar.observability.metrics import Metrics
from sidecar.observability.status import RecentRefusals
from sidecar.outcome import Envelope, Kind, Outcome, Result
from sidecar.recording import Direction
from sidecar.service.taps import NoTaps, Taps
from sidecar.wire.msgpack import Buffer

Keep = Callable[[Sequence[Buffer], Outcome], None]
"""Takes a dropped message's frames, to quarantine them."""

_GENERATE: Final = Kind.GENERATE
_FORWARDED: Final = Result.FORWARDED
_HEX_HEAD: Final = 32
_MODALITIES: Final = ("", "image", "video", "audio")

logger = logging.getLogger(__name__)


class Ledger:
    """Books outcomes into the metrics, the log and the list of recent refusals. On the event loop's thread.

    `taps` are shown every message as it comes and as it leaves.
    """

    def __init__(self, metrics: Metrics, probe: SegmentProbe, keep: Keep, taps: Taps | NoTaps | None = None) -> None:
        self.log = RateLimitedLogger(logger)
        self.refusals = RecentRefusals()
        self.moved = 0
        """Messages that came to their end: what progress is measured by."""
        self._metrics = metrics
        self._probe = probe
        self._keep = keep
        self.taps: Taps | NoTaps = taps if taps is not None else NoTaps()
        self._since = 0.0
        self._stages = metrics.stages

    def start(self) -> None:
        """A message's first stage begins."""
        self._since = perf_counter()

    def lap(self, stage: str) -> None:
        """A stage ends, the next one begins."""
        now = perf_counter()
        self._stages[stage].observe(now - self._since)
        self._since = now

    def received(self, envelope: Envelope, nbytes: int) -> None:
        """Book the receipt of a message."""
        metrics = self._metrics
        metrics.received[envelope.kind] += 1
        metrics.received_bytes += nbytes
        if self.taps.active:
            self.taps.offer(Direction.INGRESS, envelope.message.frames)

    def passed(self, rids: Sequence[str], received: int, left: int, read_s: float, sent_s: float) -> None:
        """Book the receipt and the hand-over of requests that went the short way, and their bytes.

        `read_s` is what reading one of them took, all stages before the hand-over in one, `sent_s` what a
        hand-over took on average.
        """
        count = len(rids)
        self.moved += count
        metrics = self._metrics
        metrics.received[_GENERATE] += count
        metrics.received_bytes += received
        metrics.requests[express.DIALECT, _FORWARDED] += count
        metrics.sent_bytes += left
        self._stages["parse"].observe(read_s, count)
        self._stages["send"].observe(sent_s, count)

    def handed_over(self, outcome: Outcome, nbytes: int) -> None:
        """Book a message whose `nbytes` were given to libzmq."""
        self.moved += 1
        metrics = self._metrics
        metrics.sent_bytes += nbytes
        if self.taps.active:
            for frames in outcome.messages:
                self.taps.offer(Direction.EGRESS, frames, str(outcome.result))
        if outcome.kind is _GENERATE:
            metrics.requests[outcome.dialect, outcome.result] += 1
            if outcome.result is not _FORWARDED:
                self._refused(outcome)
            elif outcome.media:
                self._media(outcome)
            if outcome.delta_without_positions:
                self._delta_only(outcome)
        elif outcome.kind is Kind.ABORT:
            metrics.aborts["forwarded"] += len(outcome.rids)
        else:
            metrics.control["forwarded"] += 1

    def dropped(self, envelope: Envelope, outcome: Outcome) -> None:
        """Book a message that goes nowhere: unreadable, a duplicate, or a control message that may not pass."""
        self.moved += 1
        metrics = self._metrics
        reason = str(outcome.reason) if outcome.reason is not None else "no_form"
        head = bytes(envelope.message.payload[:_HEX_HEAD]).hex()
        fields = {"kind": str(envelope.kind), "reason": reason, "bytes": envelope.nbytes}
        if envelope.kind is Kind.ABORT:
            metrics.aborts["dropped"] += 1
        elif envelope.kind is Kind.CONTROL:
            metrics.control["dropped"] += 1
        else:
            metrics.requests[outcome.dialect, "dropped"] += 1
            if outcome.reason is not None:
                metrics.rejected[outcome.reason] += 1
            self.refusals.add(envelope.rid, reason, outcome.message)
        if envelope.rid is not None:
            fields["rid"] = envelope.rid
        else:
            fields["head"] = head  # of a message that nobody can be told about; prompt ids stand further back
        self.log.warning(f"dropped {envelope.kind} {reason}", f"dropped: {outcome.message}", fields)
        self._keep(envelope.message.frames, outcome)

    def cancelled(self, envelope: Envelope) -> None:
        """Book a request that was aborted before it was handed over."""
        self.moved += 1
        self._metrics.requests[envelope.dialect, "cancelled"] += 1

    def spilled(self, envelope: Envelope, rids: int) -> None:
        """Book a message that was written to disk instead; `rids` counts those of an abort."""
        if envelope.kind is Kind.GENERATE:
            self._metrics.requests[envelope.dialect, "spilled"] += 1
        elif envelope.kind is Kind.ABORT:
            self._metrics.aborts["spilled"] += rids
        else:
            self._metrics.control["spilled"] += 1

    def aborts_cancelled(self, rids: int) -> None:
        """Book aborts that are done with: their requests were still held."""
        self._metrics.aborts["cancelled"] += rids

    def worked(self, laps: Sequence[tuple[str, float]]) -> None:
        """Book the stages of a request that a pool thread has processed."""
        self.moved += 1
        for stage, seconds in laps:
            self._stages[stage].observe(seconds)

    def _refused(self, outcome: Outcome) -> None:
        reason = outcome.reason
        if reason is not None:
            self._metrics.rejected[reason] += 1
            self.refusals.add(outcome.rid, reason, outcome.message)
            fields = {"rid": outcome.rid, "reason": str(reason)}
            self.log.warning(f"refused {reason}", f"refused: {outcome.message}", fields)
        for name in outcome.unlink:
            try:
                self._probe.unlink(name)
            except OSError as error:
                self.log.warning("unlink", f"cannot unlink a segment: {error.strerror}", {"segment": name})
            else:
                self._metrics.unlinked_segments += 1

    def _media(self, outcome: Outcome) -> None:
        for note in outcome.media:
            modality = _MODALITIES[note.modality]
            self._metrics.media_items[modality] += 1
            self._metrics.media_tokens[modality] += note.tokens

    def _delta_only(self, outcome: Outcome) -> None:
        self._metrics.delta_without_positions += 1
        self.log.warning(
            "delta without positions",
            "an M-RoPE delta came without positions: the engine will use linear positions for this prefill "
            '(materialize.mrope_ownership = "positions" computes them)',
            {"rid": outcome.rid},
        )
