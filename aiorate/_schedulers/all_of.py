"""AllOf: a scheduler of several members, each of which must grant the same request.

A request is scheduled for the latest instant that a member names. It is taken from all members at once or from none.
Knows nothing of clocks, loops or waiters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from aiorate._errors import kind_of
from aiorate._rate import Rate
from aiorate._schedulers.interface import Scheduler, check_ask, check_give_back, check_permits, check_window, given_twice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._rate import Number
    from aiorate._schedulers.server_quotas import ServerQuotas

    Shares = list[tuple[Scheduler | ServerQuotas, int]]

__all__ = ["AllOf"]


class AllOf(Scheduler):
    """Apply several limits at once, all or nothing. A list of limits makes one.

    A request is granted when every member grants it. If one refuses, none of them is charged. The guarantee is the lowest of theirs.

    Args:
        *schedulers: The strategies, all different objects.
    """

    __slots__ = ("members",)
    members: tuple[Scheduler, ...]

    def __init__(self, *schedulers: Scheduler) -> None:
        if not schedulers:
            raise ValueError("AllOf() needs at least one scheduler.")
        for member in schedulers:
            if not isinstance(member, Scheduler):
                unpack = " Write AllOf(*schedulers)." if isinstance(member, (list, tuple)) else ""
                if isinstance(member, (str, int, float, Rate)):
                    unpack = " For a list of rates, write Limiter(['10/s', '100/min'])."
                raise TypeError(f"AllOf() takes schedulers such as TokenBucket('10/s', burst=5), not {kind_of(member)}.{unpack}")
        if given_twice(schedulers):
            raise ValueError("AllOf(): a scheduler given twice would be charged twice. Make two, or give it once.")
        self.members = schedulers
        self._receipts = True  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def _permitted(self) -> Sequence[Scheduler | ServerQuotas]:
        """What is asked for permits: the members, each with what servers said of it."""
        return self.members

    def _shares(self, permits: int) -> Shares:
        """The members that such a request is taken from, each with its amount. Here: all of them, the same amount."""
        return [(member, permits) for member in self.members]

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
        least = None  # by hand, because every take asks: min() of a comprehension takes three times as long
        for member in self.members:
            most = member.max_permits
            if most is not None and (least is None or most < least):
                least = most
        return least

    @property
    def books_since(self) -> bool:  # type: ignore[override]
        """Whether any member honours ``since``."""
        return any(member.books_since for member in self.members)

    @property
    def _receipts(self) -> bool:
        """Whether permits may come back by receipt, to any member."""
        return self.members[0]._receipts

    @_receipts.setter
    def _receipts(self, value: bool) -> None:
        for member in self.members:
            member._receipts = value

    @property
    def spilled(self) -> int:
        """The most nanoseconds of schedule that a member has lost."""
        return max(member.spilled for member in self.members)

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        check_ask("take()", permits, now, since, self.max_permits)
        return self._take_shares(self._shares(permits), now, since)

    def _take_shares(self, shares: Shares, now: int, since: int | None) -> int:
        """Take each member's amount, if they are all due."""
        at = self._due(shares, now)
        if at > now:
            return at
        # ``since`` does not decide whether a request is granted, so peek() at all members is enough.
        return max([member.take(amount, now, since) for member, amount in shares], default=now)

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now, most=self.max_permits)
        return self._peek_shares(self._shares(permits), now, self._shares(ahead) if ahead else [])

    def _peek_shares(self, shares: Shares, now: int, ahead: Shares) -> int:
        """When all members grant their amounts, after those ``ahead``."""
        if not ahead:
            return self._due(shares, now)
        before = dict(ahead)
        return max([member.peek(amount, now, before.get(member, 0)) for member, amount in shares], default=now)

    def _due(self, shares: Shares, now: int) -> int:
        """The latest instant that a member names."""
        return max([member.peek(amount, now) for member, amount in shares], default=now)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Give every member its amount back."""
        check_give_back(permits, now, taken)
        for member, amount in self._shares(permits):
            member.give_back(amount, now, taken)

    def charge(self, permits: int, now: int) -> None:
        """Charge every member its amount."""
        check_permits("charge()", permits)
        for member, amount in self._shares(permits):
            member.charge(amount, now)

    def shift(self, ns: int) -> None:
        """Have every member follow a pause of ``ns``."""
        for member in self._permitted:
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
        return min(member.available(now) for member in self._permitted)

    def _quotas(self) -> list[tuple[int, Rate]]:
        """Those of all members."""
        return [quota for member in self.members for quota in member._quotas()]

    def _standings(self, now: int) -> list[tuple[int, int]]:
        """Those of all members."""
        return [standing for member in self._permitted for standing in member._standings(now)]

    def _rested(self, now: int) -> bool:
        """Whether all members are."""
        return all(member._rested(now) for member in self._permitted)

    def lag(self, now: int) -> int:
        """The longest `lag` of a member."""
        return max(member.lag(now) for member in self.members)

    def bound(self, window: int, largest: int = 1) -> int | None:
        """The least `bound` of a member."""
        check_window(window, largest)
        return self._bound_when_late(window, largest, 0)

    def _bound_when_late(self, window: int, largest: int, late: int) -> int | None:
        """The least bound of a member, each with an allowance for lateness only if it needs one."""
        bounds = [member._bound_when_late(window, largest, late) for member in self.members]
        return min((bound for bound in bounds if bound is not None), default=None)

    def _read_rate(self, rate: Rate | str | Number) -> NoReturn:
        """As `set_rate`."""
        self.set_rate(self.rate, 0)

    def apply(self, rate: Rate, burst_ratio: Number, now: int) -> None:
        """Nothing for the rate in force, as to reopen a closed limiter. Another one is refused: a `RateSpec` has one rate."""
        if rate != self.rate:
            raise RuntimeError("apply(): this limit has several rates, and a RateSpec has one. Use set_rate(rate, member=0) and pause().")

    def set_rate(self, rate: Rate, now: int) -> NoReturn:
        """Refused, because only the members have rates to change. Change one: ``limiter.set_rate(rate, member=0)``."""
        raise RuntimeError("set_rate(): an AllOf changes one of its members at a time. Say which: limiter.set_rate(rate, member=0).")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.members))})"
