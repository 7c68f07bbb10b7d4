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

BATCH: Final = 256
_OBJECT_BYTES: Final = 500
"""What the Python objects around a message's bytes take, roughly."""


class About(NamedTuple):
    """What the results keep of a message. `rid` is empty for one that has none, or several."""

    nbytes: int
    modality: str
    rid: str


class Shot(NamedTuple):
    """A message ready to be sent. `mono_ns` is its clock in the recording."""

    frames: Sequence[Buffer]
    kind: MessageKind
    about: About
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
        self._ahead: list[Shot] = []
        self._rest = self._read()
        pipe = plan.recording == "-" or not _is_file_or_folder(plan.recording)
        self._whole = plan.preload or (pipe and plan.loops != 1)
        if self._whole or not pipe:
            self._fill(None if self._whole else READ_AHEAD_BYTES)

    def __iter__(self) -> Iterator[Shot]:
        return itertools.chain.from_iterable(self.batches())

    def batches(self) -> Iterator[Sequence[Shot]]:
        """The shots in batches as they are at hand: what was read ahead in large ones, the rest record by record."""
        left = self._plan.limit
        for loop in itertools.count():
            suffix = self._plan.suffix(loop)
            sent = False
            for batch in self._source(loop):
                shots = [_renamed(shot, suffix) for shot in batch] if suffix else batch
                if left is not None:
                    shots = shots[:left]
                    left -= len(shots)
                sent = sent or bool(shots)
                yield shots
                if left == 0:
                    return
            if loop + 1 == self._plan.loops or not sent:
                return

    def _fill(self, budget: int | None) -> None:
        for shots in self._rest:
            self._ahead.extend(shots)
            if budget is not None:
                budget -= sum(shot.about.nbytes + _OBJECT_BYTES for shot in shots)
                if budget < 0:
                    return
            if self._plan.limit is not None and len(self._ahead) >= self._plan.limit:
                return
        self._whole = True

    def _source(self, loop: int) -> Iterator[Sequence[Shot]]:
        if loop and not self._whole:
            return self._read()
        ahead = (self._ahead[i : i + BATCH] for i in range(0, len(self._ahead), BATCH))
        return ahead if loop else itertools.chain(ahead, self._rest)

    def _read(self) -> Iterator[Sequence[Shot]]:
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
        about = About(sum(map(len, frames)), modality, rid)
        yield Shot(frames, envelope.kind, about, record.mono_ns)


def _renamed(shot: Shot, suffix: str) -> Shot:
    """The shot with other rids. Its framing shows in its first frame: a typed one's is a type byte."""
    framing = Framing.TYPED if len(shot.frames) > 1 and len(shot.frames[0]) == 1 else Framing.NATIVE
    frames = rename(shot.frames, framing, peek(shot.frames, framing), suffix)
    about = shot.about
    return shot._replace(frames=frames, about=about._replace(rid=about.rid + suffix if about.rid else ""))


def _is_file_or_folder(path: str) -> bool:
    mode = os.stat(path).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
