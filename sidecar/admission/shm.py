"""Rules about features in shared memory.

Segments are looked at through a probe, by name: they are never attached, because a process that
attaches to a segment may unlink it when it exits. Between the look and the engine's use a producer can
still take its segment away; no check here can close that gap.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from sidecar.admission.memory import SEGMENT_CAPACITY, SEGMENT_WINDOW_S, Recent
from sidecar.admission.policy import Policy
from sidecar.errors import Reason, Rejection
from sidecar.wire.media import ItemView, ShmHandle


class SegmentStat(NamedTuple):
    """A shared-memory segment: its size in bytes, and what tells it from a later one of the same name."""

    size: int
    identity: tuple[int, ...]


class SegmentProbe(Protocol):
    """How the core looks at shared memory."""

    def stat(self, name: str) -> SegmentStat | None:
        """The segment of that name, None if there is none."""
        ...

    def unlink(self, name: str) -> None:
        """Remove the segment of that name; it is no error if it is gone."""
        ...


class SegmentMemory:
    """The segments whose handles were forwarded: the engine's now, not to be forwarded or unlinked again."""

    __slots__ = ("_recent",)

    def __init__(self) -> None:
        self._recent: Recent[tuple[int, ...]] = Recent(SEGMENT_WINDOW_S, SEGMENT_CAPACITY)

    def __len__(self) -> int:
        return len(self._recent)

    def identity(self, name: str, now: float) -> tuple[int, ...] | None:
        """What the segment was when its handle was forwarded, None if it was not."""
        return self._recent.get(name, now)

    def forwarded(self, name: str, identity: tuple[int, ...], now: float) -> None:
        """A handle has been handed over."""
        self._recent.put(name, identity, now)


def check_segments(
    items: Sequence[ItemView], policy: Policy, probe: SegmentProbe, memory: SegmentMemory, now: float
) -> dict[str, tuple[int, ...]]:
    """`shm_invalid`; returns the identity of every segment of the request, by name.

    A segment must have a name that the operator allows, be there, and hold exactly dtype times shape
    bytes; the engine ends over anything else. A handle that has been forwarded is not forwarded again.
    """
    segments: dict[str, tuple[int, ...]] = {}
    for item in items:
        handle = item.shm
        if handle is None:
            continue
        if policy.shared_memory == "refuse":
            raise _bad(item, handle, "shared memory is not accepted (admission.shared_memory = refuse)")
        if policy.shared_memory == "forward":
            segments[handle.name] = ()
            continue
        if not may_touch(handle.name, policy.shared_memory_pattern):
            pattern = policy.shared_memory_pattern.pattern
            raise _bad(item, handle, f"the name does not match admission.shared_memory_pattern {pattern}")
        found = probe.stat(handle.name)
        if found is None:
            raise _bad(item, handle, "there is no such segment")
        if found.size != handle.nbytes:
            raise _bad(
                item,
                handle,
                f"the segment holds {found.size} bytes; {handle.dtype} {list(handle.shape)} takes {handle.nbytes}",
            )
        if memory.identity(handle.name, now) == found.identity:
            raise _bad(item, handle, "the segment was forwarded with an earlier request")
        segments[handle.name] = found.identity
    return segments


def check_still_ours(
    segments: Mapping[str, tuple[int, ...]], policy: Policy, probe: SegmentProbe, memory: SegmentMemory, now: float
) -> None:
    """`shm_invalid`: a segment that `check_segments` has seen and that another request has taken since, or unlinked."""
    if policy.shared_memory != "check":
        return
    for name, identity in segments.items():
        if memory.identity(name, now) == identity:
            raise _taken(name, "was forwarded with another request")
        found = probe.stat(name)
        if found is None or found.identity != identity:
            raise _taken(name, "is gone")


def may_touch(name: str, pattern: re.Pattern[str]) -> bool:
    """Whether a segment's name may be looked at or unlinked: no path, and of the allowed form."""
    return "/" not in name and "\0" not in name and pattern.fullmatch(name) is not None


def orphans(names: Sequence[str], policy: Policy, memory: SegmentMemory, now: float) -> list[str]:
    """The segments of a refused request that nobody else will unlink."""
    if not policy.unlink_refused:
        return []
    return [
        name
        for name in dict.fromkeys(names)
        if may_touch(name, policy.shared_memory_pattern) and memory.identity(name, now) is None
    ]


def _taken(name: str, what: str) -> Rejection:
    return Rejection(Reason.SHM_INVALID, f"segment {name!r:.80} {what} while this request was being processed")


def _bad(item: ItemView, handle: ShmHandle, what: str) -> Rejection:
    return Rejection(Reason.SHM_INVALID, f"item {item.ordinal}: segment {handle.name!r:.80}: {what}")
