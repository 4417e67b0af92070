"""Compound: a scheduler made of others, its parts.

A request is scheduled for the latest instant that a part names. It is taken from all parts at once or from none.
Knows nothing of clocks, loops or waiters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._schedulers.interface import Scheduler, check_ask, check_give_back, check_permits, check_window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._rate import Rate
    from aiorate._schedulers.server_quotas import ServerQuotas

    Shares = list[tuple[Scheduler | ServerQuotas, int]]

__all__ = ["Compound"]


class Compound(Scheduler):
    """Grants what all of its ``parts`` grant. The subclass sets them, defines `set_rate`, and may give each part its own amount."""

    __slots__ = ("parts",)
    parts: tuple[Scheduler, ...]

    @property
    def permitted(self) -> Sequence[Scheduler | ServerQuotas]:
        """What is asked for permits: the parts, each with what servers said of it."""
        return self.parts

    def shares(self, permits: int) -> Shares:
        """The parts that such a request is taken from, each with its amount. Here: all of them, the same amount."""
        return [(part, permits) for part in self.parts]

    @property
    def members(self) -> tuple[Scheduler, ...]:  # type: ignore[override]
        """The parts, in the order given."""
        return self.parts

    @property
    def rate(self) -> Rate:  # type: ignore[override]  # it follows the parts'
        """The rate of the tightest part."""
        tightest = self.parts[0].rate
        for part in self.parts[1:]:
            if part.rate.slower_than(tightest):
                tightest = part.rate
        return tightest

    @property
    def max_permits(self) -> int | None:  # type: ignore[override]
        """The least `max_permits` of a part."""
        least = None  # by hand, because every take asks: min() of a comprehension takes three times as long
        for part in self.parts:
            most = part.max_permits
            if most is not None and (least is None or most < least):
                least = most
        return least

    @property
    def books_since(self) -> bool:  # type: ignore[override]
        """Whether any part honours ``since``."""
        return any(part.books_since for part in self.parts)

    @property
    def _receipts(self) -> bool:
        """Whether permits may come back by receipt, to any part."""
        return self.parts[0]._receipts

    @_receipts.setter
    def _receipts(self, value: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        for part in self.parts:
            part._receipts = value

    @property
    def spilled(self) -> int:
        """The most nanoseconds of schedule that a part has lost."""
        return max(part.spilled for part in self.parts)

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        check_ask("take()", permits, now, since, self.max_permits)
        return self.take_shares(self.shares(permits), now, since)

    def take_shares(self, shares: Shares, now: int, since: int | None) -> int:
        """Take each part's amount, if they are all due."""
        at = self.due(shares, now)
        if at > now:
            return at
        # ``since`` does not decide whether a request is granted, so peek() at all parts is enough.
        return max([part.take(amount, now, since) for part, amount in shares], default=now)

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now, most=self.max_permits)
        return self.peek_shares(self.shares(permits), now, self.shares(ahead) if ahead else [])

    def peek_shares(self, shares: Shares, now: int, ahead: Shares) -> int:
        """When all parts grant their amounts, after those ``ahead``."""
        if not ahead:
            return self.due(shares, now)
        before = dict(ahead)
        return max([part.peek(amount, now, before.get(part, 0)) for part, amount in shares], default=now)

    def due(self, shares: Shares, now: int) -> int:
        """The latest instant that a part names."""
        return max([part.peek(amount, now) for part, amount in shares], default=now)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Give every part its amount back."""
        check_give_back(permits, now, taken)
        for part, amount in self.shares(permits):
            part.give_back(amount, now, taken)

    def charge(self, permits: int, now: int) -> None:
        """Charge every part its amount."""
        check_permits("charge()", permits)
        for part, amount in self.shares(permits):
            part.charge(amount, now)

    def shift(self, ns: int) -> None:
        """Have every part follow a pause of ``ns``."""
        for part in self.permitted:
            part.shift(ns)

    def restart(self, now: int) -> None:
        """Restart all parts."""
        for part in self.parts:
            part.restart(now)

    def reset(self, now: int) -> None:
        """Reset all parts."""
        for part in self.parts:
            part.reset(now)

    def available(self, now: int) -> int:
        """The least of the parts'."""
        return min(part.available(now) for part in self.permitted)

    def _quotas(self) -> list[tuple[int, Rate]]:
        """Those of all parts."""
        return [quota for part in self.parts for quota in part._quotas()]

    def _standings(self, now: int) -> list[tuple[int, int]]:
        """Those of all parts."""
        return [standing for part in self.permitted for standing in part._standings(now)]

    def _rested(self, now: int) -> bool:
        """Whether all parts are."""
        return all(part._rested(now) for part in self.permitted)

    def lag(self, now: int) -> int:
        """The longest `lag` of a part."""
        return max(part.lag(now) for part in self.parts)

    def bound(self, window: int, largest: int = 1) -> int | None:
        """The least `bound` of a part."""
        check_window(window, largest)
        return self._bound_when_late(window, largest, 0)

    def _bound_when_late(self, window: int, largest: int, late: int) -> int | None:
        """The least bound of a part, each with an allowance for lateness only if it needs one."""
        bounds = [part._bound_when_late(window, largest, late) for part in self.parts]
        return min((bound for bound in bounds if bound is not None), default=None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.parts))})"
