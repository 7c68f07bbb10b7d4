"""A message taken apart: its frames, its fields by name, its media against the prompt, and what is amiss.

Pure, and lenient: a message that the sidecar refuses is shown as far as it can be read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from sidecar.errors import Rejection
from sidecar.inspection.fields import CONTROL, OUTPUT, REQUEST, RID_LIST, Struct, read_partial
from sidecar.inspection.values import TIMES, Node, read_value, runs_of, size
from sidecar.recording import Framing, Record
from sidecar.replay.decode import Envelope, MessageKind, aux_of, payload_of, peek
from sidecar.wire.framing import TYPE_ABORT, TYPE_ADD, read_tag
from sidecar.wire.msgpack import Buffer, skip
from sidecar.wire.pads import pad_value
from sidecar.wire.tokenspeed import ENGINE_DEAD, GENERATE_TAG, Modality

HANDSHAKE_KEYS: Final = frozenset({"status", "addresses"})
"""Keys of the maps that an engine and a gateway exchange before the first request."""

_TITLES: Final = {
    MessageKind.GENERATE: "generate request",
    MessageKind.ABORT: "abort",
    MessageKind.CONTROL: "control message",
    MessageKind.OUTPUT: "output of the scheduler",
    MessageKind.UNREADABLE: "unreadable message",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the prompt, both ends inclusive, that an item claims. `content` says what stands there."""

    start: int
    end: int
    item: int
    modality: str
    content: str


@dataclass(frozen=True, slots=True)
class Page:
    """A message for people.

    `frames` are (role, bytes). `prompt` is the number of ids that the spans count in, None where there
    are none. `problems` keep the message from being read whole, `notes` are worth knowing.
    """

    title: str
    kind: MessageKind
    tag: str
    rids: tuple[str, ...]
    framing: Framing
    frames: tuple[tuple[str, int], ...]
    fields: tuple[Node, ...]
    prompt: int | None = None
    spans: tuple[Span, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """The bytes of all frames."""
        return sum(nbytes for _, nbytes in self.frames)

    def field(self, *path: str) -> Node | None:
        """The node at a path of names, such as `"multimodal_inputs", "mrope_positions"`."""
        nodes: Sequence[Node] = self.fields
        node = None
        for name in path:
            node = next((node for node in nodes if node.name == name), None)
            if node is None:
                return None
            nodes = node.children
        return node

    @property
    def items(self) -> tuple[Node, ...]:
        """The media items."""
        items = self.field("multimodal_inputs", "mm_items")
        return items.children if items is not None else ()


def read_page(record: Record) -> Page:
    """The page of a message. Never raises, whatever the bytes."""
    frames, framing = record.frames, record.framing
    payload, aux = payload_of(frames, framing), aux_of(frames, framing)
    envelope = peek(frames, framing)
    title, fields, problems = _read_payload(payload, aux, envelope)
    is_request = envelope.tag == GENERATE_TAG
    prompt, spans = _place_media(payload, fields) if is_request else (None, ())
    page = Page(
        title,
        envelope.kind,
        envelope.tag,
        envelope.rids,
        framing,
        _name_frames(frames, framing),
        fields,
        prompt,
        spans,
        problems=tuple(problems),
    )
    return dataclasses.replace(page, notes=tuple(_notes(page, aux)))


def _name_frames(frames: Sequence[Buffer], framing: Framing) -> tuple[tuple[str, int], ...]:
    roles = []
    if framing is Framing.TYPED:
        head = bytes(frames[0][:8]) if frames else b""
        name = {TYPE_ADD: " (ADD)", TYPE_ABORT: " (ABORT)"}.get(head, "")
        roles.append(f"type {head.hex()}{name}")
    roles.append("payload")
    roles += [f"aux {index}" for index in range(1, len(frames) - len(roles) + 1)]
    return tuple((role, len(frame)) for role, frame in zip(roles, frames, strict=False))


def _read_payload(
    payload: Buffer, aux: Sequence[Buffer], envelope: Envelope
) -> tuple[str, tuple[Node, ...], list[str]]:
    """(what the message is, its fields, what is wrong with it)."""
    title, end = _TITLES[envelope.kind], len(payload)
    if payload == ENGINE_DEAD:
        return "the engine is gone", (), []
    if not end:
        return title, (), ["there is no payload"]
    if 0x90 <= payload[0] <= 0x9F or payload[0] in (0xDC, 0xDD):
        node, fault = read_partial(_struct(payload, envelope), "", payload, 0, end, aux)
        return title, node.children, [fault] if fault else []
    try:
        after = skip(payload, 0, end)
        node = read_value("value", payload, 0, after, aux)
    except Rejection as rejection:
        return title, (), [rejection.message]
    problems = [f"{size(end - after)} after the payload, which ends at byte {after}"] if after < end else []
    if not 0x80 <= payload[0] <= 0x8F and payload[0] not in (0xDE, 0xDF):
        return title, (node,), [*problems, "the payload is neither an array nor a map"]
    if HANDSHAKE_KEYS & {child.name for child in node.children}:
        title = "handshake"
    elif envelope.kind is MessageKind.UNREADABLE:
        title = "a map without token_ids, such as an engine's ready message"
    return title, node.children, problems


def _struct(payload: Buffer, envelope: Envelope) -> Struct:
    tag = read_tag(payload)
    if tag == GENERATE_TAG:
        return REQUEST
    if envelope.kind is MessageKind.OUTPUT:
        return OUTPUT
    # An ABORT of the typed framing is a bare list of rids: its first string is no tag.
    is_list = envelope.kind is MessageKind.ABORT and tag != envelope.tag
    return RID_LIST if is_list else CONTROL


def _place_media(payload: Buffer, fields: Sequence[Node]) -> tuple[int | None, tuple[Span, ...]]:
    """(ids in the prompt, the spans of all items in it); the unpadded prompt where there is one."""
    by_name = {node.name: node for node in fields}
    media = by_name.get("multimodal_inputs")
    items = media.child("mm_items") if media is not None else None
    if items is None or not items.children:
        return None, ()
    ids = by_name.get("input_ids_unpadded")
    if ids is None or ids.default:
        ids = by_name.get("input_ids")
    runs = runs_of(payload, ids.start, ids.end) if ids is not None and not ids.default else None
    if runs is None:
        return None, ()
    ends = list(accumulate(count for count, _ in runs))
    n = ends[-1] if ends else 0
    spans = []
    for number, item in enumerate(items.children):
        offsets, modality = item.child("offsets"), item.child("modality")
        kind = modality.text.partition("(")[2].rstrip(")") if modality is not None else "?"
        for start, end in _pairs(offsets):
            spans.append(Span(start, end, number, kind, _content(start, end, n, runs, ends)))
    return n, tuple(spans)


def _pairs(offsets: Node | None) -> Iterator[tuple[int, int]]:
    if offsets is None:
        return
    values = offsets.value if isinstance(offsets.value, list) else [child.value for child in offsets.children]
    for pair in values:
        if isinstance(pair, list) and len(pair) == 2 and all(type(place) is int for place in pair):
            yield pair[0], pair[1]


def _content(start: int, end: int, n: int, runs: Sequence[tuple[int, int]], ends: Sequence[int]) -> str:
    if not 0 <= start <= end < n:
        return f"not within the prompt of {n}"
    first = next(index for index, stop in enumerate(ends) if stop > start)
    if ends[first] > end:
        return f"{end - start + 1}{TIMES}[{runs[first][1]}]"
    last = next(index for index, stop in enumerate(ends) if stop > end)
    return f"{end - start + 1} ids in {last - first + 1} runs"


def _notes(page: Page, aux: Sequence[Buffer]) -> Iterator[str]:
    known = len(REQUEST.names)
    if page.tag != GENERATE_TAG:
        return
    if len(page.fields) > known:
        yield f"{len(page.fields) - known} fields behind those that are known here; they pass as they are"
    error = page.field("validation_error")
    if error is not None and not error.default:
        yield "it carries a validation_error"
    if page.items:
        yield from _notes_on_media(page)
    used = {_aux_of(node) for node in _walk(page.fields)}
    unused = [index for index in range(1, len(aux) + 1) if f"aux {index}" not in used]
    if unused:
        yield f"nothing refers to aux {', '.join(map(str, unused[:8]))}"


def _notes_on_media(page: Page) -> Iterator[str]:
    unpadded = page.field("input_ids_unpadded")
    if unpadded is not None and not unpadded.default:
        yield "materialized upstream: input_ids_unpadded is set, so ids and pad values are kept"
    positions = page.field("multimodal_inputs", "mrope_positions")
    if positions is None or positions.default:
        yield "it brings no M-RoPE positions"
    for number, item in enumerate(page.items):
        handle = item.child("feature_shm")
        if handle is not None and not handle.default:
            yield f"item {number} is in shared memory, which is not looked at here"
    hashes: dict[int, int] = {}
    for number, item in enumerate(page.items):
        digest, pad, modality = (_value(item.child(name)) for name in ("hash", "pad_value", "modality"))
        if type(digest) is not int:
            continue
        first = hashes.setdefault(digest, number)
        if first != number:
            yield f"items {first} and {number} have the same hash: the same content twice"
        if type(pad) is int and modality in tuple(Modality):
            wanted = pad_value(Modality(modality), digest)
            if pad != wanted:
                yield f"item {number}: the pad_value is {pad}, its hash makes {wanted}"


def _value(node: Node | None) -> Any:
    return node.value if node is not None else None


def _aux_of(node: Node) -> str | None:
    return node.value.get("place") if isinstance(node.value, dict) else None


def _walk(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from _walk(node.children)
