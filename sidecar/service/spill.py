"""What could not be delivered by the end of a drain, written to a recording that `sidecar replay` delivers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from sidecar.context import Context
from sidecar.outcome import Outcome, Result
from sidecar.pipeline import commit, process
from sidecar.recording import Direction, Record, Writer
from sidecar.service.held import Held
from sidecar.service.quarantine import recording_name

PATTERN: Final = "spill-*.rec"


class Spill:
    """A recording of undelivered messages, in the order and in the form in which the ingress takes them.

    They are written as they would have left, admitted and materialized: an engine may be given them
    directly, and a sidecar leaves its own output as it is. Only where the framings differ they are
    written as they came. The file is made with the first message.
    """

    def __init__(self, folder: Path, context: Context) -> None:
        self.path = folder / recording_name("spill")
        self.messages = 0
        self.bytes = 0
        self._context = context
        self._writer: Writer | None = None

    def write(self, held: Iterable[Held]) -> Iterator[tuple[Held, Outcome]]:
        """Write messages, and yield each with its outcome when it is on disk.

        An outcome of `dropped` (a duplicate) is not written: it would not have been delivered. Raises
        OSError; what was yielded by then is in the recording.
        """
        policy = self._context.policy
        same = policy.ingress_framing is policy.egress_framing
        for message in held:
            outcome = message.outcome or process(message.envelope, self._context)
            if not message.committed:
                outcome = commit(outcome, self._context)
            if outcome.result is not Result.DROPPED:
                for frames in outcome.messages[message.sent :] if same else [message.envelope.message.frames]:
                    result = str(outcome.result)
                    record = Record.now(frames, Direction.INGRESS, policy.ingress_framing, outcome=result)
                    self._open().write(record)
                    self.messages += 1
                    self.bytes += record.nbytes
            yield message, outcome

    def __enter__(self) -> Spill:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> Writer:
        if self._writer is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._writer = Writer(self.path, info={"pid": os.getpid()})
        return self._writer


def count_recordings(folder: Path | None) -> int:
    """The recordings that lie in a spill folder, those of earlier processes included."""
    return sum(1 for _ in folder.glob(PATTERN)) if folder is not None else 0
