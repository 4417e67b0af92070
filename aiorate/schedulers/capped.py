"""At most so many more permits until an instant: what a server said is left of its window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.schedulers.interface import Scheduler, check_ask

if TYPE_CHECKING:
    from aiorate.rate import Number, Rate

__all__ = ["Capped"]


class Capped(Scheduler):
    """Another scheduler, of which at most ``left`` permits are granted before ``until``, whatever it would grant.

    It stands in for the other until then, and only ever lowers what is available. A request for more than is left goes at ``until``.
    """

    __slots__ = ("began", "inner", "left", "until")

    def __init__(self, inner: Scheduler, left: int, now: int, until: int) -> None:
        self.inner = inner
        self.began = now
        """The instant at which the server spoke."""
        self.left = left
        """Permits."""
        self.until = until
        """An instant in ns."""

    @property
    def rate(self) -> Rate:  # type: ignore[override]
        """The other's."""
        return self.inner.rate

    @property
    def max_permits(self) -> int | None:  # type: ignore[override]
        """The other's."""
        return self.inner.max_permits

    @property
    def books_since(self) -> bool:  # type: ignore[override]
        """The other's."""
        return self.inner.books_since

    @property
    def members(self) -> tuple[Scheduler, ...]:  # type: ignore[override]
        """The other's."""
        return self.inner.members

    @property
    def receipts(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The other's."""
        return self.inner.receipts

    @receipts.setter
    def receipts(self, value: bool) -> None:
        self.inner.receipts = value

    @property
    def spilled(self) -> int:
        """The other's."""
        return self.inner.spilled

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        check_ask("take()", permits, now, since, self.max_permits)
        if now < self.until and permits > self.left:
            return max(self.until, self.inner.peek(permits, now))
        at = self.inner.take(permits, now, since)
        if at <= now < self.until:
            self.left -= permits
        return at

    def peek(self, permits: int, now: int) -> int:
        at = self.inner.peek(permits, now)
        return max(self.until, at) if now < self.until and permits > self.left else at

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Credit the other. What was granted before the server spoke is not left of its window."""
        self.inner.give_back(permits, now, taken)
        if taken is not None and taken >= self.began:
            self.left += permits

    def set_rate(self, rate: Rate, now: int) -> None:
        self.inner.set_rate(rate, now)

    def lag(self, now: int) -> int:
        return self.inner.lag(now)

    def bound(self, window: int, largest: int = 1) -> int | None:
        """The other's."""
        return self.inner.bound(window, largest)

    def bound_when_late(self, window: int, largest: int, late: int) -> int | None:
        """The other's."""
        return self.inner.bound_when_late(window, largest, late)

    def charge(self, permits: int, now: int) -> None:
        """Charge the other."""
        self.inner.charge(permits, now)

    def apply(self, rate: Rate, burst: Number, now: int) -> None:
        """Change the other."""
        self.inner.apply(rate, burst, now)

    def restart(self, now: int) -> None:
        """Restart the other."""
        self.inner.restart(now)

    def reset(self, now: int) -> None:
        """Reset the other; what the server said still holds."""
        self.inner.reset(now)

    def shift(self, ns: int) -> None:
        """Move as the other does; the server's window does not wait for a pause here."""
        self.until -= ns
        self.inner.shift(ns)

    def available(self, now: int) -> int:
        """No more than is left."""
        return min(self.inner.available(now), self.left) if now < self.until else self.inner.available(now)

    def rested(self, now: int) -> bool:
        """Not before ``until``."""
        return now >= self.until and self.inner.rested(now)

    def __repr__(self) -> str:
        return repr(self.inner)
