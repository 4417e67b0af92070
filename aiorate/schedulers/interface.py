"""The Scheduler interface, its laws and its defaults; the checks that all strategies share.

A scheduler is a few integers that answer one question: *for when is a request of n permits scheduled?*
It knows no loop, no clock and no waiter: the instant is passed in, in whole nanoseconds on any monotonic origin.

The laws, which `aiorate.testing.check_scheduler` tries on any scheduler:

1.  Asking changes nothing (except that the first instant given starts the schedule), nor does a refusal.
2.  A request is never granted before the instant named for it, and always at it or later.
3.  More permits are never sooner, and taking never makes anyone sooner.
4.  No window of any history holds more permits than `Scheduler.bound` says. A permit given back by its receipt was never granted;
    one given back without counts as one fewer at the instant at which it came back.
5.  Taking and giving back at once, by receipt, leaves no trace.
6.  Adding a constant to all instants changes nothing else.
7.  Time that goes back is no progress, never credit.
8.  No drift: the k-th grant under load is due at exactly its share of the schedule, after a thousand million grants too.
9.  What `Scheduler.stock` counts is granted, at that instant or any later one, as long as nothing else is taken.
10. What is charged delays later requests as a take does where it is due, and by no less where it is not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate.rate import Number, Rate

__all__ = ["Scheduler"]


class Scheduler(ABC):
    """For when is a request scheduled? All instants and durations are whole nanoseconds.

    A strategy of one's own derives from this class, keeps `rate` and `max_permits`, and writes `take`, `peek`, `give_back`,
    `set_rate`, `lag` and `bound`. The rest are defaults that most strategies need not change.
    """

    __slots__ = ("owner", "receipts")

    rate: Rate
    """The rate in force; changed through `set_rate`."""
    max_permits: int | None = None
    """The largest single request that can ever be granted; None: any."""
    books_since: bool = True
    """Whether `take` honours ``since``. If not, the limiter's guarantee needs no allowance for a late event loop."""
    makes_up: bool = False
    """Whether everything that is missed is made up for, so that what lies in stock may as well be booked later."""
    members: tuple[Scheduler, ...] = ()
    """The schedulers that this one is made of, if it is."""
    owner: str
    """What it belongs to; see `claim`."""

    receipts: bool
    """Whether anything might come back by receipt. While a limiter sets it to False, no record need be kept for that."""

    @property
    def spilled(self) -> int:
        """Nanoseconds of schedule that went unused and are given up, so far; 0 where everything is made up for."""
        return 0

    @abstractmethod
    def take(self, permits: int, now: int, since: int | None = None) -> int:
        """The instant for which the request is scheduled; if that is ``now`` or before, it is granted and spent.

        A later instant is a refusal: nothing changed, and asked again then, with nothing else taken in between, it is
        granted. ``since`` (default ``now``) says since when the request stands in line: schedulers that pace book from
        ``max(due, since)``, so that a late timer costs no rate. The receipt of what was granted is ``now``.
        """

    @abstractmethod
    def peek(self, permits: int, now: int) -> int:
        """What `take` would answer, without taking."""

    @abstractmethod
    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Credit permits that were not used.

        ``taken`` is their receipt, the ``now`` at which `take` granted them: the credit is exact then, or less. Without it they
        are anybody's: pools and buckets fill up to capacity, windows forget their oldest entries, pacing strategies lose the slot.
        """

    @abstractmethod
    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate from ``now`` on; forgives no debt, gives no credit."""

    @abstractmethod
    def lag(self, now: int) -> int:
        """How far behind schedule, in ns."""

    @abstractmethod
    def bound(self, window: int, largest: int = 1) -> int | None:
        """The most permits ever granted within any half-open window of so many ns; None: no bound.

        ``largest`` is the most that a single request asks for.
        """

    def bound_when_late(self, window: int, largest: int, late: int) -> int | None:
        """`bound` where requests are booked up to ``late`` ns before they are granted."""
        return self.bound(window + late if self.books_since else window, largest)

    def stock(self, now: int) -> int:
        """How many permits lie ready at ``now`` and stay ready until they are taken; 0: none to rely on."""
        return 0

    def charge(self, permits: int, now: int) -> None:
        """Take permits that were used without being asked for; any number of them. Later requests wait for them.

        Here, in portions as large as a request may be, each as soon as it is due. Strategies of aiorate take any number at once.
        """
        most = permits if self.max_permits is None else self.max_permits
        while permits > 0:
            portion = min(permits, most)
            now = max(self.peek(portion, now), now)
            self.take(portion, now)
            permits -= portion

    def apply(self, rate: Rate, burst: Number, now: int) -> None:
        """Change the rate and, in strategies that have one, the burst ratio."""
        if rate != self.rate:
            self.set_rate(rate, now)

    def restart(self, now: int) -> None:
        """Forget the backlog: empty pools, no slot due before ``now``; a debt stays. Nothing where there is no backlog."""

    def reset(self, now: int) -> None:
        """Begin anew at ``now``, as if just made, at the rate in force."""
        raise RuntimeError(f"reset(): {type(self).__name__} does not say how it begins. Write its method reset(now).")

    def shift(self, ns: int) -> None:
        """The schedule was held up for so long. Only strategies that follow the calendar need to know."""

    @property
    def claimed(self) -> bool:
        """Whether it belongs to a limiter already."""
        try:
            return bool(self.owner)
        except AttributeError:
            return False

    def claim(self, owner: str) -> None:
        """Make it and its members the owner's alone. ValueError if any has one: each would spend what the other was promised."""
        parts: list[Scheduler] = [self]
        for part in parts:  # which grows meanwhile
            if part.claimed:
                raise ValueError(f"{owner}: {part!r} belongs to {part.owner} already. Make another one, or share that limiter.")
            parts += part.members
        for part in parts:
            part.owner = owner


def check_ask(call: str, permits: int, now: int, since: int | None = None, most: int | None = None) -> None:
    """Raise a clear error unless a scheduler can be asked that."""
    check_permits(call, permits, most)
    check_instant(f"{call}(now)", now)
    if since is not None:
        check_instant(f"{call}(since)", since)


def check_give_back(permits: int, now: int, taken: int | None) -> None:
    """Raise a clear error unless permits can be given back like that."""
    check_permits("give_back()", permits)
    check_instant("give_back(now)", now)
    if taken is not None:
        check_instant("give_back(taken)", taken)


def check_permits(call: str, permits: int, most: int | None = None) -> None:
    """Raise a clear error unless permits is an int from 1 to most."""
    if isinstance(permits, bool) or not isinstance(permits, int):
        raise TypeError(f"{call}: permits must be an int of 1 or more, not {type(permits).__name__}.")
    if permits < 1:
        raise ValueError(f"{call}: permits must be 1 or more; {_shown(permits)} was asked for.")
    if most is not None and permits > most:
        raise ValueError(
            f"{call}: {_shown(permits)} permits can never be granted, {_shown(most)} is the most at once here."
            " Ask for less, or allow more at once."
        )


def _shown(number: int) -> str:
    """The number, unless it would fill the screen (or be refused by int's own limit of digits)."""
    return str(number) if abs(number) < 10**30 else f"an int of {number.bit_length()} bits"


def check_instant(what: str, instant: int) -> None:
    """Raise a clear error unless it is an instant."""
    if isinstance(instant, bool) or not isinstance(instant, int):
        raise TypeError(f"{what} must be an instant in whole ns, not {type(instant).__name__}.")


def check_start(start: int | None) -> None:
    """Raise a clear error unless a schedule can run from there."""
    if start is not None:
        check_instant("start", start)


def check_ns(call: str, ns: int, least: int = 0) -> None:
    """Raise a clear error unless it is so many whole nanoseconds."""
    if isinstance(ns, bool) or not isinstance(ns, int):
        raise TypeError(f"{call} takes whole ns, not {type(ns).__name__}.")
    if ns < least:
        raise ValueError(f"{call} takes {least} ns or more; {_shown(ns)} was given.")


def check_window(window: int, largest: int) -> None:
    """Raise a clear error unless bound() can be asked that."""
    check_ns("bound(window)", window, least=1)
    check_permits("bound(largest)", largest)


def booked_from(due: int, since: int, unit: int) -> int:
    """The later of due and since, where due counts in units of which a nanosecond has so many.

    An instant is a whole nanosecond, and what falls due within it is on time: rounding it up to its end would cost
    a fraction of a nanosecond at every grant, which is drift.
    """
    return due if due > (since - 1) * unit else since * unit
