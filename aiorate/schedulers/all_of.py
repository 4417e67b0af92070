"""AllOf: several schedulers that must all agree, as one.

A request is scheduled for when the last of them schedules it, and is taken from all of them at once or from none.
Knows nothing of rates, clocks, loops or who waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.schedulers.interface import check_ask, check_window

if TYPE_CHECKING:
    from aiorate.rate import Rate
    from aiorate.schedulers.interface import Scheduler

__all__ = ["AllOf"]


class AllOf:
    """All or nothing: what one member refuses is taken from none of them.

    ``members`` are the schedulers as given; each must be an object of its own. The guarantee is the least of theirs.
    """

    __slots__ = ("members",)

    def __init__(self, *schedulers: Scheduler) -> None:
        if not schedulers:
            raise ValueError("AllOf() needs at least one scheduler.")
        for place, member in enumerate(schedulers):
            if not all(hasattr(member, name) for name in ("take", "peek", "give_back")) or isinstance(member, type):
                raise TypeError(f"AllOf() takes schedulers such as TokenBucket('10/s', burst=5), not {type(member).__name__}.")
            if any(member is other for other in schedulers[:place]):
                raise ValueError("AllOf(): the same scheduler twice would be charged twice; make two, or give it once.")
        self.members = schedulers

    @property
    def rate(self) -> Rate:
        """The rate of the tightest member."""
        tightest = self.members[0].rate
        for member in self.members[1:]:
            if member.rate.slower_than(tightest):
                tightest = member.rate
        return tightest

    @property
    def max_permits(self) -> int | None:
        """The least of the members'."""
        return min((m.max_permits for m in self.members if m.max_permits is not None), default=None)

    @property
    def books_since(self) -> bool:
        """Whether any member books from since."""
        return any(getattr(member, "books_since", True) for member in self.members)

    @property
    def refundable(self) -> bool:
        """Whether all members credit permits whoever took them last."""
        return all(getattr(member, "refundable", False) for member in self.members)

    @property
    def spilled(self) -> int:
        """The most that any member has given up, in ns of schedule."""
        return max(getattr(member, "spilled", 0) for member in self.members)

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        check_ask("take()", permits, now, since, self.max_permits)
        # Whether a request is granted at an instant does not depend on since, so asking all first is enough.
        at = max(member.peek(permits, now) for member in self.members)
        if at > now:
            return at
        return max(member.take(permits, now, since) for member in self.members)

    def peek(self, permits: int, now: int) -> int:
        check_ask("peek()", permits, now, most=self.max_permits)
        return max(member.peek(permits, now) for member in self.members)

    def give_back(self, permits: int, now: int) -> None:
        """Give back to every member, as each of them does."""
        check_ask("give_back()", permits, now)
        for member in self.members:
            member.give_back(permits, now)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Refused: which member should change? Set the rate of one of ``members``."""
        raise RuntimeError("AllOf has no rate of its own to set: call set_rate() of one of its members, as in all_of.members[0].")

    def shift(self, ns: int) -> None:
        """Tell the members that follow the calendar that the schedule stood still for so long."""
        for member in self.members:
            shift = getattr(member, "shift", None)
            if shift is not None:
                shift(ns)

    def restart(self, now: int) -> None:
        """Restart the members that know how to."""
        for member in self.members:
            restart = getattr(member, "restart", None)
            if restart is not None:
                restart(now)

    def lag(self, now: int) -> int:
        """The longest of the members'."""
        return max(member.lag(now) for member in self.members)

    def bound(self, window: int, largest: int = 1) -> int | None:
        """The least of the members'."""
        check_window(window, largest)
        bounds = (member.bound(window, largest) for member in self.members)
        return min((bound for bound in bounds if bound is not None), default=None)

    def __repr__(self) -> str:
        return f"AllOf({', '.join(map(repr, self.members))})"
