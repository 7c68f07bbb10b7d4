"""The structures of the wire by the names of their fields: requests, media, outputs, aborts, maps.

Each is read as far as it goes: what cannot be read is said where it stands, and the rest is shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias

from sidecar.admission.sampling import DEFAULT_VALUES
from sidecar.errors import Rejection
from sidecar.inspection.values import MAX_CHILDREN, MAX_DEPTH, Node, read_ids, read_tensor_node, read_value
from sidecar.wire.msgpack import Buffer, read_array_header, skip
from sidecar.wire.tokenspeed import REQUEST_DEFAULTS, Item, Media, Modality, Request, Sampling

Reader: TypeAlias = Callable[[str, Buffer, int, int, Sequence[Buffer]], Node]
"""Makes the node of the whole value `buf[start:end]`."""

OUTPUT_FIELDS: Final = (
    "tag", "rids", "output_ids", "finished_reasons", "prompt_tokens", "completion_tokens", "cached_tokens",
    "output_token_logprobs_val", "output_token_logprobs_idx", "engine_index", "num_running", "num_waiting",
    "kv_active_pages", "kv_total_pages",
)  # fmt: skip
"""Fields of the scheduler's `BatchTokenIDOutSlim`."""

CONTROL_FIELDS: Final = ("tag", "rid", "http_worker_ipc")
"""What every other tagged message begins with; the engine's classes define the rest."""


@dataclass(frozen=True, slots=True)
class Struct:
    """An array whose places have names. `readers` are for fields that are more than a value.

    `unknown` and its place is the name of a field that has none.
    """

    names: Sequence[str]
    defaults: Mapping[int, Any] = dataclasses.field(default_factory=dict)
    readers: Mapping[int, Reader] = dataclasses.field(default_factory=dict)
    unknown: str = "field"

    def name(self, index: int) -> str:
        """The field's name; one that is not known here is named after its place."""
        return self.names[index] if index < len(self.names) else f"{self.unknown} {index}"


def read_struct(struct: Struct, name: str, buf: Buffer, start: int, end: int, aux: Sequence[Buffer]) -> Node:
    """The node of an array with named fields; of whatever stands there, if it is none."""
    count, _ = read_array_header(buf, start, end)
    if count < 0:
        return read_value(name, buf, start, end, aux)
    node, fault = read_partial(struct, name, buf, start, end, aux)
    return dataclasses.replace(node, text=f"{node.text}: {fault}") if fault else node


def read_partial(
    struct: Struct, name: str, buf: Buffer, start: int, end: int, aux: Sequence[Buffer]
) -> tuple[Node, str | None]:
    """The node of an array that may be cut short or damaged, and what is wrong with it."""
    count, pos, fault = _header(buf, start, end)
    nodes: list[Node] = []
    for index in range(count):
        if pos >= end:
            fault = f"cut short: {count} fields are promised, {struct.name(index)} is not there"
            break
        try:
            after = skip(buf, pos, end, MAX_DEPTH)
        except Rejection as rejection:
            fault = f"{struct.name(index)}: {rejection.message}"
            break
        if index < MAX_CHILDREN:
            nodes.append(_field(struct, index, buf, pos, after, aux))
        pos = after
    else:
        if pos < end:
            fault = f"{end - pos} bytes follow the array, which ends at byte {pos}"
    return Node(name, start, pos, f"{count} fields", None, tuple(nodes)), fault


def _header(buf: Buffer, start: int, end: int) -> tuple[int, int, str | None]:
    """(elements that an array's header promises, position of the first, what is wrong with the header)."""
    width = {0xDC: 2, 0xDD: 4}.get(buf[start], 0)
    pos = start + 1 + width
    if pos > end:
        return 0, end, "cut short within the header"
    count = int.from_bytes(buf[start + 1 : pos], "big") if width else buf[start] & 0x0F
    return count, pos, None


def _field(struct: Struct, index: int, buf: Buffer, start: int, end: int, aux: Sequence[Buffer]) -> Node:
    reader = struct.readers.get(index, read_value)
    name = struct.name(index)
    try:
        node = reader(name, buf, start, end, aux)
    except Rejection as rejection:
        node = Node(name, start, end, rejection.message)
    default = index < len(struct.names) and not node.children and _is_default(node, struct.defaults.get(index), buf)
    return dataclasses.replace(node, index=index, default=default)


def _is_default(node: Node, default: Any, buf: Buffer) -> bool:
    if default is None:
        return buf[node.start] == 0xC0
    return type(node.value) is type(default) and node.value == default


def _names(fields: type[IntEnum]) -> tuple[str, ...]:
    return tuple(field.name.lower() for field in fields)


def _read_id_list(name: str, buf: Buffer, start: int, end: int, aux: Sequence[Buffer]) -> Node:
    node = read_ids(name, buf, start, end, "ids")
    return node if node is not None else read_value(name, buf, start, end, aux)


def _read_modality(name: str, buf: Buffer, start: int, end: int, aux: Sequence[Buffer]) -> Node:
    node = read_value(name, buf, start, end, aux)
    known = node.value in tuple(Modality) and type(node.value) is int
    what = Modality(node.value).name.lower() if known else "no known modality"
    return dataclasses.replace(node, text=f"{node.text} ({what})")


def _read_hash(name: str, buf: Buffer, start: int, end: int, aux: Sequence[Buffer]) -> Node:
    node = read_value(name, buf, start, end, aux)
    if type(node.value) is not int:
        return node
    return dataclasses.replace(node, text=f"{node.value} ({node.value % 2**64:#018x})")


def _read_tensor(name: str, buf: Buffer, start: int, end: int, aux: Sequence[Buffer]) -> Node:
    if read_array_header(buf, start, end)[0] < 0:
        return read_value(name, buf, start, end, aux)
    return read_tensor_node(name, buf, start, end, aux)


def _read_items(name: str, buf: Buffer, start: int, end: int, aux: Sequence[Buffer]) -> Node:
    count, pos = read_array_header(buf, start, end)
    if count < 0:
        return read_value(name, buf, start, end, aux)
    items = []
    for index in range(count):
        after = skip(buf, pos, end, MAX_DEPTH)
        if index < MAX_CHILDREN:
            items.append(read_struct(ITEM, f"item {index}", buf, pos, after, aux))
        pos = after
    more = f", the first {len(items)} shown" if count > len(items) else ""
    return Node(name, start, end, f"{count} item{'' if count == 1 else 's'}{more}", None, tuple(items))


def _reader_of(struct: Struct) -> Reader:
    def read(name: str, buf: Buffer, start: int, end: int, aux: Sequence[Buffer]) -> Node:
        return read_struct(struct, name, buf, start, end, aux)

    return read


def _read_sampling(name: str, buf: Buffer, start: int, end: int, aux: Sequence[Buffer]) -> Node:
    node = read_struct(SAMPLING, name, buf, start, end, aux)
    if not node.children:
        return node
    told = ", ".join(f"{child.name} {child.text}" for child in node.children if not child.default)
    return dataclasses.replace(node, text=told or "all at their defaults", folded=True)


SAMPLING: Final = Struct(_names(Sampling), dict(enumerate(DEFAULT_VALUES)))
ITEM: Final = Struct(
    _names(Item),
    {Item.MODEL_SPECIFIC_DATA: {}},
    {
        Item.MODALITY: _read_modality,
        Item.HASH: _read_hash,
        Item.FEATURE: _read_tensor,
        Item.ENCODED: _read_tensor,
        Item.ENCODED_DEEPSTACK: _read_tensor,
    },
)
MEDIA: Final = Struct(
    _names(Media),
    {},
    {Media.MM_ITEMS: _read_items, Media.MROPE_POSITIONS: _read_tensor, Media.MROPE_POSITION_DELTA: _read_tensor},
)
REQUEST: Final = Struct(
    _names(Request),
    {int(field): value for field, value in REQUEST_DEFAULTS.items()},
    {
        Request.INPUT_IDS: _read_id_list,
        Request.INPUT_IDS_UNPADDED: _read_id_list,
        Request.SAMPLING_PARAMS: _read_sampling,
        Request.MULTIMODAL_INPUTS: _reader_of(MEDIA),
    },
)
OUTPUT: Final = Struct(OUTPUT_FIELDS)
CONTROL: Final = Struct(CONTROL_FIELDS)
RID_LIST: Final = Struct((), unknown="rid")
