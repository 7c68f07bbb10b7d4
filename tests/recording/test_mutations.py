"""Ten thousand mutated recordings: each one reads, in part or whole, or is refused in words."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from sidecar.recording import Reader, Record, RecordingError, Writer

ROUNDS = 10_000


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("mutations") / "original.rec"
    with Writer(path, info={"made": "by a test"}) as writer:
        writer.write(Record([b"\x93\x01\x02\x03"], metadata={"outcome": "forwarded"}, wall_ns=1))
        writer.write(Record([b"a" * 700, b"", b"x" * 20], wall_ns=2))
        writer.write(Record([b"\x00", b"payload"], wall_ns=3))
    return path.read_bytes()


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Flip, overwrite, cut, insert, double, or exchange some bytes."""
    mutant = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at = rng.randrange(len(mutant) + 1)
        size = rng.choice((1, 1, 2, 4, 8, 20))
        way = rng.randrange(7)
        if way == 0 and at < len(mutant):
            mutant[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            mutant[at : at + size] = rng.randbytes(size)
        elif way == 2:
            mutant[at : at + size] = rng.choice((b"\xff", b"\x00", b"\x7f")) * size
        elif way == 3:
            del mutant[at:]
        elif way == 4:
            del mutant[at : at + size]
        elif way == 5:
            mutant[at:at] = mutant[at : at + 40]
        else:
            other = rng.randrange(len(mutant) + 1)
            mutant[at : at + size] = mutant[other : other + size]
        if not mutant:
            break
    return bytes(mutant)


def verdict_on(path: Path) -> RecordingError | str:
    """What reading it comes to: an error, `cut` or `whole`."""
    try:
        with Reader(path) as reader:
            records = list(reader)
            assert sum(record.nbytes for record in records) <= 1100 * path.stat().st_size
            assert reader.count() >= 0
            return "cut" if reader.truncation is not None else "whole"
    except RecordingError as error:
        return error


def test_ten_thousand_mutants(original: bytes) -> None:
    rng = random.Random(8)
    refused = cut = 0
    with os.fdopen(os.memfd_create("mutant.rec"), "wb") as file:  # ten thousand small files cost 20 s on some disks
        path = Path(f"/proc/self/fd/{file.fileno()}")
        for _ in range(ROUNDS):
            file.seek(0)
            file.truncate()
            file.write(mutate(rng, original))
            file.flush()
            verdict = verdict_on(path)
            if isinstance(verdict, RecordingError):
                refused += 1
                assert str(verdict).startswith(f"{path}: ")
                assert len(str(verdict)) < 400
                assert verdict.exit_code == 3
            cut += verdict == "cut"
    assert refused > ROUNDS // 3
    assert cut > ROUNDS // 20
