"""AllOf: a scheduler of several members. A request is scheduled for the latest instant that a member names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from aiorate._errors import kind_of
from aiorate._schedulers.interface import Scheduler, check_window, claim

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiorate._rate import Rate
    from aiorate._schedulers.interface import Standing


class AllOf(Scheduler):
    """Apply several limits at once, all or nothing. A list of limits makes one.

    A request is granted when every member grants it. If one refuses, none of them is charged. The guarantee is the lowest of theirs.

    Args:
        *schedulers: The strategies, all different objects.
    """

    __slots__ = ("_permitted", "members")
    members: tuple[Scheduler, ...]
    _permitted: tuple[Scheduler, ...]
    """The members, each with what servers said of it."""

    def __init__(self, *schedulers: Scheduler) -> None:
        if not schedulers:
            raise ValueError("AllOf() needs at least one scheduler.")
        for member in schedulers:
            if not isinstance(member, Scheduler):
                raise TypeError(f"AllOf() takes schedulers such as TokenBucket('10/s', burst=5), not {kind_of(member)}.")
        claim("an AllOf" if type(self) is AllOf else "a dimension of a budget", *schedulers)
        self.members = self._permitted = schedulers

    @property
    def rate(self) -> Rate:  # type: ignore[override]  # it follows the members'
        """The rate of the tightest member."""
        return min(self.members, key=lambda member: member.rate.per_second).rate

    @property
    def max_permits(self) -> int | None:  # type: ignore[override]
        """The least `max_permits` of a member."""
        return min([member.max_permits for member in self.members if member.max_permits is not None], default=None)

    @property
    def books_since(self) -> bool:  # type: ignore[override]
        return any(member.books_since for member in self.members)

    def _shares(self, permits: Any) -> Iterable[tuple[Any, Any]]:
        """Which members a request takes from, and how many permits of each."""
        return [(part, permits) for part in self._permitted]

    # The members check what they are asked.

    def take(self, permits: Any, now: int, since: int | None = None) -> int:
        at: int = self.peek(permits, now)
        # ``since`` does not decide whether a request is granted, so peek() at all members is enough.
        return at if at > now else self._take(permits, now, since)

    def _take(self, permits: Any, now: int, since: int | None) -> int:
        return max([part.take(share, now, since) for part, share in self._shares(permits)], default=now)

    def peek(self, permits: Any, now: int, ahead: Any = 0) -> int:
        return max([part.peek(permits, now, ahead) for part in self._permitted])

    def give_back(self, permits: Any, now: int, taken: int | None = None) -> None:
        for part, share in self._shares(permits):
            part.give_back(share, now, taken)

    def charge(self, permits: int, now: int) -> None:
        for member in self.members:
            member.charge(permits, now)

    def _shift(self, ns: int) -> None:
        for part in self._permitted:
            part._shift(ns)

    def reset(self, now: int) -> None:
        for member in self.members:
            member.reset(now)
        self._permitted = self.members

    def available(self, now: int) -> int:
        """The least of the members'."""
        return min(member.available(now) for member in self._permitted)

    def _standings(self, now: int) -> list[Standing]:
        return [standing for member in self._permitted for standing in member._standings(now)]

    def _rested(self, now: int) -> bool:
        return all(member._rested(now) for member in self._permitted)

    def bound(self, window: int, largest: int = 1) -> int | None:
        """The least `bound` of a member."""
        check_window(window, largest)
        return self._bound_when_late(window, largest, 0)

    def set_rate(self, rate: Rate, now: int) -> NoReturn:
        """Refused, because only the members have rates to change. Change one: ``limiter.set_rate(rate, member=0)``."""
        raise RuntimeError("this limit has several rates, one for each of its members. Say which: limiter.set_rate(rate, member=0).")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.members))})"
