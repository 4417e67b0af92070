"""QuotaScheduler: grants permits of a window of the calendar that a store counts, for many processes.

Permits come by `QuotaScheduler.book`, at any time; a `Link` is told when more are wanted. Knows nothing of stores, loops or waiters.
A permit is of use until shortly before its window ends, which is what keeps each window within its number.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from aiorate._schedulers.interface import NOBODY_KNOWS, check_ask, check_give_back, check_permits
from aiorate._schedulers.supplied import Supplied, check_charge, peek_behind, standing_of
from aiorate._schedulers.windows_ahead import WindowsAhead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._rate import Number, Rate
    from aiorate._schedulers.calendar_window import CalendarWindow

__all__ = ["QuotaScheduler"]


class QuotaScheduler(Supplied):
    """Permits in hand, of one window, and an estimate of when more are due. ``calendar`` says how long windows are.

    A copy is a rehearsal: it assumes that all permits which are left are its own, and calls nobody.
    """

    __slots__ = ("_ahead", "_ask_below", "_closes", "_hand", "_nothing_until", "_since", "_taken", "_window", "calendar", "rate")
    spent: int
    refused: int

    def __init__(self, calendar: CalendarWindow) -> None:
        super().__init__()
        self.calendar: CalendarWindow = deepcopy(calendar)
        """Where windows begin and end."""
        self.rate: Rate = calendar.rate
        self._window: int | None = None  # the name of the window in hand; None: the store was never asked
        self._hand: int = 0
        self._taken: int = 0  # permits of it that were granted here
        self._since: int = 0  # the instant of its first booking: earlier grants are not of it
        self._closes: int = 0  # the instant from which they are of no use
        self._ask_below: int = -1  # permits are wanted when a grant leaves this many or fewer; -1: only a refusal does
        self._nothing_until: int | None = None  # until when the store need not be asked: it had nothing left
        self._ahead: WindowsAhead = WindowsAhead(self.rate.permits, self.rate.period_ns, self.rate.permits)

    @property
    def max_permits(self) -> int:  # type: ignore[override]
        """The permits of a whole window."""
        return self.rate.permits

    # What the store does.

    def book(
        self, window: int, granted: int, now: int, closes: int, left: int, begins: Sequence[int], nothing_until: int | None, answer_ns: int
    ) -> None:
        """Add permits of that ``window``, which is its name. They are of use before the instant ``closes``.

        ``left`` is what the window has left for everybody, and ``begins`` are the instants at which the next ones begin.
        ``nothing_until``: before that instant the store need not be asked, because it has nothing left.
        """
        if window != self._window:
            self._window, self._hand, self._taken, self._since = window, 0, 0, now
        self._hand += granted
        self._closes = closes
        self._ahead = WindowsAhead(self.rate.permits, self.rate.period_ns, left, begins)
        self._nothing_until = nothing_until
        self.answer_ns = answer_ns
        self.asked_at = None

    def give_up(self, permits: int) -> int:
        """Remove permits from the hand: they go back to the store. Returns how many there were."""
        permits = min(permits, self._hand)
        self._hand -= permits
        return permits

    def keep(self, permits: int, window: int) -> None:
        """Put permits back that the store did not take."""
        if window == self._window:
            self._hand += permits

    @property
    def window(self) -> int:
        """The name of the window in hand; 0: none."""
        return self._window or 0

    def nothing_until(self, now: int) -> int | None:
        """The instant before which the store need not be asked, because it has nothing of use; None: ask it."""
        if self.ending(now):
            return self._ahead.begins[0]
        until = self._nothing_until
        return until if until is not None and now < until and not self._hand else None

    def recheck(self) -> None:
        self._nothing_until = None

    def ending(self, now: int) -> bool:
        """Whether the window is about to end, so that its permits are of no use, and the next has yet to begin."""
        return self._window is not None and self._closes <= now < self._ahead.begins[0]

    def ask_below(self, count: int) -> None:
        """Want permits as soon as a grant leaves ``count`` or fewer; -1: only when a request is refused."""
        self._ask_below = count

    def clear(self) -> None:
        self._hand = 0
        self._nothing_until = None

    @property
    def in_hand(self) -> int:
        return self._hand

    def ready(self, permits: int, now: int) -> int:
        return self._hand if now < self._closes else 0

    def due_by(self, instant: int, now: int) -> int:
        return self.ready(1, now)

    def returnable(self, now: int) -> int:
        return self.ready(1, now)

    # A request.

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        check_ask("take()", permits, now, since, self.rate.permits)
        ready = self.ready(permits, now)
        if permits <= ready:
            self._grant(permits)
            if self._hand <= self._ask_below:
                self.want(now)
            return now
        missing = permits - ready
        self.refused = permits
        self.want(now)
        if self.fallback is not None:
            at = self.fallback.at(missing, now)
            if at <= now:
                self.fallback.spend(missing, now)
        elif self.rehearsal:
            at = self._ahead.at(missing, now)
            if at <= now:
                self._ahead.take(missing, now)
        else:
            return self._look_later(now)
        if at <= now:
            self._grant(ready)
            self.spent += missing
        return max(at, now)

    def _grant(self, permits: int) -> None:
        self._hand -= permits
        self._taken += permits
        self.spent += permits
        self.refused = 0

    def _look_later(self, now: int) -> int:
        """When to look again for a request that lacks permits: once the window ends, or the store may have got some back."""
        until = None if self.asking else self.nothing_until(now)
        return self.look_again_at(now) if until is None else until

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now, most=self.rate.permits)
        if ahead:
            return peek_behind(self, permits, now, ahead)
        ready = self.ready(permits, now)
        if permits <= ready:
            return now
        missing = permits - ready
        if self.patient and not self.rehearsal:  # the caller is first in line, and calls take() only once this is due
            self.refused = permits
            self.want(now)
        if self.fallback is not None:
            if self.patient:
                return max(now, self.fallback.at(missing, now))
            try:
                return max(now, self.fallback.at(missing, now))
            except ConnectionError:  # the policy refuses requests
                return NOBODY_KNOWS
        at = self._ahead.at(missing, now)
        return at if self.rehearsal else max(at, now + self.answer_ns)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Put permits of the window that goes on back into the hand, at most those granted here. Those of an earlier one are gone."""
        check_give_back(permits, now, taken)
        if now >= self._closes or (taken is not None and taken < self._since):
            return
        permits = min(permits, self._taken)
        if permits:
            self._taken -= permits
            self._hand += permits
            self.want(now)  # if nobody here needs them, the store takes them back

    def charge(self, permits: int, now: int) -> None:
        """Have the store count the permits, for all processes: in this window as far as they fit, and the rest in the next ones.

        Raises ValueError for a debt of more than 317 years.
        """
        check_permits("charge()", permits)
        check_charge(permits, self.rate)
        self._ahead.charge(permits)
        if self.link is not None:
            self.link.charged(permits)

    def take_ahead(self, permits: int, now: int) -> None:
        """As one request: first the permits in hand."""
        ready = min(self.ready(permits, now), permits)
        self._grant(ready)
        if permits > ready:
            self._ahead.charge(permits - ready)

    def _read_rate(self, rate: Rate | str | Number) -> Rate:
        """As `CalendarWindow._read_rate`."""
        return self.calendar._read_rate(rate)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the number of permits, by which this process asks. The window keeps its period, as in `CalendarWindow.set_rate`."""
        self.calendar.set_rate(rate, now)
        rate, before = self.calendar.rate, self.rate
        ahead = self._ahead
        self.rate = rate
        self._ahead = WindowsAhead(rate.permits, rate.period_ns, ahead.left + rate.permits - before.permits, ahead.begins)
        self._nothing_until = None
        self.want(now)

    def lag(self, now: int) -> int:
        """0: a window has no schedule."""
        return 0

    def bound(self, window: int, largest: int = 1) -> int:
        """Of all processes together: n for each window of the calendar that a window of this length may touch."""
        return self.calendar.bound(window, largest)

    def available(self, now: int) -> int:
        """The number of permits in hand."""
        return self.ready(1, now)

    def _standings(self, now: int) -> list[tuple[int, int]]:
        """The permits in hand, and those that the window had left when the store answered last; and when the next one begins."""
        if self.fallback is not None:
            return [standing_of(self.fallback, self.rate.permits, now)]
        if self.ending(now):
            return [(0, self._ahead.begins[0])]
        left, more_at = self._ahead.standing(now)
        return [(min(left + self.ready(1, now), self.rate.permits), more_at)]

    def _rested(self, now: int) -> bool:
        """Whether nothing is in hand or on its way."""
        return self.asked_at is None and self.fallback is None and not self.ready(1, now)

    def shift(self, ns: int) -> None:
        """Follow a pause: the limiter's time stood still for ``ns``, and the calendar's did not."""
        self._closes -= ns
        self._ahead.shift(ns)
        if self._nothing_until is not None:
            self._nothing_until -= ns
        if self.asked_at is not None:
            self.asked_at -= ns

    def __deepcopy__(self, memo: object) -> QuotaScheduler:
        twin = QuotaScheduler(self.calendar)
        twin._window, twin._hand, twin._taken, twin._since = self._window, self._hand, self._taken, self._since
        twin._closes, twin._ahead = self._closes, deepcopy(self._ahead)
        twin.fallback, twin.patient = deepcopy(self.fallback), self.patient
        twin.rehearsal, twin._receipts = True, False
        return twin

    def __repr__(self) -> str:
        return f"QuotaScheduler({self.calendar.described}, in_hand={self._hand})"
