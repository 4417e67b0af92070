"""An outage of the store, and what happens to requests meanwhile. A state machine that is told the time, and starts no timer.

A *reading* is the clock's, an *instant* (``now``) is the limiter's own time, which stands still during a pause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from aiorate._errors import EngineUnavailable
from aiorate._schedulers.amounts import count_of
from aiorate._schedulers.interface import NOBODY_KNOWS
from aiorate._schedulers.next_free import NextFree
from aiorate._store.failures import said, said_by_server

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from aiorate._rate import Rate
    from aiorate._schedulers.amounts import Permits
    from aiorate._schedulers.supplied import Fallback

__all__ = ["POLICIES", "Outage"]

POLICIES = ("raise", "wait", "local", "open")


class _Raise:
    """All requests fail."""

    __slots__ = ("_error",)

    def __init__(self, error: EngineUnavailable) -> None:
        self._error = error

    def at(self, permits: Permits, now: int) -> int:
        # A copy for each caller: a single error would collect the frames of them all.
        error = EngineUnavailable(*self._error.args)
        raise error from self._error.__cause__

    def spend(self, permits: Permits, now: int) -> None:
        """Never called."""


class _Wait:
    """Nobody can say until when."""

    __slots__ = ()

    def at(self, permits: Permits, now: int) -> int:
        return NOBODY_KNOWS

    def spend(self, permits: Permits, now: int) -> None:
        """Never called."""


class _Open:
    """No limit at all."""

    __slots__ = ()

    def at(self, permits: Permits, now: int) -> int:
        return now

    def spend(self, permits: Permits, now: int) -> None:
        """Nobody counts."""


class _Local:
    """A part of the rate, in this process alone. It begins without a burst."""

    __slots__ = ("_next", "spent")

    def __init__(self, limits: Fallback) -> None:
        self._next = limits
        self.spent: Permits = 0
        """Permits."""

    def at(self, permits: Permits, now: int) -> int:
        return self._next.at(permits, now)

    def spend(self, permits: Permits, now: int) -> None:
        self._next.spend(permits, now)
        self.spent += permits


class Outage:
    """Since when the store has not answered, and what decides after that has lasted for ``grace`` ns.

    ``rates`` and ``bursts`` are this process's own for the policy ``"local"``: ``share`` of the whole.
    """

    call = "acquire()"  # that errors name
    __slots__ = ("_bursts", "_grace", "_rates", "_share", "_uncharged", "began", "cause", "fallback", "policy")

    def __init__(self, policy: str, grace: int, rates: Sequence[Rate], bursts: Sequence[int], share: Fraction) -> None:
        self.policy: str = policy
        """Its name."""
        self._grace: int = grace
        self._rates: Sequence[Rate] = rates
        self._bursts: Sequence[int] = bursts
        self._share: Fraction = share
        self._uncharged: Permits = 0  # permits that were granted here in an outage that ended in a refusal
        self.began: int | None = None
        """The reading at the first call without an answer; None: the store answers."""
        self.cause: BaseException | None = None
        """Of the last such call."""
        self.fallback: Fallback | None = None
        """Decides once the outage has gone on for longer than the grace."""

    @property
    def degraded(self) -> bool:
        """Whether it has gone on for longer than the grace."""
        return self.fallback is not None

    @property
    def due(self) -> int | None:
        """The reading at which the grace is over; None: the store answers, or the grace is over."""
        return None if self.began is None or self.degraded else self.began + self._grace

    def failed(self, began: int, cause: BaseException) -> None:
        """A call got no answer. The store has been silent since ``began``, as far as it was asked."""
        self.cause = cause
        if self.began is None:
            self.began = began

    def forget(self) -> None:
        """Nobody waits for the store: the grace begins with the next call without an answer."""
        self.began = None

    def over(self, reading: int, now: int) -> Fallback | None:
        """What decides from now on, if the grace is over; None: nothing has changed."""
        due = self.due
        if due is None or reading < due:
            return None
        if self.policy == "raise":
            self.fallback = _Raise(self.error())
        elif self.policy == "wait":
            self.fallback = _Wait()
        elif self.policy == "open":
            self.fallback = _Open()
        else:
            self.fallback = _Local(self.local(now))
        return self.fallback

    def local(self, now: int) -> Fallback:
        """The limits of this process alone, which begin now."""
        return cast("Fallback", NextFree(self._rates, self._bursts, [now] * len(self._rates)))  # whose permits are ints

    def ended(self, reading: int, unused: float) -> tuple[int, Permits]:
        """The store answers again, and ``unused`` permits went by meanwhile that nobody took.

        Returns how long (ns) the store was degraded (0 if the grace was not over), and how many permits must be charged: those granted
        here, less this process's share of the unused ones.
        """
        length, spent = self.refused(reading), self._uncharged
        self._uncharged = 0
        return length, self.owed(spent, unused)

    def owed(self, spent: Permits, unused: float) -> Permits:
        """What must be charged of the permits that were granted here."""
        return spent - min(count_of(spent), int(max(unused, 0) * self._share))

    def refused(self, reading: int) -> int:
        """The store can be reached again, and refuses. Permits that were granted here are charged once it answers.

        Returns how long (ns) the store was degraded, as `ended` does.
        """
        began, fallback = self.began, self.fallback
        length = reading - began if self.degraded and began is not None else 0
        if isinstance(fallback, _Local):
            self._uncharged = self._uncharged + fallback.spent
        self.began = self.cause = self.fallback = None
        return length

    @property
    def concerns_answer(self) -> bool:
        """Whether the next answer of the store ends an outage, or finds permits that must be charged for one."""
        return self.began is not None or bool(self._uncharged)

    @property
    def why(self) -> str:
        """The error of the last such call."""
        return "" if self.cause is None else said(self.cause).rstrip(".")

    def error(self) -> EngineUnavailable:
        """The error for requests that cannot be served."""
        what = "answers with an error" if said_by_server(self.cause) else "does not answer"
        error = EngineUnavailable(
            f"{self.call}: the store {what}: {self.why}. It is asked again; on_unavailable= says what happens meanwhile."
        )
        error.__cause__ = self.cause
        return error
