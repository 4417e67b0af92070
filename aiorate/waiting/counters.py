"""What a limiter counts: permits, requests and nanoseconds since the beginning."""

from __future__ import annotations

__all__ = ["Counters"]


class Counters:
    """Plain numbers; who counts what is said where it happens."""

    __slots__ = ("cancelled", "charged", "given_back", "refunded", "refused", "skipped", "unused", "waited_max", "waited_total")

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
