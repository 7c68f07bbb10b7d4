"""Two recordings compared, request by request and field by field.

Requests are matched by rid (the n-th message of a rid with the n-th), or by their order. A field has a
path such as `multimodal_inputs.mm_items[0].pad_value`; its group is the path without the numbers. How a
tensor travels (inline or in an aux frame) is no difference: what counts is dtype, shape and values.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np

from sidecar.errors import Rejection
from sidecar.recording import Direction, Reader, Record
from sidecar.replay.decode import (
    MessageKind,
    Undecodable,
    aux_of,
    is_tensor,
    payload_of,
    peek,
    tensor_of,
    unpack,
)
from sidecar.wire.msgpack import Buffer
from sidecar.wire.tensors import Tensor, canonical_dtype
from sidecar.wire.tokenspeed import GENERATE_TAG, Item, Media, Request, Sampling

_SHOWN: Final = 60
_FULL_MEDIA: Final = len(Media)


class Difference(NamedTuple):
    """A field that differs: where, and how in words."""

    path: str
    what: str

    @property
    def group(self) -> str:
        """The path without the numbers in it."""
        return re.sub(r"\[\d+\]", "[]", self.path)


@dataclass
class Comparison:
    """What a comparison has found. `first` are the differences of the first request that has any."""

    matched: int = 0
    equal: int = 0
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    groups: Counter[str] = field(default_factory=Counter)
    differing: list[tuple[str, list[Difference]]] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether the recordings agree."""
        return not (self.differing or self.only_a or self.only_b)


class Ignore:
    """Fields that may differ: names (`created_time`, at any depth) or patterns of paths
    (`multimodal_inputs.mm_items*.hash`)."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._patterns = tuple(patterns)

    def __call__(self, path: str) -> bool:
        if not self._patterns:
            return False
        plain = re.sub(r"\[\d+\]", "", path)
        last = plain.rpartition(".")[2]
        return any(
            pattern == last or fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(plain, pattern)
            for pattern in self._patterns
        )


def compare(
    a: Iterable[Record],
    b: Iterable[Record],
    *,
    ignore: Ignore | None = None,
    direction: Direction | None = None,
    by_order: bool = False,
    rid_map: Callable[[str], str] = lambda rid: rid,
    examples: int = 20,
) -> Comparison:
    """Compare the messages of two recordings.

    `direction` None compares all but the outputs of a scheduler. `rid_map` is applied to the rids of
    both sides before they are matched and compared. Of at most `examples` requests the differences are
    kept; the counts are of all.
    """
    ignore = ignore or Ignore()
    left, right = (_keyed(records, direction, by_order, rid_map) for records in (a, b))
    result = Comparison()
    for key, one in left.items():
        other = right.pop(key, None)
        if other is None:
            result.only_a.append(_name(key))
            continue
        result.matched += 1
        differences: list[Difference] = []
        if one.digest != other.digest:
            differences = [d for d in differences_of(one.load(), other.load(), rid_map) if not ignore(d.path)]
        if not differences:
            result.equal += 1
            continue
        result.groups.update(list(dict.fromkeys(d.group for d in differences)))
        if len(result.differing) < examples:
            result.differing.append((_name(key), differences))
    result.only_b = [_name(key) for key in right]
    return result


_Key = tuple[str, str, int]


class _Message(NamedTuple):
    """A message of a recording: a digest of its frames, and how to get it again."""

    digest: bytes
    load: Callable[[], Record]


def _keyed(
    records: Iterable[Record], direction: Direction | None, by_order: bool, rid_map: Callable[[str], str]
) -> dict[_Key, _Message]:
    """The messages under (kind, rid, how many there were of that before).

    Of a recording in a file only the places are kept, so that large features do not fill the memory.
    """
    counts: defaultdict[tuple[str, str], int] = defaultdict(int)
    keyed: dict[_Key, _Message] = {}
    for record in records:
        if record.direction is Direction.OUTPUT if direction is None else record.direction is not direction:
            continue
        envelope = peek(record.frames, record.framing)
        rid = "" if by_order else ",".join(map(rid_map, envelope.rids))
        number = counts[envelope.kind, rid]
        counts[envelope.kind, rid] += 1
        if isinstance(records, Reader) and records.seekable:
            load = partial(records.read_at, records.record_offset)
        else:
            load = partial(_itself, record)
        keyed[envelope.kind, rid, number] = _Message(_digest(record), load)
    return keyed


def _itself(record: Record) -> Record:
    return record


def _digest(record: Record) -> bytes:
    digest = blake2b(record.framing.encode(), digest_size=16)
    for frame in record.frames:
        digest.update(len(frame).to_bytes(8, "little"))
        digest.update(frame)
    return digest.digest()


def _name(key: _Key) -> str:
    kind, rid, number = key
    return f"{kind} {rid or f'number {number + 1}'}" + (f" (time {number + 1})" if rid and number else "")


def differences_of(a: Record, b: Record, rid_map: Callable[[str], str] = lambda rid: rid) -> Iterator[Difference]:
    """The fields in which two messages differ."""
    one, other = peek(a.frames, a.framing), peek(b.frames, b.framing)
    if (one.kind, one.tag) != (other.kind, other.tag):
        yield Difference("kind", f"{one.kind} {one.tag} | {other.kind} {other.tag}")
        return
    if one.kind is MessageKind.ABORT:
        rids = [list(map(rid_map, envelope.rids)) for envelope in (one, other)]
        if rids[0] != rids[1]:
            yield Difference("rids", f"{rids[0]!r:.{_SHOWN}} | {rids[1]!r:.{_SHOWN}}")
        return
    if one.kind is MessageKind.UNREADABLE:
        if list(map(bytes, a.frames)) == list(map(bytes, b.frames)):
            return
        yield Difference("bytes", f"{a.nbytes} | {b.nbytes} bytes, unreadable")
        return
    try:
        left, right = unpack(payload_of(a.frames, a.framing)), unpack(payload_of(b.frames, b.framing))
    except Undecodable as error:
        yield Difference("payload", f"undecodable: {error}")
        return
    if one.tag == GENERATE_TAG:
        left, right = ([*v[:1], rid_map(v[1]), *v[2:]] for v in (left, right))
    sides = _Sides(aux_of(a.frames, a.framing), aux_of(b.frames, b.framing))
    yield from sides.diff_array(left, right, "", _NAMES if one.tag == GENERATE_TAG else {})


_Names = Mapping[int, tuple[str, Any]]
"""Position -> (name, the names inside it: a mapping for an array, "items" for a list of media items)."""

_SAMPLING: Final[_Names] = {int(f): (f.name.lower(), None) for f in Sampling}
_ITEM: Final[_Names] = {int(f): (f.name.lower(), None) for f in Item}
_MEDIA: Final[_Names] = {int(f): (f.name.lower(), "items" if f is Media.MM_ITEMS else None) for f in Media}
_NAMES: Final[_Names] = {
    int(f): (
        f.name.lower(),
        _SAMPLING if f is Request.SAMPLING_PARAMS else _MEDIA if f is Request.MULTIMODAL_INPUTS else None,
    )
    for f in Request
}


class _Sides:
    """The aux frames of both messages, and the walk over their values."""

    def __init__(self, aux_a: Sequence[Buffer], aux_b: Sequence[Buffer]) -> None:
        self._aux = aux_a, aux_b

    def diff_array(self, a: Any, b: Any, path: str, names: _Names) -> Iterator[Difference]:
        """Two arrays by position; a position behind the end of one is nil in it."""
        if not isinstance(a, list) or not isinstance(b, list):
            yield from self.diff(a, b, path)
            return
        for position in range(max(len(a), len(b))):
            name, inner = names.get(position, (f"field[{position}]" if names else f"[{position}]", None))
            where = f"{path}.{name}" if path and names else f"{path}{name}"
            one = a[position] if position < len(a) else None
            other = b[position] if position < len(b) else None
            if inner == "items":
                for number, pair in enumerate(_pairs(one, other)):
                    yield from self.diff_array(*pair, f"{where}[{number}]", _ITEM)
            elif inner is not None:
                yield from self.diff_array(one, other, where, inner)
            else:
                yield from self.diff(one, other, where)

    def diff(self, a: Any, b: Any, path: str) -> Iterator[Difference]:
        """Two values of any type."""
        if is_tensor(a) and is_tensor(b):
            yield from self._diff_tensors(a, b, path)
        elif isinstance(a, dict) and isinstance(b, dict):
            for key in [*a, *(key for key in b if key not in a)]:
                yield from self.diff(a.get(key), b.get(key), f"{path}.{key}" if path else str(key))
        elif isinstance(a, list) and isinstance(b, list) and _are_ids(a) and _are_ids(b):
            if a != b:
                yield Difference(path, _ids_differ(a, b))
        elif isinstance(a, list) and isinstance(b, list):
            yield from self.diff_array(a, b, path, {})
        elif type(a) is not type(b) or (a != b and not (a != a and b != b)):
            yield Difference(path, f"{_show(a)} | {_show(b)}")

    def _diff_tensors(self, a: Any, b: Any, path: str) -> Iterator[Difference]:
        try:
            one, other = tensor_of(a, self._aux[0]), tensor_of(b, self._aux[1])
        except Undecodable as error:
            yield Difference(path, f"a broken tensor: {error}")
            return
        if canonical_dtype(one.dtype) != canonical_dtype(other.dtype):
            yield Difference(path, f"dtype {one.dtype} | {other.dtype}")
        elif one.shape != other.shape:
            yield Difference(path, f"shape {list(one.shape)} | {list(other.shape)}")
        elif one.data != other.data:
            yield Difference(path, _values_differ(one, other))


def _pairs(a: Any, b: Any) -> Iterator[tuple[Any, Any]]:
    left, right = a if isinstance(a, list) else [], b if isinstance(b, list) else []
    for number in range(max(len(left), len(right))):
        yield (left[number] if number < len(left) else None, right[number] if number < len(right) else None)


def _are_ids(values: list[Any]) -> bool:
    return len(values) > 8 and all(type(value) is int for value in values)


def _ids_differ(a: list[int], b: list[int]) -> str:
    at = next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
    count = sum(one != other for one, other in zip(a, b, strict=False)) + abs(len(a) - len(b))
    values = " | ".join(str(ids[at]) if at < len(ids) else "nothing" for ids in (a, b))
    lengths = "" if len(a) == len(b) else f"; {len(a)} | {len(b)} ids"
    return f"{count} of {max(len(a), len(b))} ids differ, the first at [{at}]: {values}{lengths}"


def _values_differ(a: Tensor, b: Tensor) -> str:
    shape = list(a.shape)
    try:
        one, other = a.array(), b.array()
    except Rejection:  # fp8: numpy has no such type
        one, other = (np.frombuffer(tensor.data, np.uint8).reshape(a.shape) for tensor in (a, b))
    unequal = (one != other) & ~((one != one) & (other != other))
    count = int(unequal.sum())
    if not count:
        return f"{a.dtype} {shape}: equal values in other bits (NaN payloads or signed zeros)"
    at = [int(i) for i in np.argwhere(unequal)[0]]
    largest = float(np.max(np.abs(one[unequal].astype(np.float64) - other[unequal].astype(np.float64))))
    return (
        f"{a.dtype} {shape}: {count} of {one.size} values differ, the largest difference is {largest:g}, "
        f"the first at {at}: {one[tuple(at)]} | {other[tuple(at)]}"
    )


def _show(value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(value, msgpack.ExtType):
        return f"ext {value.code} of {len(value.data)} bytes"
    if is_tensor(value):
        return f"tensor {value[0]} {value[1]}"
    if isinstance(value, list) and len(value) > 4:
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
