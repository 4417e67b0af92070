"""Several limits with an amount of its own for each: the scheduler of a `aiorate.Budget`."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from aiorate.schedulers.capped import Capped
from aiorate.schedulers.interface import Scheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate.rate import Rate

__all__ = ["Amounts", "Dimensions", "Totals"]


class Amounts(int):
    """One request, and how much it takes of each dimension, 0 or more. As a number it is 1: what is counted is requests."""

    of: tuple[int, ...]
    waited_for: int | None
    """The place of the dimension that it, or those before it in line, waited for; None: none."""

    def __new__(cls, of: tuple[int, ...]) -> Amounts:
        amounts = super().__new__(cls, 1)
        amounts.of, amounts.waited_for = of, None
        return amounts

    def __deepcopy__(self, memo: object) -> Amounts:
        return self


class Totals(int):
    """How much a line of requests takes of each dimension, in all."""

    of: list[int]

    def __new__(cls) -> Totals:
        totals = super().__new__(cls)
        totals.of = []
        return totals

    def __iadd__(self, amounts: int) -> Totals:
        return self._plus(amounts, 1)

    def __isub__(self, amounts: int) -> Totals:
        return self._plus(amounts, -1)

    def __bool__(self) -> bool:
        return any(self.of)

    def _plus(self, amounts: int, sign: int) -> Totals:
        assert isinstance(amounts, (Amounts, Totals))  # as all requests of a budget
        self.of = [total + sign * amount for total, amount in zip_longest(self.of, amounts.of, fillvalue=0)]
        return self


class Dimensions(Scheduler):
    """Grants a request when every dimension grants its amount, and takes from all of them or none. Its permits are `Amounts`."""

    __slots__ = ("parts", "waited_for")
    none: type[int] = Totals

    def __init__(self, parts: Sequence[Scheduler]) -> None:
        self.parts: list[Scheduler] = list(parts)
        """A scheduler for each dimension."""
        self.waited_for: int | None = None
        """The place of the dimension that last had a request wait; one beyond the last is that of a limit that is shared."""
        self.receipts = True  # pyright: ignore[reportIncompatibleVariableOverride]
        all_parts: list[Scheduler] = [*parts]
        for part in all_parts:  # the list grows meanwhile
            all_parts += part.members
        if len(all_parts) > len({id(part) for part in all_parts}):
            raise ValueError("Budget(): a strategy given for two dimensions would be charged for both. Make two.")

    @property
    def members(self) -> tuple[Scheduler, ...]:  # type: ignore[override]
        """Those of all dimensions, so that none belongs to another limiter."""
        return tuple(self.parts)

    @property
    def rate(self) -> Rate:  # type: ignore[override]
        """That of the first dimension."""
        return self.parts[0].rate

    @property
    def books_since(self) -> bool:  # type: ignore[override]
        """Whether any dimension books from since."""
        return any(part.books_since for part in self.parts)

    @property
    def receipts(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Those of all dimensions."""
        return self.parts[0].receipts

    @receipts.setter
    def receipts(self, value: bool) -> None:
        for part in self.parts:
            part.receipts = value

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at = self.peek(permits, now)
        if at > now:
            return at
        if isinstance(permits, Amounts):
            permits.waited_for = self.waited_for
        # ``since`` does not decide whether a request is granted, so peek() at all of them is enough.
        return max([part.take(amount, now, since) for part, amount in self._pairs(permits)], default=now)

    def peek(self, permits: int, now: int) -> int:
        dues = self._dues(permits, now)
        at = max(dues.values(), default=now)
        if at > now:
            self.waited_for = _place_of(at, dues)
        return at

    def last(self, permits: int, now: int) -> int | None:
        """The place of the dimension for which the request would wait longest; None: none."""
        dues = self._dues(permits, now)
        latest = max(dues.values(), default=now)
        return _place_of(latest, dues) if latest > now else None

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Give every dimension its amount back."""
        for part, amount in self._pairs(permits):
            part.give_back(amount, now, taken)

    def correct(self, place: int, more: int, now: int, taken: int) -> None:
        """A request used so much more than it took of that dimension; below 0: so much less, which comes back by receipt."""
        if more > 0:
            self.parts[place].charge(more, now)
        elif more < 0:
            self.parts[place].give_back(-more, now, taken)

    def cap(self, place: int, name: str, left: int, size: int, ns: int, now: int, at: int) -> None:
        """Heed what a server said is left of that dimension; see `Capped.heed`."""
        part = self.parts[place]
        if not isinstance(part, Capped) or part.ended(now):
            part = Capped(part.inner if isinstance(part, Capped) else part)
        if part.heed(name, left, size, ns, now, at):
            self.parts[place] = part

    def set_rate(self, rate: Rate, now: int) -> None:
        """Refused: each dimension has a rate of its own."""
        raise RuntimeError("set_rate(): a budget has a rate for each dimension.")

    def charge(self, permits: int, now: int) -> None:
        """Charge every dimension its amount."""
        for part, amount in self._pairs(permits):
            part.charge(amount, now)

    def take_ahead(self, permits: int, now: int) -> None:
        """From every dimension its amount."""
        for part, amount in self._pairs(permits):
            part.take_ahead(amount, now)

    def shift(self, ns: int) -> None:
        """Have every dimension follow a pause of ``ns``."""
        for part in self.parts:
            part.shift(ns)

    def available(self, now: int) -> int:
        """How many requests of 1 each would be granted."""
        return min(part.available(now) for part in self.parts)

    def rested(self, now: int) -> bool:
        """Whether all dimensions are."""
        return all(part.rested(now) for part in self.parts)

    def lag(self, now: int) -> int:
        """The longest of a dimension."""
        return max(part.lag(now) for part in self.parts)

    def bound(self, window: int, largest: int = 1) -> int | None:
        """None: the bounds are those of the dimensions."""
        return None

    def _dues(self, permits: int, now: int) -> dict[int, int]:
        # By the place of each dimension that is asked for.
        of = self._of(permits)
        return {place: part.peek(of[place], now) for place, part in enumerate(self.parts) if of[place]}

    def _pairs(self, permits: int) -> list[tuple[Scheduler, int]]:
        # Of 0 nothing is taken. The last amount may be of a limit that is shared.
        return [(part, amount) for part, amount in zip(self.parts, self._of(permits), strict=False) if amount]

    def _of(self, permits: int) -> Sequence[int]:
        # A plain number is one request that takes 1 of each.
        return permits.of if isinstance(permits, (Amounts, Totals)) else (1,) * len(self.parts)

    def __repr__(self) -> str:
        return f"Dimensions({', '.join(map(repr, self.parts))})"


def _place_of(due: int, dues: dict[int, int]) -> int:
    return next(place for place, other in dues.items() if other == due)
