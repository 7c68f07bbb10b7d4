"""The recording format: messages as they were on the wire, with time, direction and framing."""

from sidecar.recording.format import Direction, Framing, Record, RecordingError
from sidecar.recording.reader import Reader, Truncation
from sidecar.recording.writer import Writer

__all__ = ["Direction", "Framing", "Reader", "Record", "RecordingError", "Truncation", "Writer"]
