"""What a limiter counts since the beginning: permits, requests that were refused or cancelled, and nanoseconds that others waited."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate._schedulers.amounts import Permits


class Counters:
    """Plain counters, updated by the node. What was never counted takes no memory."""

    given_back: Permits = 0  # by cancellation or refund
    refunded: int = 0
    charged: int = 0
    skipped: int = 0  # given up, since they fell due while a request waited and the loop was late
    unused: int = 0  # the rest of a permit that was skipped, in ns x permits of the rate
    refused: int = 0
    cancelled: int = 0
    waited_total: int = 0
    waited_max: int = 0
    waits: Counter[int] | None = None  # how many are of a size; see `note`
    reset_at: int | None = None  # the instant of the last reset; None: there was none
    past_granted: Permits = 0  # permits that were granted and kept before that
    past_refused: int = 0  # requests that were refused before that

    def clear(self, granted: Permits, now: int) -> None:
        """Begin again at 0, after so many permits."""
        past = self.past_granted + granted - self.given_back, self.past_refused + self.refused
        vars(self).clear()
        self.past_granted, self.past_refused = past
        self.reset_at = now

    def note(self, waited: int) -> None:
        """Count a request that waited, more than 0 ns. The size of a wait is its first five binary digits and their place, so that there
        are fewer than a thousand sizes."""
        self.waited_total += waited
        if waited > self.waited_max:
            self.waited_max = waited
        shift = max(waited.bit_length() - 5, 0)
        size = shift << 5 | waited >> shift
        if self.waits is None:
            self.waits = Counter()
        self.waits[size] += 1

    def percentile(self, percent: int) -> int:
        """The wait that ``percent`` of all that waited did not exceed, in ns; less than 1/16 too long."""
        waits: Counter[int] = self.waits or Counter()
        left = -(-sum(waits.values()) * percent // 100)
        for size in sorted(waits):
            left -= waits[size]
            if left <= 0:
                return min((((size & 31) + 1) << (size >> 5)) - 1, self.waited_max)
        return 0


NOTHING = Counters()
"""Those of all limits that have counted nothing yet; never changed."""
