"""The Scheduler interface and its laws; checks that all strategies share.

A scheduler is a few integers that answer one question: *for when is a request of n permits scheduled?*
It knows no loop, no clock and nobody who waits: the instant is passed in, in whole nanoseconds on any monotonic origin.

The laws, which `aiorate.testing.check_scheduler` tries on any scheduler:

1.  Asking changes nothing (but that the first instant ever given starts the schedule), nor does a refusal.
2.  A request is never granted before the instant named for it, and always at it or later.
3.  More permits are never sooner, and taking never makes anyone sooner.
4.  No window of any history holds more permits than `bound` says, permits given back not counted.
5.  Taking and giving back at once leaves no trace.
6.  Adding a constant to all instants changes nothing else.
7.  Time that goes back is no progress, never credit.
8.  No drift: the k-th grant under load is due at exactly its share of the schedule, after a thousand million grants too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aiorate.rate import Rate

__all__ = ["Scheduler"]


class Scheduler(Protocol):
    """For when is a request scheduled? All instants and durations are whole nanoseconds.

    Optional, and looked for by `aiorate.Limiter`:

    * ``books_since = False``: `take` ignores ``since``; the limiter's guarantee then needs no allowance for lateness.
    * ``refundable = True``: permits given back are credited whoever took them last, as pools and buckets do.
    * ``spilled``: ns of schedule that nobody used and that are given up, so far; none where everything is made up for.
    * ``seen``: the latest instant that `take` was given, where a grant due by it needs no fresh one.
    * ``book``: `take` without the check of its arguments, for a caller that has made it.
    * ``batch``: how many permits may be handed out without asking for each, where paying now makes that safe. They are taken in a
      few portions, and given back in one: `give_back` must then undo exactly what `take` did.
    * ``shift(ns)``: the schedule was held up for so long; only strategies that follow the calendar need to know.
    * ``restart(now)``, ``apply(rate, burst)``: what the verbs of a `RateSpec` do beyond a new rate.
    """

    @property
    def rate(self) -> Rate:
        """The rate in force; changed through `set_rate`."""
        ...

    @property
    def max_permits(self) -> int | None:
        """The largest single request that can ever be granted; None: any."""
        ...

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        """The instant for which the request is scheduled; if that is ``now`` or before, it is granted and spent.

        A later instant is a refusal: nothing changed, and asked again then, with nothing else taken in between, it is
        granted. ``since`` (default ``now``) says since when the request stands in line: schedulers that pace book from
        ``max(due, since)``, so that a late timer costs no rate.
        """
        ...

    def peek(self, permits: int, now: int) -> int:
        """What `take` would answer, without taking."""
        ...

    def give_back(self, permits: int, now: int) -> None:
        """Credit permits that were not used: up to capacity, or the latest take undone if nothing was taken since."""
        ...

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate from ``now`` on; forgives no debt, gives no credit."""
        ...

    def lag(self, now: int) -> int:
        """How far behind schedule, in ns."""
        ...

    def bound(self, window: int, largest: int = 1) -> int | None:
        """The most permits ever granted within any half-open window of so many ns; None: no bound.

        ``largest`` is the most that a single request asks for.
        """
        ...


def check_ask(call: str, permits: int, now: int, since: int | None = None, most: int | None = None) -> None:
    """Raise a clear error unless a scheduler can be asked that."""
    check_permits(call, permits, most)
    for name, instant in (("now", now), ("since", since)):
        if isinstance(instant, bool) or not isinstance(instant, int | None) or (name == "now" and instant is None):
            raise TypeError(f"{call}({name}=...) must be an instant in whole ns, not {type(instant).__name__}.")


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


def check_start(start: int | None) -> None:
    """Raise a clear error unless a schedule can run from there."""
    if start is not None and (isinstance(start, bool) or not isinstance(start, int)):
        raise TypeError(f"start must be an instant in whole ns or None, not {type(start).__name__}.")


def check_ns(call: str, ns: int, least: int = 0) -> None:
    """Raise a clear error unless it is so many whole nanoseconds."""
    if isinstance(ns, bool) or not isinstance(ns, int):
        raise TypeError(f"{call} takes whole ns, not {type(ns).__name__}.")
    if ns < least:
        raise ValueError(f"{call} takes {least} ns or more; {_shown(ns)} was given.")


def check_window(window: int, largest: int) -> None:
    """Raise a clear error unless bound() can be asked that."""
    if isinstance(window, bool) or not isinstance(window, int):
        raise TypeError(f"bound(window) must be a length in whole ns, not {type(window).__name__}.")
    if window < 1:
        raise ValueError(f"bound(window) must be 1 ns or more; {_shown(window)} was given.")
    check_permits("bound(largest)", largest)


def booked_from(due: int, since: int, unit: int) -> int:
    """The later of due and since, where due counts in units of which a nanosecond has so many.

    An instant is a whole nanosecond, and what falls due within it is on time: rounding it up to its end would cost
    a fraction of a nanosecond at every grant, which is drift.
    """
    return due if due > (since - 1) * unit else since * unit
