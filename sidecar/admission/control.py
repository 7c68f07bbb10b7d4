"""Control messages: which may pass to the engine, and what their fields must be.

The engine's PUSH/PULL socket decodes every message into one tagged union and dispatches on the type. A
tag it does not know, a field of another type, or a message that decodes but has no handler ends the
scheduler; so each message that may pass stands in a table here, with the types of TokenSpeed 0.1.1's
`io_struct`. Fields behind the known ones are later engines' and pass if they are well-formed.

`ProfileReq` keeps one hole: the engine creates `output_dir` where it runs, and a path it may not write
to ends it. Only an operator who controls that host can tell, by leaving the tag out of the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgpack

from sidecar.admission.values import PLAIN, describe, leaves
from sidecar.errors import ConfigError, Reason, Rejection
from sidecar.wire.msgpack import NIL, Buffer, pack_array_header, pack_str, read_array_header, skip
from sidecar.wire.tokenspeed import ABORT_TAG

MAX_DEPTH: Final = 32
"""Containers inside one another in a control message."""

MAX_ABORT_RIDS: Final = 16_384
"""Rids in one ABORT of the typed framing; 10,000 of 50 bytes take 3 ms."""

PICKLE_TAG: Final = "PickleWrapper"
"""A message that the engine would unpickle. It never passes, whatever the configuration says."""

_PROFILE_TAG: Final = "ProfileReq"


class Control(NamedTuple):
    """A control message that may pass: its tag, and the rids it aborts (none, unless it is an AbortReq)."""

    tag: str
    rids: tuple[str, ...]


class _Type(NamedTuple):
    expected: str
    accepts: Callable[[Any], bool]


class _Field(NamedTuple):
    name: str
    type: _Type
    required: bool


def _is(*types: type) -> Callable[[Any], bool]:
    accepted = frozenset(types)
    return lambda value: type(value) in accepted


def _list_of(*types: type) -> Callable[[Any], bool]:
    accepted = frozenset(types)
    return lambda value: type(value) is tuple and all(type(item) in accepted for item in value)


def _is_plain_map(value: Mapping[Any, Any]) -> bool:
    return all(type(key) is str for key in value) and all(type(leaf) in PLAIN for leaf in leaves(value))


_NIL = type(None)
_STR = _Type("a str", _is(str))
_STR_OR_NIL = _Type("a str or nil", _is(str, _NIL))
_INT = _Type("an int", _is(int))
_INT_OR_NIL = _Type("an int or nil", _is(int, _NIL))
_BOOL = _Type("a bool", _is(bool))
_BOOL_OR_NIL = _Type("a bool or nil", _is(bool, _NIL))
_STRS = _Type("a list of str", _list_of(str))
_STRS_OR_NIL = _Type("a list of str or nil", lambda value: value is None or _STRS.accepts(value))
_BINS = _Type("a list of bin", _list_of(bytes))
_SHAPES = _Type(
    "a list of lists of ints",
    lambda value: type(value) is tuple and all(map(_list_of(int), value)),
)
_RID = _Type("a str, a list of str or nil", lambda value: type(value) is str or _STRS_OR_NIL.accepts(value))
_MODE = _Type("one of abort, keep, wait", lambda value: type(value) is str and value in ("abort", "keep", "wait"))
_PROFILE = _Type("1 (start) or 2 (stop)", lambda value: type(value) is int and value in (1, 2))
_ARGS = _Type("a map of str to plain values", lambda value: type(value) is dict and _is_plain_map(value))


def _required(name: str, kind: _Type) -> _Field:
    return _Field(name, kind, required=True)


def _optional(name: str, kind: _Type) -> _Field:
    return _Field(name, kind, required=False)


_BASE: Final = (_optional("rid", _RID), _optional("http_worker_ipc", _STR_OR_NIL))

_MESSAGES: Final[Mapping[str, tuple[_Field, ...]]] = {
    ABORT_TAG: (_required("rid", _STR), _optional("http_worker_ipc", _STR_OR_NIL)),
    "FlushCacheReqInput": _BASE,
    "PauseSchedulerReqInput": (*_BASE, _optional("mode", _MODE)),
    "ResumeSchedulerReqInput": _BASE,
    "IsSchedulerPausedReqInput": _BASE,
    "IsSleepingReqInput": _BASE,
    "GetInternalStateReq": _BASE,
    _PROFILE_TAG: (
        *_BASE,
        _required("type", _PROFILE),
        _optional("output_dir", _STR_OR_NIL),
        _optional("start_step", _INT_OR_NIL),
        _optional("num_steps", _INT_OR_NIL),
        _optional("activities", _STRS_OR_NIL),
        _optional("profile_by_stage", _BOOL),
        _optional("with_stack", _BOOL_OR_NIL),
        _optional("record_shapes", _BOOL_OR_NIL),
        _optional("profile_id", _STR_OR_NIL),
    ),
    "SetInternalStateReq": (*_BASE, _required("server_args", _ARGS)),
    "ReleaseMemoryOccupationReqInput": (*_BASE, _optional("tags", _STRS_OR_NIL)),
    "ResumeMemoryOccupationReqInput": (*_BASE, _optional("tags", _STRS_OR_NIL)),
    "InitWeightsUpdateGroupReqInput": (
        *_BASE,
        _required("master_address", _STR),
        _required("master_port", _INT),
        _required("rank_offset", _INT),
        _required("world_size", _INT),
        _optional("group_name", _STR),
        _optional("backend", _STR),
    ),
    "DestroyWeightsUpdateGroupReqInput": (*_BASE, _optional("group_name", _STR)),
    "RebalanceExpertsReqInput": _BASE,
    "UpdateWeightsFromDistributedReqInput": (
        *_BASE,
        _required("names", _STRS),
        _required("dtype_names", _STRS),
        _required("shapes", _SHAPES),
        _optional("group_name", _STR),
        _optional("flush_cache", _BOOL),
        _required("weight_version", _STR_OR_NIL),
    ),
    "UpdateWeightsFromMooncakeReqInput": (
        *_BASE,
        _required("version", _INT),
        _required("flush_cache", _BOOL),
        _required("weight_version", _STR_OR_NIL),
    ),
    "UpdateWeightsFromTensorReqInput": (
        *_BASE,
        _required("serialized_named_tensors", _BINS),
        _required("load_format", _STR_OR_NIL),
        _required("flush_cache", _BOOL),
        _optional("weight_version", _STR_OR_NIL),
    ),
    "UpdateWeightFromDiskReqInput": (
        *_BASE,
        _required("model_path", _STR),
        _optional("load_format", _STR_OR_NIL),
        _optional("weight_version", _STR_OR_NIL),
    ),
}
"""Every message that the scheduler has a handler for. Weight and memory operations are here to be named."""


def check_tags(tags: Iterable[str]) -> frozenset[str]:
    """Return the tags of `admission.control_tags` as the allow-list.

    Raises `ConfigError` for one whose fields this sidecar does not know: it could not keep a message
    that the engine dies of from passing.
    """
    allowed = frozenset(tags)
    if PICKLE_TAG in allowed:
        raise ConfigError(f"admission.control_tags names {PICKLE_TAG}, which never passes; remove it")
    unknown = sorted(allowed - _MESSAGES.keys())
    if unknown:
        raise ConfigError(
            f"admission.control_tags names {', '.join(unknown)}; the engine handles no such control message."
            f" Use any of {', '.join(sorted(_MESSAGES))}"
        )
    return allowed


def check_control(payload: Buffer, allowed_tags: frozenset[str]) -> Control:
    """Return what a native control message is, if it may pass.

    Raises `Rejection(malformed_request)` for a payload that is not exactly one array, a tag outside
    the allow-list and a field of the wrong type; `Rejection(too_large)` for deep nesting.
    """
    fields = _decode_array(payload, "control message")
    tag = fields[0] if fields else None
    if type(tag) is not str:
        raise _malformed("a control message has no tag; expected an array that begins with a str")
    if tag not in allowed_tags or tag == PICKLE_TAG:
        raise _malformed(f"the control message {tag[:60]!r} is not in admission.control_tags")
    schema = _MESSAGES[tag]
    for index, field in enumerate(schema, start=1):
        if index >= len(fields):
            if field.required:
                raise _malformed(f"{tag} ends before its field {index}, {field.name}; expected {field.type.expected}")
        elif not field.type.accepts(fields[index]):
            raise _malformed(
                f"{tag}.{field.name} (field {index}) is {describe(fields[index])}; expected {field.type.expected}"
            )
    if tag == _PROFILE_TAG:
        _check_profile(dict(zip((field.name for field in schema), fields[1:], strict=False)))
    return Control(tag, (fields[1],) if tag == ABORT_TAG else ())


def parse_abort_list(payload: Buffer) -> tuple[str, ...]:
    """The rids of a typed ABORT, in order.

    Raises `Rejection(malformed_request)` for anything but one array of str, and `Rejection(too_large)`
    for more than `MAX_ABORT_RIDS`.
    """
    count, _ = read_array_header(payload, 0, len(payload))
    if count > MAX_ABORT_RIDS:
        raise Rejection(Reason.TOO_LARGE, f"an abort list names {count} rids; the limit is {MAX_ABORT_RIDS}")
    rids = _decode_array(payload, "abort list")
    for index, rid in enumerate(rids):
        if type(rid) is not str:
            raise _malformed(f"entry {index} of an abort list is {describe(rid)}; expected a str")
    return rids


def encode_abort_req(rid: str) -> bytes:
    """The native message that aborts one rid."""
    return b"\x93" + pack_str(ABORT_TAG) + pack_str(rid) + NIL


def encode_abort_list(rids: Iterable[str]) -> bytes:
    """The typed ABORT payload that aborts these rids."""
    encoded = [pack_str(rid) for rid in rids]
    return pack_array_header(len(encoded)) + b"".join(encoded)


def _decode_array(payload: Buffer, what: str) -> tuple[Any, ...]:
    """Decode one array without trailing bytes, ext values or deep nesting."""
    size = len(payload)
    count, _ = read_array_header(payload, 0, size)
    if count < 0:
        raise _malformed(f"the {what} starts with byte {payload[0]:#04x}; expected an array")
    end = skip(payload, 0, size, MAX_DEPTH)  # so that no header claims more than there is to allocate
    if end != size:
        raise _malformed(f"the {what} has {size - end} bytes after its array")
    try:
        fields: tuple[Any, ...] = msgpack.unpackb(payload, use_list=False, strict_map_key=False, ext_hook=_refuse_ext)
    except UnicodeDecodeError:
        raise _malformed(f"the {what} has a str that is not UTF-8") from None
    except (ValueError, TypeError) as error:
        raise _malformed(f"the {what} does not decode: {str(error)[:120]}") from None
    return fields


def _refuse_ext(code: int, data: bytes) -> None:
    raise ValueError(f"it has an ext value of code {code} and {len(data)} bytes")


def _check_profile(fields: Mapping[str, Any]) -> None:
    """What ends the engine later, while it profiles."""
    if fields["type"] == 1 and fields.get("profile_by_stage") and not fields.get("num_steps"):
        raise _malformed(
            f"{_PROFILE_TAG}.profile_by_stage is set and num_steps is {describe(fields.get('num_steps'))};"
            " expected a number of steps, which the engine counts by stage"
        )
    for name, forbidden in (("output_dir", "\0"), ("profile_id", "\0/")):
        text = fields.get(name) or ""
        if any(char in text for char in forbidden):
            raise _malformed(f"{_PROFILE_TAG}.{name} cannot be part of a file name: it holds a NUL or a slash")


def _malformed(message: str) -> Rejection:
    return Rejection(Reason.MALFORMED_REQUEST, message)
