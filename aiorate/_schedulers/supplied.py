"""Supplied: what the schedulers have in common whose permits come from a store that many processes share.

Knows nothing of stores, loops or waiters: a `Link` is told when permits are wanted.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Protocol

from aiorate._schedulers.interface import NOBODY_KNOWS, Scheduler

if TYPE_CHECKING:
    from typing import Any

    from aiorate._rate import Rate
    from aiorate._schedulers.amounts import Permits

__all__ = ["MOST_NS", "Fallback", "Link", "Supplied", "check_charge", "standing_of"]

MOST_NS = 10**19
"""317 years: the longest duration that a store can count."""
_FIRST_ANSWER_NS = 1_000_000  # until one was measured
_LOOK_AGAIN_NS = 20_000_000


class Link(Protocol):
    """How a scheduler reaches the store that supplies it."""

    def wanted(self, now: int) -> bool:
        """Permits may be wanted at that instant. Returns whether they are on their way then."""
        ...

    def charged(self, permits: int) -> None:
        """Permits were used without asking."""
        ...


class Fallback(Protocol):
    """Decides, while the store cannot be asked, about requests for which there are not enough permits in hand."""

    def at(self, permits: Permits, now: int) -> int:
        """When they are due. Raises an error if the policy refuses the request."""
        ...

    def spend(self, permits: Permits, now: int) -> None:
        """Take them."""
        ...


class Supplied(Scheduler):
    """`Link.wanted` is called when permits may be wanted.

    Once it has returned True they are on their way, and it is not called again until an answer, or `unanswered`.
    """

    __slots__ = ("answer_ns", "asked_at", "fallback", "link", "patient", "refused", "rehearsal", "spent")
    rate: Rate
    books_since: bool = False

    def __init__(self) -> None:
        self.asked_at: int | None = None
        """Since when permits are on their way; None: they are not."""
        self.rehearsal: bool = False
        """Whether it only foretells grants, and calls nobody."""
        self._receipts: bool = True
        self.answer_ns: int = _FIRST_ANSWER_NS
        """How long an answer of the store takes, as it was measured."""
        self.spent: int = 0
        """Permits granted in all."""
        self.refused: int = 0
        """The permits of the last request for which there were not enough; 0: another one was granted since."""
        self.patient: bool = False
        """Whether the first in line keeps its permits while another limit is asked after this one."""
        self.fallback: Fallback | None = None
        """Decides about requests for which there are not enough permits; None: they wait for the store."""
        self.link: Link | None = None

    def unanswered(self) -> None:
        """Nothing is on its way: call the link again when permits are wanted."""
        self.asked_at = None

    def recheck(self) -> None:
        """Ask for the next request, though the store had nothing left."""

    def want(self, now: int) -> None:
        """Tell the link that permits are wanted, unless they are on their way."""
        if self.asked_at is None and self.link is not None and self.link.wanted(now):
            self.asked_at = now

    @property
    def asking(self) -> bool:
        """Whether permits are on their way."""
        return self.asked_at is not None

    @property
    def in_hand(self) -> int:
        """The number of permits that came and were not granted yet, including those that have lapsed."""
        raise NotImplementedError

    @property
    def lapsed(self) -> int:
        """Nanoseconds of schedule that nobody used in time."""
        return 0

    def ready(self, permits: int, now: int) -> int:
        """The number of permits in hand that are of use while the first in line asks for ``permits``."""
        raise NotImplementedError

    def due_by(self, instant: int, now: int) -> int:
        """The number of permits in hand that are of use now and due by that instant."""
        raise NotImplementedError

    def returnable(self, now: int) -> int:
        """The number of permits in hand that the store would take back."""
        raise NotImplementedError

    def clear(self) -> None:
        """Give up all permits in hand: they belong to another process."""
        raise NotImplementedError

    def take_ahead(self, permits: int, now: int) -> None:
        """In a copy: take the permits of a whole line, each as soon as it is due."""
        raise NotImplementedError

    def reset(self, now: int) -> None:
        """Raises RuntimeError: the store knows of all grants, for all processes."""
        raise RuntimeError("reset(): other processes share this limit and remember it. Use another name.")

    def look_again_at(self, now: int) -> int:
        """When to look again for a request that lacks permits. If more are on their way, their arrival is told."""
        return now + _LOOK_AGAIN_NS if self.asked_at is None else NOBODY_KNOWS


def peek_behind(scheduler: Supplied, permits: Any, now: int, ahead: Any) -> int:
    """`Scheduler.peek` behind a line: a copy of what is in hand, and of the estimate of what comes after it, serves that line first."""
    twin = deepcopy(scheduler)
    twin.take_ahead(ahead, now)
    return twin.peek(permits, now)


def check_charge(permits: int, rate: Rate) -> None:
    """Raise ValueError for a debt of more than 317 years."""
    if permits * rate.period_ns > MOST_NS * rate.permits:
        most = MOST_NS * rate.permits // rate.period_ns
        raise ValueError(f"charge({permits}): at {rate} the debt would last longer than 317 years. At most {most} can be charged.")


def standing_of(fallback: Fallback, most: int, now: int) -> tuple[int, int]:
    """How many of ``most`` permits an outage leaves at ``now``, and when there is one more; `NOBODY_KNOWS` if nobody does."""
    try:
        at = fallback.at(1, now)
        if at > now:
            return 0, at
        at = fallback.at(most, now)
    except ConnectionError:  # the policy refuses requests
        return 0, NOBODY_KNOWS
    return (most, now) if at <= now else (1, now)
