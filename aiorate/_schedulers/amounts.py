"""Amounts: what a request takes of several dimensions at once, where a number of permits would not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate._schedulers.interface import Scheduler


class Amounts:
    """How much of each dimension one request takes, or several together. Only sums and differences are defined."""

    __slots__ = ("_part", "names", "of", "requests", "waited_for")

    def __init__(self, names: tuple[str, ...], of: tuple[int, ...], requests: int = 1) -> None:
        self.names: tuple[str, ...] = names  # of the dimensions, those of the limit itself first
        self.of: tuple[int, ...] = of  # the amounts, in the order of the names
        self.requests: int = requests
        self.waited_for: str | None = None
        """The dimension that the request, or one before it in line, waited for."""
        self._part: Amounts | None = None

    def part(self, names: tuple[str, ...]) -> Amounts:
        """The amounts of these dimensions, as the same object each time; no request if they are all 0."""
        if self._part is None:
            of = tuple([self[name] for name in names])
            self._part = Amounts(names, of, self.requests if any(of) else 0)
        return self._part

    def waited_above(self, name: str | None) -> None:
        """Note that it waited for a dimension above; None: for what its part waited for."""
        self.waited_for = name or (self._part is not None and self._part.waited_for) or self.waited_for

    def __getitem__(self, name: str) -> int:
        return self.of[self.names.index(name)]

    def by_name(self) -> dict[str, int]:
        return dict(zip(self.names, self.of, strict=True))

    def __bool__(self) -> bool:
        """Whether it is that of a request, even if it takes 0 of everything."""
        return self.requests != 0

    def __add__(self, other: Permits, sign: int = 1) -> Amounts:
        if isinstance(other, Amounts):
            of = tuple([own + sign * more for own, more in zip(self.of, other.of, strict=True)])
            return Amounts(self.names, of, self.requests + sign * other.requests)
        return self if other == 0 else NotImplemented  # 0 is the sum of no requests

    __radd__ = __add__

    def __sub__(self, other: Permits) -> Amounts:
        return self.__add__(other, -1)

    def __rsub__(self, other: Permits) -> Amounts:
        return Amounts(self.names, (0,) * len(self.of), 0) - self + other

    def __repr__(self) -> str:
        return ", ".join([f"{name}={amount}" for name, amount in self.by_name().items()])


Permits = int | Amounts
"""What a request takes of a limit: permits or, where there are dimensions, amounts. The sum of no requests is always 0."""


def first_of(permits: Permits) -> int:
    """The permits that count for a share: those of the first dimension."""
    return permits if isinstance(permits, int) else permits.of[0]


def count_of(permits: Permits) -> int:
    """The permits as statistics count them: of several dimensions, the requests."""
    return permits if isinstance(permits, int) else permits.requests


if TYPE_CHECKING:
    # For a limit, whose requests are of the kind that its scheduler takes.

    class AnyScheduler(Scheduler):
        def take(self, permits: Permits, now: int, since: int | None = None) -> int: ...
        def peek(self, permits: Permits, now: int, ahead: Permits = 0) -> int: ...
        def give_back(self, permits: Permits, now: int, taken: int | None = None) -> None: ...
