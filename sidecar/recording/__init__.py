"""The recording format: messages as they were on the wire, with time, direction and framing."""

from sidecar.recording.format import Direction, Record, RecordingError
from sidecar.recording.reader import Reader, Truncation
from sidecar.recording.writer import Writer
from sidecar.wire.framing import Framing

__all__ = ["Direction", "Framing", "Reader", "Record", "RecordingError", "Truncation", "Writer"]
