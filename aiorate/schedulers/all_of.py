"""AllOf: one scheduler of several members, which must all grant a request.

A request is scheduled for the latest instant that a member names. It is taken from all members at once or from none.
Knows nothing of rates, clocks, loops or waiters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.errors import kind_of
from aiorate.schedulers.interface import Scheduler, check_ask, check_give_back, check_permits, check_window

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiorate.rate import Number, Rate

__all__ = ["AllOf"]


class AllOf(Scheduler):
    """All or nothing: a request that one member refuses is taken from none.

    ``members`` are the schedulers in the order given; each must be an object of its own. The guarantee is the least of theirs.
    """

    __slots__ = ("_receipts", "members")
    members: tuple[Scheduler, ...]

    def __init__(self, *schedulers: Scheduler) -> None:
        if not schedulers:
            raise ValueError("AllOf() needs at least one scheduler.")
        for place, member in enumerate(schedulers):
            if not isinstance(member, Scheduler):
                unpack = " Write AllOf(*schedulers)." if isinstance(member, (list, tuple)) else ""
                raise TypeError(f"AllOf() takes schedulers such as TokenBucket('10/s', burst=5), not {kind_of(member)}.{unpack}")
            before = _leaves(schedulers[:place])
            if any(leaf is other for leaf in _leaves((member,)) for other in before):
                raise ValueError("AllOf(): a scheduler given twice would be charged twice. Make two, or give it once.")
        self.members = schedulers
        self.receipts = True  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def rate(self) -> Rate:  # type: ignore[override]  # it follows the members'
        """The rate of the tightest member."""
        tightest = self.members[0].rate
        for member in self.members[1:]:
            if member.rate.slower_than(tightest):
                tightest = member.rate
        return tightest

    @property
    def max_permits(self) -> int | None:  # type: ignore[override]
        """The least `max_permits` of a member."""
        return min((m.max_permits for m in self.members if m.max_permits is not None), default=None)

    @property
    def books_since(self) -> bool:  # type: ignore[override]
        """Whether any member honours ``since``."""
        return any(member.books_since for member in self.members)

    @property
    def receipts(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether permits may come back by receipt, to any member."""
        return self._receipts

    @receipts.setter
    def receipts(self, value: bool) -> None:
        self._receipts = value
        for member in self.members:
            member.receipts = value

    @property
    def spilled(self) -> int:
        """The most nanoseconds of schedule that a member has lost."""
        return max(member.spilled for member in self.members)

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        check_ask("take()", permits, now, since, self.max_permits)
        # ``since`` does not decide whether a request is granted, so peek() at all members is enough.
        at = max([member.peek(permits, now) for member in self.members])
        if at > now:
            return at
        return max([member.take(permits, now, since) for member in self.members])

    def peek(self, permits: int, now: int) -> int:
        check_ask("peek()", permits, now, most=self.max_permits)
        return max([member.peek(permits, now) for member in self.members])

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Give back to every member."""
        check_give_back(permits, now, taken)
        for member in self.members:
            member.give_back(permits, now, taken)

    def charge(self, permits: int, now: int) -> None:
        """Charge every member."""
        check_permits("charge()", permits)
        for member in self.members:
            member.charge(permits, now)

    def take_ahead(self, permits: int, now: int) -> None:
        """From every member."""
        for member in self.members:
            member.take_ahead(permits, now)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Refused, because AllOf has no rate of its own. Change a member: ``limiter.set_rate(rate, member=0)``."""
        raise RuntimeError("set_rate(): AllOf has no rate of its own. Say which of its members changes: limiter.set_rate(rate, member=0).")

    def apply(self, rate: Rate, burst_ratio: Number, now: int) -> None:
        """Refused, as `set_rate` is, unless ``rate`` is the rate in force."""
        if rate != self.rate:
            self.set_rate(rate, now)

    def shift(self, ns: int) -> None:
        """Have every member follow a pause of ``ns``."""
        for member in self.members:
            member.shift(ns)

    def restart(self, now: int) -> None:
        """Restart all members."""
        for member in self.members:
            member.restart(now)

    def reset(self, now: int) -> None:
        """Reset all members."""
        for member in self.members:
            member.reset(now)

    def available(self, now: int) -> int:
        """The least of the members'."""
        return min(member.available(now) for member in self.members)

    def rested(self, now: int) -> bool:
        """Whether all members are."""
        return all(member.rested(now) for member in self.members)

    def lag(self, now: int) -> int:
        """The longest `lag` of a member."""
        return max(member.lag(now) for member in self.members)

    def bound(self, window: int, largest: int = 1) -> int | None:
        """The least `bound` of a member."""
        check_window(window, largest)
        return _least(member.bound(window, largest) for member in self.members)

    def bound_when_late(self, window: int, largest: int, late: int) -> int | None:
        """The least bound of a member, each with an allowance for lateness only if it needs one."""
        return _least(member.bound_when_late(window, largest, late) for member in self.members)

    def __repr__(self) -> str:
        return f"AllOf({', '.join(map(repr, self.members))})"


def _leaves(schedulers: Iterable[Scheduler]) -> list[Scheduler]:
    """The schedulers that are made of no others."""
    return [leaf for scheduler in schedulers for leaf in (_leaves(scheduler.members) if scheduler.members else (scheduler,))]


def _least(bounds: Iterable[int | None]) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)
