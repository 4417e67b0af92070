"""What a limiter counts: permits, requests and nanoseconds since the beginning."""

from __future__ import annotations

__all__ = ["Counters"]


class Counters:
    """Plain numbers; who counts what is said where it happens."""

    __slots__ = ("cancelled", "charged", "given_back", "refunded", "refused", "skipped", "unused", "waited_max", "waited_total", "waits")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.given_back: int = 0  # permits that came back, by cancellation or refund
        self.refunded: int = 0  # permits
        self.charged: int = 0  # permits
        self.skipped: int = 0  # permits that fell due while somebody waited and the loop was late, and are given up
        self.unused: int = 0  # the rest of a permit that was skipped, in ns x permits of the rate
        self.refused: int = 0  # requests
        self.cancelled: int = 0  # requests
        self.waited_total: int = 0  # ns
        self.waited_max: int = 0  # ns
        self.waits: dict[int, int] = {}  # how many waits have that size; see `note`

    def note(self, waited: int) -> None:
        """A request waited so many ns. Sizes are steps of 12 % or less: a few hundred numbers for any number of waits."""
        self.waited_total += waited
        if waited > self.waited_max:
            self.waited_max = waited
        shift = max(waited.bit_length() - 4, 0)
        size = shift << 4 | waited >> shift
        self.waits[size] = self.waits.get(size, 0) + 1

    def percentile(self, percent: int) -> int:
        """A wait that so many percent of all that waited did not exceed, in ns; at most 12 % too long."""
        left = -(-sum(self.waits.values()) * percent // 100)
        for size in sorted(self.waits):
            left -= self.waits[size]
            if left <= 0:
                return min((((size & 15) + 1) << (size >> 4)) - 1, self.waited_max)
        return 0
