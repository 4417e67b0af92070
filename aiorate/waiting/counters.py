"""What a limiter counts: permits, requests and nanoseconds since the beginning."""

from __future__ import annotations

__all__ = ["Counters"]

_NO_WAITS: dict[int, int] = {}  # shared by all limiters for which nobody ever waited


class Counters:
    """Plain numbers; who counts what is said where it happens."""

    __slots__ = (
        "cancelled",
        "charged",
        "given_back",
        "refunded",
        "refused",
        "skipped",
        "untold",
        "unused",
        "waited_max",
        "waited_total",
        "waits",
    )

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.given_back: int = 0  # permits that came back, by cancellation or refund
        self.refunded: int = 0  # permits
        self.charged: int = 0  # permits
        self.skipped: int = 0  # permits that fell due while somebody waited and the loop was late, and are given up
        self.untold: int = 0  # those of them that nobody has been told of yet
        self.unused: int = 0  # the rest of a permit that was skipped, in ns x permits of the rate
        self.refused: int = 0  # requests
        self.cancelled: int = 0  # requests
        self.waited_total: int = 0  # ns
        self.waited_max: int = 0  # ns
        self.waits: dict[int, int] = _NO_WAITS  # how many are of a size; see `note`

    def note(self, waited: int) -> None:
        """A request waited so many ns, more than 0. Its size is its first five binary digits and their place: below a thousand sizes."""
        self.waited_total += waited
        if waited > self.waited_max:
            self.waited_max = waited
        shift = max(waited.bit_length() - 5, 0)
        size = shift << 5 | waited >> shift
        if not self.waits:
            self.waits = {}
        self.waits[size] = self.waits.get(size, 0) + 1

    def percentile(self, percent: int) -> int:
        """A wait that so many percent of all that waited did not exceed, in ns; less than 1/16 too long."""
        left = -(-sum(self.waits.values()) * percent // 100)
        for size in sorted(self.waits):
            left -= self.waits[size]
            if left <= 0:
                return min((((size & 31) + 1) << (size >> 5)) - 1, self.waited_max)
        return 0
