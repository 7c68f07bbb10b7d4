"""Raw frames in a folder, read as a recording.

A message is a folder with `0.bin`, `1.bin`, … : its frames. Read are

    MESSAGE/N.bin                                one message
    CASE/NNN-FROM2TO-KIND/N.bin                  the messages of a conversation, in the order of their names
    CASE/in_frames/N.bin, CASE/out_frames/N.bin  what went in and what came out
    FOLDER/CASE/...                              many cases, in the order of their names

`out_frames` are egress, a name with `engine2` is an output of the scheduler, all else is ingress. A first
frame that is a single byte 00 or 01, with a payload after it, makes the message a typed one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sidecar.recording.format import Direction, Record, RecordingError
from sidecar.wire.framing import TYPE_ABORT, TYPE_ADD, Framing
from sidecar.wire.msgpack import Buffer


def read_folder(folder: Path) -> Iterator[Record]:
    """The messages in a folder; `metadata["source"]` of each is where it lies in it."""
    found = False
    for record in _walk(folder, folder):
        found = True
        yield record
    if not found:
        raise RecordingError(f"{folder}: no frames (N.bin) in this folder or below it")


def _walk(root: Path, folder: Path) -> Iterator[Record]:
    names = sorted(folder.iterdir())
    numbered = [path for path in names if path.suffix == ".bin" and path.stem.isascii() and path.stem.isdigit()]
    if numbered:
        yield _message(root, folder, numbered)
    for path in names:
        if path.is_dir():
            yield from _walk(root, path)


def _message(root: Path, folder: Path, paths: list[Path]) -> Record:
    paths = sorted(paths, key=lambda path: int(path.stem))
    for number, path in enumerate(paths):
        if int(path.stem) != number:
            raise RecordingError(f"{folder}: frame {number} is missing ({number}.bin)")
    frames: list[Buffer] = [path.read_bytes() for path in paths]
    typed = len(frames) > 1 and frames[0] in (TYPE_ADD, TYPE_ABORT)
    direction = Direction.INGRESS
    if folder.name == "out_frames":
        direction = Direction.EGRESS
    elif "engine2" in folder.name:
        direction = Direction.OUTPUT
    source = str(folder.relative_to(root)) if folder != root else folder.name
    return Record(frames, direction, Framing.TYPED if typed else Framing.NATIVE, metadata={"source": source})
