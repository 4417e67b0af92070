"""Amounts: what a request takes of several dimensions at once, where a number of permits would not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate._schedulers.interface import Scheduler
    from aiorate._schedulers.server_quotas import ServerQuotas

__all__ = ["Amounts", "Permits", "count_of", "first_of"]


class Amounts:
    """Of one request, or the sum of several: the amount, 0 or more, of each dimension. No number: only sums and differences are defined."""

    __slots__ = ("_part", "of", "requests", "waited_for")

    def __init__(self, of: tuple[int, ...], requests: int = 1) -> None:
        self.of: tuple[int, ...] = of
        self.requests: int = requests
        self.waited_for: int | None = None
        """The place of the dimension that the request, or one before it in line, waited for; None: none."""
        self._part: Amounts | None = None

    def part(self, places: tuple[int, ...]) -> Amounts:
        """The amounts at these places, in that order; no request if they are all 0. Asked again, the same object."""
        if self._part is None:
            of = tuple([self.of[place] for place in places])
            self._part = Amounts(of, self.requests if any(of) else 0)
        return self._part

    def __bool__(self) -> bool:
        """Whether it is that of a request, even if it takes 0 of everything."""
        return self.requests != 0

    def __add__(self, other: Permits) -> Amounts:
        return self._joined(other, 1)

    def __radd__(self, other: Permits) -> Amounts:
        return self._joined(other, 1)

    def __sub__(self, other: Permits) -> Amounts:
        return self._joined(other, -1)

    def __rsub__(self, other: Permits) -> Amounts:
        return Amounts((0,) * len(self.of), 0) - self + other

    def _joined(self, other: Permits, sign: int) -> Amounts:
        if isinstance(other, Amounts):
            of = tuple([mine + sign * its for mine, its in zip(self.of, other.of, strict=True)])
            return Amounts(of, self.requests + sign * other.requests)
        return self if other == 0 else NotImplemented  # 0 is the sum of no requests

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Amounts) and (self.of, self.requests) == (other.of, other.requests)

    def __hash__(self) -> int:
        return hash((self.of, self.requests))

    def __repr__(self) -> str:
        return f"Amounts({self.of!r}, {self.requests})"

    def __deepcopy__(self, memo: object) -> Amounts:
        return self


Permits = int | Amounts
"""What a request takes of a limit: permits or, where there are dimensions, amounts. The sum of no requests is 0 in either case."""


def first_of(permits: Permits) -> int:
    """The permits that count for a share: of several dimensions, those of the first."""
    return permits if isinstance(permits, int) else permits.of[0]


def count_of(permits: Permits) -> int:
    """The permits as statistics count them: of several dimensions, the requests."""
    return permits if isinstance(permits, int) else permits.requests


if TYPE_CHECKING:
    # As a limit asks them, for permits or for amounts: its requests are of the kind that its scheduler takes.

    class AnyScheduler(Scheduler):
        def take(self, permits: Permits, now: int, since: int | None = None) -> int: ...
        def peek(self, permits: Permits, now: int, ahead: Permits = 0) -> int: ...
        def give_back(self, permits: Permits, now: int, taken: int | None = None) -> None: ...

    class AnyQuotas(ServerQuotas):
        def take(self, permits: Permits, now: int, since: int | None = None) -> int: ...
        def peek(self, permits: Permits, now: int, ahead: Permits = 0) -> int: ...
        def give_back(self, permits: Permits, now: int, taken: int | None = None) -> None: ...
