"""A log-linear histogram of durations, as HdrHistogram has it: any range, under 1% error, little memory.

A value is an integer (ns). Values below 128 have a bucket each; above, each doubling is cut into 64
equal buckets, so that a bucket is never wider than 1/64 of its lower bound. Reported is a bucket's
middle, so the error stays below 1/128.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_BITS: Final = 6
_LINEAR: Final = 1 << (_BITS + 1)


def bucket_of(value: int) -> int:
    """The number of the bucket that a non-negative integer falls into."""
    if value < _LINEAR:
        return value
    shift = value.bit_length() - _BITS - 1
    return (shift << _BITS) + (value >> shift)


def bounds_of(bucket: int) -> tuple[int, int]:
    """The smallest value of a bucket, and the smallest of the next."""
    if bucket < _LINEAR:
        return bucket, bucket + 1
    shift = (bucket >> _BITS) - 1
    low = (bucket - (shift << _BITS)) << shift
    return low, low + (1 << shift)


class Histogram:
    """Counts of values, and their exact minimum, maximum and sum."""

    def __init__(self, values: Iterable[int] = ()) -> None:
        self.count = 0
        self.minimum = 0
        self.maximum = 0
        self.total = 0
        self._counts: NDArray[np.int64] = np.zeros(0, np.int64)
        self.add_many(np.fromiter(values, np.int64))

    def add(self, value: int) -> None:
        """Count one value; a negative one counts as 0."""
        self.add_many(np.array([value], np.int64))

    def add_many(self, values: NDArray[np.int64]) -> None:
        """Count the values of an int64 array [n]."""
        if not values.size:
            return
        values = np.maximum(values, 0)
        # frexp gives the bit length; float64 rounds above 2^53 (104 days in ns), which is clipped away.
        clipped = np.minimum(values, 1 << 53)
        shift = np.maximum(np.frexp(clipped.astype(np.float64))[1].astype(np.int64) - _BITS - 1, 0)
        counts = np.bincount((shift << _BITS) + (clipped >> shift))
        if counts.size > self._counts.size:
            counts[: self._counts.size] += self._counts
            self._counts = counts
        else:
            self._counts[: counts.size] += counts
        self.minimum = int(values.min()) if not self.count else min(self.minimum, int(values.min()))
        self.maximum = max(self.maximum, int(values.max()))
        self.total += int(values.sum())
        self.count += int(values.size)

    def merge(self, other: Histogram) -> None:
        """Count everything that another histogram has counted."""
        if not other.count:
            return
        size = max(self._counts.size, other._counts.size)
        counts = np.zeros(size, np.int64)
        counts[: self._counts.size] += self._counts
        counts[: other._counts.size] += other._counts
        self._counts = counts
        self.minimum = other.minimum if not self.count else min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        self.total += other.total
        self.count += other.count

    @property
    def mean(self) -> float:
        """The mean, 0 without values."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """The value that `percent` of the values do not exceed, to under 1%; 0 without values."""
        if not self.count:
            return 0.0
        rank = max(1, int(np.ceil(self.count * percent / 100 - 1e-9)))
        if rank >= self.count:
            return float(self.maximum)
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank))
        low, high = bounds_of(bucket)
        return float(min(max((low + high - 1) / 2, self.minimum), self.maximum))

    def buckets(self) -> Iterator[tuple[int, int, int]]:
        """(lower bound, upper bound, count) of every bucket that has values."""
        for bucket in np.flatnonzero(self._counts):
            low, high = bounds_of(int(bucket))
            yield low, high, int(self._counts[bucket])

    def rebinned(self, edges: Sequence[float]) -> list[int]:
        """The counts between ascending `edges`: below the first, between each two, from the last on.

        A bucket counts where its middle lies.
        """
        counts = [0] * (len(edges) + 1)
        for low, high, count in self.buckets():
            counts[int(np.searchsorted(np.asarray(edges), (low + high - 1) / 2, side="right"))] += count
        return counts
