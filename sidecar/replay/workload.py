"""What a replay sends: the messages of a recording, chosen, looped, renamed and reframed."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidecar.recording import Direction, Reader, Record
from sidecar.replay.decode import MessageKind, modality_of, peek
from sidecar.replay.rewrite import reframe, rename
from sidecar.wire.framing import Framing
from sidecar.wire.msgpack import Buffer

READ_AHEAD_BYTES: Final = 256 << 20
"""Of a file this much is read before the first message is sent, so that reading does not cost speed."""


class Shot(NamedTuple):
    """A message ready to be sent. `mono_ns` is its clock in the recording; `rid` is empty for messages
    that have none, or several."""

    frames: Sequence[Buffer]
    kind: MessageKind
    rid: str
    modality: str
    nbytes: int
    mono_ns: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send of a recording.

    `direction` None takes the direction of the first message that is no output of a scheduler, so that a
    recording of both ends of a sidecar is sent once. `framing` None keeps each message's own. `loops` 0
    is without end. `suffix` gives the ending that all rids of a loop get (None: as they are).
    """

    recording: str
    direction: Direction | None = None
    framing: Framing | None = None
    loops: int = 1
    limit: int | None = None
    preload: bool = False
    suffix: Callable[[int], str] = lambda loop: f".{loop + 1}" if loop else ""
    select: Callable[[Record], bool] | None = None


class Workload:
    """Iterates the shots of a plan. `skipped` counts messages that the framing has no form for.

    Opening reads ahead (a pipe's messages are passed on as they come instead, unless it is looped).
    """

    def __init__(self, plan: Plan) -> None:
        self.skipped = 0
        self.truncated = ""
        self._plan = plan
        self._direction = plan.direction
        self._ahead: list[list[Shot]] = []
        self._rest: Iterator[list[Shot]] = iter(())
        pipe = plan.recording == "-" or not _is_file_or_folder(plan.recording)
        self._whole = plan.preload or (pipe and plan.loops != 1)
        self._rest = self._read()
        if self._whole or not pipe:
            self._fill(None if self._whole else READ_AHEAD_BYTES)

    def __iter__(self) -> Iterator[Shot]:
        shots = self._loops()
        return shots if self._plan.limit is None else itertools.islice(shots, self._plan.limit)

    def _fill(self, budget: int | None) -> None:
        for shots in self._rest:
            self._ahead.append(shots)
            if budget is not None:
                budget -= sum(shot.nbytes for shot in shots) + 500  # and the objects around the bytes
                if budget < 0:
                    return
            if self._plan.limit is not None and len(self._ahead) >= self._plan.limit:
                return
        self._whole = True

    def _loops(self) -> Iterator[Shot]:
        for loop in itertools.count():
            suffix = self._plan.suffix(loop)
            sent = False
            for shots in self._source(loop):
                for shot in shots:
                    sent = True
                    yield _renamed(shot, suffix) if suffix else shot
            if loop + 1 == self._plan.loops or not sent:
                return

    def _source(self, loop: int) -> Iterator[list[Shot]]:
        if loop == 0:
            return itertools.chain(self._ahead, self._rest)
        return iter(self._ahead) if self._whole else self._read()

    def _read(self) -> Iterator[list[Shot]]:
        plan = self._plan
        with Reader(plan.recording) as reader:
            for record in reader:
                if self._direction is None and record.direction is not Direction.OUTPUT:
                    self._direction = record.direction
                if record.direction is not self._direction or (plan.select and not plan.select(record)):
                    continue
                shots = list(_shots(record, plan.framing or record.framing))
                self.skipped += not shots
                yield shots
            self.truncated = str(reader.truncation or "")


def _shots(record: Record, framing: Framing) -> Iterator[Shot]:
    envelope = peek(record.frames, record.framing)
    modality = modality_of(record.frames, record.framing, envelope)
    messages = reframe(record.frames, record.framing, framing, envelope)
    for number, frames in enumerate(messages):
        rid = envelope.rids[number] if len(messages) == len(envelope.rids) else ""
        nbytes = sum(map(len, frames))
        yield Shot(frames, envelope.kind, rid, modality, nbytes, record.mono_ns)


def _renamed(shot: Shot, suffix: str) -> Shot:
    """The shot with other rids. Its framing shows in its first frame: a typed one's is a type byte."""
    framing = Framing.TYPED if len(shot.frames) > 1 and len(shot.frames[0]) == 1 else Framing.NATIVE
    frames = rename(shot.frames, framing, peek(shot.frames, framing), suffix)
    return shot._replace(frames=frames, rid=shot.rid + suffix if shot.rid else "")


def _is_file_or_folder(path: str) -> bool:
    mode = os.stat(path).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
