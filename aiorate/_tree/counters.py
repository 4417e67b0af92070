"""What a limiter counts: permits, requests and nanoseconds since the beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate._schedulers.amounts import Permits


_NO_WAITS: dict[int, int] = {}  # shared by all limiters for which nobody ever waited


class Counters:
    """Plain counters, updated by the node."""

    __slots__ = (
        "cancelled",
        "charged",
        "given_back",
        "past_granted",
        "past_refused",
        "refunded",
        "refused",
        "reset_at",
        "skipped",
        "unused",
        "waited_max",
        "waited_total",
        "waits",
    )

    def __init__(self) -> None:
        self.past_granted: Permits = 0
        """Permits that were granted and kept before the last reset."""
        self.past_refused: int = 0
        self._begin()
        self.reset_at: int | None = None
        """The instant of the last reset; None: there was none."""

    def clear(self, granted: Permits = 0) -> None:
        """Begin again at 0, after so many permits."""
        self.past_granted += granted - self.given_back
        self.past_refused += self.refused
        self._begin()

    def _begin(self) -> None:
        self.given_back: Permits = 0  # permits that came back, by cancellation or refund
        self.refunded: int = 0  # permits
        self.charged: int = 0  # permits
        self.skipped: int = 0  # permits given up, which fell due while a request waited and the loop was late
        self.unused: int = 0  # the rest of a permit that was skipped, in ns x permits of the rate
        self.refused: int = 0  # requests
        self.cancelled: int = 0  # requests
        self.waited_total: int = 0  # ns
        self.waited_max: int = 0  # ns
        self.waits: dict[int, int] = _NO_WAITS  # how many are of a size; see `note`

    def note(self, waited: int) -> None:
        """Count a request that waited, more than 0 ns. The size of a wait is its first five binary digits and their place, so that there
        are fewer than a thousand sizes."""
        self.waited_total += waited
        if waited > self.waited_max:
            self.waited_max = waited
        shift = max(waited.bit_length() - 5, 0)
        size = shift << 5 | waited >> shift
        if not self.waits:
            self.waits = {}
        self.waits[size] = self.waits.get(size, 0) + 1

    def percentile(self, percent: int) -> int:
        """The wait that ``percent`` of all that waited did not exceed, in ns; less than 1/16 too long."""
        left = -(-sum(self.waits.values()) * percent // 100)
        for size in sorted(self.waits):
            left -= self.waits[size]
            if left <= 0:
                return min((((size & 31) + 1) << (size >> 5)) - 1, self.waited_max)
        return 0


NOTHING = Counters()
"""Those of all limits that have counted nothing yet; never changed."""
