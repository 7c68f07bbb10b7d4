"""The recording format: how a record is laid out in bytes. docs/recording.md is its specification.

    file   = file header, record*
    record = record header (20 bytes), body

All integers are little-endian. A record header carries a checksum of itself, so that its length can be
trusted before anything is read or allocated, and a checksum of its body. Frames are stored verbatim or
deflated; nothing in a recording is ever executed or unpickled.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final

import msgpack

from sidecar.errors import UsageError
from sidecar.wire.framing import Framing
from sidecar.wire.msgpack import Buffer

Scalar = str | int | float | bool | None

MAGIC: Final = b"\x89SCREC\r\n"
VERSION: Final = 1
INDEX_MAGIC: Final = b"SCRINDEX"

FILE_HEADER: Final = struct.Struct("<8sHHI")
"""Magic, version, reserved (0), CRC-32 of the twelve bytes before it."""

RECORD_HEADER: Final = struct.Struct("<QBBHII")
"""Body length, kind, flags (0), reserved (0), CRC-32 of the body, CRC-32 of the sixteen bytes before it."""

MESSAGE_HEAD: Final = struct.Struct("<qqBBHII")
"""Wall clock and monotonic clock in ns, direction, framing, reserved (0), bytes of metadata, frames."""

FRAME_HEAD: Final = struct.Struct("<BQQ")
"""Codec, bytes as stored, bytes of the frame."""

INDEX_HEAD: Final = struct.Struct("<QQQ")
"""Messages in the file, messages between two entries, entries."""

INDEX_ENTRY: Final = struct.Struct("<Qq")
"""Offset of a message's record header, its wall clock in ns."""

TRAILER: Final = struct.Struct("<Q8s")
"""Offset of the index record's header, magic. The last bytes of an index record."""

MAX_RECORD_BYTES: Final = (1 << 30) + (64 << 20)
"""What a reader accepts as one record: the largest message the sidecar takes by default, and room beside."""

MAX_METADATA_BYTES: Final = 64 << 10
DEFLATE_MIN_BYTES: Final = 512
_DEFLATE_PROBE_BYTES: Final = 4096
_DEFLATE_WORTH: Final = 0.8
_DEFLATE_MAX_RATIO: Final = 1032  # of the format itself; more can only be a lie about the length


class RecordingError(UsageError):
    """A file that is not a recording, or a recording that is damaged. The message says where."""


class Kind(IntEnum):
    """What a record holds. A reader skips kinds that it does not know."""

    MESSAGE = 1
    INDEX = 2
    INFO = 3


class Codec(IntEnum):
    """How a frame is stored."""

    STORED = 0
    DEFLATED = 1


class Direction(StrEnum):
    """Where a message was seen: on its way into the sidecar, on its way to the scheduler, or an output
    of the scheduler on its way back."""

    INGRESS = "ingress"
    EGRESS = "egress"
    OUTPUT = "output"


_DIRECTIONS: Final = tuple(Direction)
_FRAMINGS: Final = tuple(Framing)


@dataclass(frozen=True, slots=True)
class Record:
    """One message: its frames as they were on the socket, and what was known about it.

    `wall_ns` is Unix time, `mono_ns` a monotonic clock whose zero means nothing; both in nanoseconds, 0
    where unknown. `metadata` holds flat facts such as `outcome`, `reason`, `source` or `note`.
    """

    frames: Sequence[Buffer]
    direction: Direction = Direction.INGRESS
    framing: Framing = Framing.NATIVE
    wall_ns: int = 0
    mono_ns: int = 0
    metadata: Mapping[str, Scalar] = field(default_factory=dict)

    @classmethod
    def now(
        cls,
        frames: Sequence[Buffer],
        direction: Direction = Direction.INGRESS,
        framing: Framing = Framing.NATIVE,
        **metadata: Scalar,
    ) -> Record:
        """A record of a message seen at this moment."""
        return cls(frames, direction, framing, time.time_ns(), time.monotonic_ns(), metadata)

    @property
    def nbytes(self) -> int:
        """The bytes of all frames."""
        return sum(_length(frame) for frame in self.frames)


def _length(frame: Buffer) -> int:
    return len(frame) if isinstance(frame, bytes) else memoryview(frame).nbytes


def file_header() -> bytes:
    """The first sixteen bytes of a recording."""
    head = FILE_HEADER.pack(MAGIC, VERSION, 0, 0)[:-4]
    return head + zlib.crc32(head).to_bytes(4, "little")


def check_file_header(head: bytes, name: str) -> None:
    """Refuse what is not a recording of this version; `head` is its first sixteen bytes or fewer."""
    if not head.startswith(MAGIC):
        if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
            raise RecordingError(f"{name}: this looks like a pickle; pickles are never read")
        raise RecordingError(f"{name}: not a recording (it does not begin with {MAGIC!r})")
    if len(head) < FILE_HEADER.size:
        raise RecordingError(f"{name}: the file header is {len(head)} of {FILE_HEADER.size} bytes")
    _, version, _, crc = FILE_HEADER.unpack(head)
    if crc != zlib.crc32(head[:-4]):
        raise RecordingError(f"{name}: the file header is damaged (its checksum does not match)")
    if version != VERSION:
        raise RecordingError(f"{name}: recording version {version}; this program reads version {VERSION}")


def record_header(kind: Kind, parts: Sequence[Buffer]) -> bytes:
    """The header of a record whose body is the concatenation of `parts`."""
    length = crc = 0
    for part in parts:
        length += _length(part)
        crc = zlib.crc32(part, crc)
    head = RECORD_HEADER.pack(length, kind, 0, 0, crc, 0)[:-4]
    return head + zlib.crc32(head).to_bytes(4, "little")


def deflate(frame: Buffer) -> bytes | None:
    """The deflated frame, or None where that does not pay.

    Level 1, and a probe of the first 4 KiB, so that features (random bits for a compressor) cost little.
    """
    size = _length(frame)
    if size < DEFLATE_MIN_BYTES:
        return None
    if size > 2 * _DEFLATE_PROBE_BYTES:
        probe = zlib.compress(memoryview(frame).cast("B")[:_DEFLATE_PROBE_BYTES], 1)
        if len(probe) > _DEFLATE_WORTH * _DEFLATE_PROBE_BYTES:
            return None
    packed = zlib.compress(frame, 1)
    return packed if len(packed) <= _DEFLATE_WORTH * size else None


def encode_message(record: Record, *, compress: bool) -> list[Buffer]:
    """The parts of a message record: header, head, then the frames, stored ones by reference."""
    metadata = msgpack.packb(dict(record.metadata)) if record.metadata else b""
    if len(metadata) > MAX_METADATA_BYTES:
        raise ValueError(f"metadata of {len(metadata)} bytes; at most {MAX_METADATA_BYTES}")
    heads = [
        MESSAGE_HEAD.pack(
            record.wall_ns,
            record.mono_ns,
            _DIRECTIONS.index(record.direction),
            _FRAMINGS.index(record.framing),
            0,
            len(metadata),
            len(record.frames),
        )
    ]
    stored: list[Buffer] = []
    for frame in record.frames:
        packed = deflate(frame) if compress else None
        size = _length(frame)
        if packed is None:
            heads.append(FRAME_HEAD.pack(Codec.STORED, size, size))
            stored.append(frame)
        else:
            heads.append(FRAME_HEAD.pack(Codec.DEFLATED, len(packed), size))
            stored.append(packed)
    heads.append(metadata)
    parts: list[Buffer] = [b"".join(heads), *stored]
    return [record_header(Kind.MESSAGE, parts), *parts]


def decode_message(body: bytes, max_bytes: int) -> Record:
    """The record in a message body whose checksum held. Raises ValueError where it contradicts itself."""
    if len(body) < MESSAGE_HEAD.size:
        raise ValueError(f"a message of {len(body)} bytes; its head takes {MESSAGE_HEAD.size}")
    wall_ns, mono_ns, direction, framing, _, n_metadata, n_frames = MESSAGE_HEAD.unpack_from(body)
    if direction >= len(_DIRECTIONS) or framing >= len(_FRAMINGS):
        raise ValueError(f"direction {direction}, framing {framing}: not known to this version")
    position = MESSAGE_HEAD.size
    start = position + n_frames * FRAME_HEAD.size
    if n_metadata > MAX_METADATA_BYTES or start + n_metadata > len(body):
        raise ValueError(f"{n_frames} frames and {n_metadata} bytes of metadata in {len(body)} bytes")
    metadata = decode_facts(body[start : start + n_metadata]) if n_metadata else {}
    start += n_metadata
    frames: list[Buffer] = []
    budget = max_bytes
    for codec, stored, size in FRAME_HEAD.iter_unpack(body[position : position + n_frames * FRAME_HEAD.size]):
        end = start + stored
        if end > len(body):
            raise ValueError(f"a frame of {stored} bytes where {len(body) - start} are left")
        budget -= size
        if budget < 0:
            raise ValueError(f"frames that inflate to more than {max_bytes} bytes")
        frames.append(_inflate(codec, body[start:end], size))
        start = end
    if start != len(body):
        raise ValueError(f"{len(body) - start} bytes after the last frame")
    return Record(frames, _DIRECTIONS[direction], _FRAMINGS[framing], wall_ns, mono_ns, metadata)


def _inflate(codec: int, stored: bytes, size: int) -> bytes:
    if codec == Codec.STORED:
        if size != len(stored):
            raise ValueError(f"a stored frame of {len(stored)} bytes that says {size}")
        return stored
    if codec != Codec.DEFLATED:
        raise ValueError(f"codec {codec}: not known to this version")
    if size > _DEFLATE_MAX_RATIO * len(stored):
        raise ValueError(f"{len(stored)} deflated bytes that say {size}")
    inflater = zlib.decompressobj()
    try:
        frame = inflater.decompress(stored, max(size, 1))  # 0 would mean "without a limit"
        # One more byte is asked for so that the stream's end and its checksum are read, too.
        beyond = inflater.decompress(inflater.unconsumed_tail, 1)
    except zlib.error as error:
        raise ValueError(f"a deflated frame is damaged: {error}") from None
    if len(frame) != size or beyond or not inflater.eof or inflater.unused_data:
        raise ValueError(f"a deflated frame does not inflate to its {size} bytes")
    return frame


def encode_info(facts: Mapping[str, Scalar]) -> list[Buffer]:
    """The parts of an info record: facts about the whole recording."""
    body = msgpack.packb(dict(facts))
    return [record_header(Kind.INFO, [body]), body]


def decode_facts(data: bytes) -> dict[str, Scalar]:
    """A flat msgpack map with string keys. Raises ValueError for anything else."""
    if len(data) > MAX_METADATA_BYTES:
        raise ValueError(f"metadata of {len(data)} bytes; at most {MAX_METADATA_BYTES}")
    try:
        facts: Any = msgpack.unpackb(data)
    except Exception as error:  # msgpack raises its own, ValueError, TypeError and UnicodeDecodeError
        raise ValueError(f"metadata that is not msgpack: {type(error).__name__}") from None
    if not isinstance(facts, dict):
        raise ValueError("metadata that is not a map")
    for key, value in facts.items():
        if not isinstance(key, str) or not (value is None or isinstance(value, str | int | float)):
            raise ValueError("metadata that is not a flat map")
    return facts
