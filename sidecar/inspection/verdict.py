"""What the sidecar would do with a message, and what a scheduler would say to one that it sent.

The rules are the pipeline's own: nothing is judged here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar import pipeline
from sidecar.context import Context
from sidecar.inspection.page import Page, read_page
from sidecar.inspection.values import TIMES, Node, size
from sidecar.materialize.placeholders import Encoder
from sidecar.model import ModelSpec
from sidecar.outcome import Kind, Outcome, Result
from sidecar.recording import Direction, Framing, Record
from sidecar.replay.decode import MessageKind, Undecodable, decode_request, tensor_of
from sidecar.replay.scheduler_check import SchedulerCheck
from sidecar.settings import Settings
from sidecar.wire.framing import TYPE_ABORT, TYPE_ADD
from sidecar.wire.msgpack import Buffer
from sidecar.wire.tokenspeed import Media

_FEW_PLACES: Final = 4
_MAX_POSITIONS_BYTES: Final = 1 << 28


@dataclass(frozen=True, slots=True)
class Change:
    """A field that leaves otherwise than it came; an empty text is a field that is not there."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a message.

    `action` is `forward`, `refuse`, `drop`, or for a message on its way to the scheduler `sound` or
    `unsound`. `reason` is the code of a refusal, `why` a sentence each. `facts` say what was done,
    `changes` which fields it touched. `positions` are the M-RoPE positions [axes, n] that leave, `sent` is
    the message that does.
    """

    action: str
    summary: str
    reason: str = ""
    why: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    positions: NDArray[Any] | None = None
    delta: int | None = None
    sent: Record | None = None


class Judge:
    """Runs the rules over the messages of a recording, one model and one configuration for all.

    `rules` says in words whose they are. With `memory`, the messages are those of one stream and know of
    each other: a rid or a hash that comes again is judged by what went before. Without, each stands alone.
    Shared memory is not looked at.
    """

    def __init__(
        self,
        settings: Settings,
        spec: ModelSpec,
        *,
        rules: str,
        memory: bool,
        egress_framing: Framing | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        self.rules = rules
        self._encoder = encoder
        self._settings = settings
        self._spec = spec
        self._memory = memory
        self._egress = egress_framing
        self._contexts: dict[Framing, Context] = {}
        self._schedulers: dict[Framing, SchedulerCheck] = {}
        self._now = 0.0

    def judge(self, record: Record, page: Page) -> Verdict | None:
        """The verdict; None for what is not on its way through the sidecar: outputs, handshakes."""
        if record.direction is Direction.EGRESS:
            return self._as_scheduler(record)
        if page.kind is MessageKind.OUTPUT or record.direction is Direction.OUTPUT:
            return None
        if page.kind is MessageKind.UNREADABLE and page.title != "unreadable message":
            return None
        self._now = record.wall_ns / 1e9
        return describe(record, page, pipeline.run(record.frames, self._context(record.framing)))

    def _context(self, framing: Framing) -> Context:
        context = self._contexts.get(framing)
        if context is None or not self._memory:
            admission = self._settings.admission
            if admission.shared_memory == "check":  # what a recording's handles meant is gone
                admission = admission.model_copy(update={"shared_memory": "forward"})
            sections = {
                "admission": admission,
                "ingress": self._settings.ingress.model_copy(update={"framing": framing.value}),
                "egress": self._settings.egress.model_copy(update={"framing": (self._egress or framing).value}),
            }
            settings = self._settings.model_copy(update={"mode": "push-pull", **sections})
            context = Context.from_settings(settings, self._spec, now=lambda: self._now, encoder=self._encoder)
            self._contexts[framing] = context
        return context

    def _as_scheduler(self, record: Record) -> Verdict:
        check = self._schedulers.get(record.framing)
        if check is None or not self._memory:
            check = SchedulerCheck(record.framing, mrope=self._spec.mrope_family is not None)
            self._schedulers[record.framing] = check
        verdict = check.check(record.frames)
        positions, delta = positions_of(record)
        if verdict.problems:
            return Verdict(
                "unsound", "a scheduler would stumble over this", "", verdict.problems, (), (), positions, delta
            )
        facts = (f"the client would get this error: {verdict.error}",) if verdict.error else ()
        return Verdict("sound", "a scheduler takes this", "", (), facts, (), positions, delta)


def describe(record: Record, page: Page, outcome: Outcome) -> Verdict:
    """The verdict that an outcome of the pipeline amounts to."""
    why = (outcome.message,) if outcome.message else ()
    reason = outcome.reason.value if outcome.reason is not None else ""
    if outcome.result is Result.DROPPED:
        return Verdict("drop", _dropped(outcome), reason, why)
    frames = outcome.messages[0]
    sent = dataclasses.replace(record, frames=frames, direction=Direction.EGRESS, framing=_framing(frames))
    if outcome.result is Result.REJECTED:
        summary = "refuse: the request is forwarded empty, with this text as its validation_error"
        return Verdict("refuse", summary, reason, why, tuple(_unlinked(outcome)), sent=sent)
    if outcome.kind is not Kind.GENERATE:
        return Verdict("forward", "forward it", sent=sent)
    positions, delta = positions_of(sent)
    facts = tuple(_facts(outcome, positions))
    changes: tuple[Change, ...] = ()
    if list(frames) == list(record.frames):
        summary = "forward it as it came, byte for byte"
    else:
        changes = tuple(compare(page, read_page(sent)))
        summary = "forward it with these fields changed" if changes else "forward it in the other framing"
    return Verdict("forward", summary, "", (), facts, changes, positions, delta, sent)


def _framing(frames: Sequence[Buffer]) -> Framing:
    return Framing.TYPED if len(frames) > 1 and frames[0] in (TYPE_ADD, TYPE_ABORT) else Framing.NATIVE


def _dropped(outcome: Outcome) -> str:
    if outcome.kind is Kind.UNREADABLE:
        return "drop it: nobody can be answered without a rid; counted, logged, quarantined"
    return "drop it; counted and logged"


def _unlinked(outcome: Outcome) -> Iterator[str]:
    if outcome.unlink:
        yield f"unlink the shared memory that nobody else owns: {', '.join(outcome.unlink)}"


def _facts(outcome: Outcome, positions: NDArray[Any] | None) -> Iterator[str]:
    for note in outcome.media:
        whose = "computed from its content" if note.hashed else "from the frontend"
        digest = f"hash {note.hash % 2**64:#018x} ({whose})" if note.hash is not None else "no hash"
        what = f"{note.modality.name.lower()}, {note.tokens} tokens"
        yield f"item {note.ordinal}: {what}, {digest}, pad value {note.pad_value}"
    if outcome.substituted:
        yield f"{outcome.substituted} placeholder ids become pad values; input_ids_unpadded keeps the ids as they came"
    if outcome.delta is not None and positions is not None:
        shape, dtype = list(positions.shape), positions.dtype.name
        yield f"M-RoPE positions: {dtype} {shape}, {size(positions.nbytes)}, delta {outcome.delta}"
    if outcome.delta_without_positions:
        yield "a delta came without positions: an engine that runs prefill will use linear ones"


def positions_of(record: Record) -> tuple[NDArray[Any] | None, int | None]:
    """(M-RoPE positions [axes, n], delta) that a request carries."""
    try:
        request = decode_request(record.frames, record.framing)
        media = request.media + [None] * (len(Media) - len(request.media))
        scalar = media[Media.MROPE_POSITION_DELTA_SCALAR]
        positions = tensor_of(media[Media.MROPE_POSITIONS], request.aux)
    except (Undecodable, TypeError, ValueError):
        return None, None
    if positions.data.nbytes > _MAX_POSITIONS_BYTES or len(positions.shape) != 2:
        return None, None
    array = np.array(positions.array())
    return array, scalar if type(scalar) is int else None


def compare(before: Page, after: Page) -> Iterator[Change]:
    """The fields of a request that differ between two pages, by their paths."""
    if before.tag == after.tag:
        yield from _compare("", before.fields, after.fields)


def _compare(path: str, before: Sequence[Node], after: Sequence[Node]) -> Iterator[Change]:
    old, new = ({node.name: node for node in nodes} for nodes in (before, after))
    for name in dict.fromkeys([*old, *new]):
        left, right = old.get(name), new.get(name)
        here = f"{path}.{name}" if path else name
        if left is None or right is None:
            gone = left or right
            if gone is not None and not gone.default:
                yield Change(here, left.text if left is not None else "", right.text if right is not None else "")
        elif left.children and right.children:
            yield from _compare(here, left.children, right.children)
        elif left.value != right.value and (places := list(_changed_ids(left, right))):
            yield Change(here, *(_few([pair[side] for pair in places]) for side in (0, 1)))
        elif left.text != right.text:
            yield Change(here, "" if left.default else left.text, "" if right.default else right.text)


def _changed_ids(left: Node, right: Node) -> Iterator[tuple[str, str]]:
    """(before, after) of every stretch in which two id lists of one length differ; nothing for other values."""
    old, new = (node.value if isinstance(node.value, dict) else {} for node in (left, right))
    if "runs" not in old or "runs" not in new or old["count"] != new["count"]:
        return
    before, after = (dict(_starts(value["runs"])) for value in (old, new))
    edges = [*sorted({*before, *after}), old["count"]]
    was = now = 0
    for start, stop in pairwise(edges):
        was, now = before.get(start, was), after.get(start, now)
        if was != now:
            count = stop - start
            yield f"{count}{TIMES}[{was}] at {start}", f"{count}{TIMES}[{now}]"


def _starts(runs: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """(place of the first id, id) of every run."""
    place = 0
    for count, value in runs:
        yield place, value
        place += count


def _few(texts: Sequence[str]) -> str:
    more = f", … {len(texts) - _FEW_PLACES} more" if len(texts) > _FEW_PLACES else ""
    return ", ".join(texts[:_FEW_PLACES]) + more
