"""Choosing messages: by rid, modality and outcome."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection
from dataclasses import dataclass

from sidecar.recording import Record
from sidecar.replay.decode import Envelope, MessageKind, glance, modality_of, peek
from sidecar.wire.tokenspeed import GENERATE_TAG


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages to keep; an empty collection keeps all.

    `rids` are shell patterns, one of which must match one of the message's rids. `outcomes` are what the
    record's metadata says, or, where it says nothing, `rejected` for a request with a validation_error
    and `forwarded` for one without. `modalities` and `outcomes` choose generate requests; an abort is kept
    with the request that it follows.
    """

    rids: Collection[str] = ()
    modalities: Collection[str] = ()
    outcomes: Collection[str] = ()

    def __bool__(self) -> bool:
        return bool(self.rids or self.modalities or self.outcomes)


class Selector:
    """Applies a selection to the messages of one recording in their order."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._kept: set[str] = set()

    def __call__(self, record: Record) -> bool:
        """Whether to keep a message."""
        chosen = self._selection
        if not chosen:
            return True
        envelope = peek(record.frames, record.framing)
        if chosen.rids and not any(fnmatch.fnmatchcase(rid, p) for rid in envelope.rids for p in chosen.rids):
            return False
        if not (chosen.modalities or chosen.outcomes):
            return True
        if envelope.kind is not MessageKind.GENERATE:
            return not self._kept.isdisjoint(envelope.rids)
        if chosen.modalities and modality_of(record.frames, record.framing, envelope) not in chosen.modalities:
            return False
        if chosen.outcomes and outcome_of(record, envelope) not in chosen.outcomes:
            return False
        self._kept.update(envelope.rids)
        return True


def outcome_of(record: Record, envelope: Envelope) -> str:
    """What became of a request: what the record says, else what the message itself shows."""
    known = record.metadata.get("outcome")
    if isinstance(known, str):
        return known
    refused = envelope.tag == GENERATE_TAG and glance(record.frames, record.framing)[1]
    return "rejected" if refused else "forwarded"
