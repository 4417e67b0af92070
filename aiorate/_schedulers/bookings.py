"""Bookings: the permits of a budget that a store books for this process, in all dimensions at once.

Bookings come by `Bookings.book`, at any time; a `Link` is told when more are wanted. Knows nothing of stores, loops or waiters.
A booking that nobody used in time comes back to the store, as does what a reservation did not use.
"""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from typing import TYPE_CHECKING

from aiorate._schedulers.interface import NOBODY_KNOWS
from aiorate._schedulers.levels import Levels, amounts_of
from aiorate._schedulers.supplied import Supplied, peek_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import NoReturn

    from aiorate._rate import Rate
    from aiorate._schedulers.amounts import Permits
    from aiorate._schedulers.supplied import Fallback

__all__ = ["Booking", "Bookings"]


class Booking:
    """Amounts that may be used from ``start`` (ns) on, until ``until``. ``place`` is that of the dimension which was due last."""

    __slots__ = ("of", "place", "start", "until")

    def __init__(self, start: int, until: int, of: tuple[int, ...], place: int) -> None:
        self.place: int = place
        self.start: int = start
        self.until: int = until
        self.of: tuple[int, ...] = of

    def covers(self, amounts: tuple[int, ...]) -> bool:
        """Whether it has these amounts."""
        return all(own >= amount for own, amount in zip(self.of, amounts, strict=True))


class Bookings(Supplied):
    """Bookings in hand, in order, and an estimate of when more are due. Its permits are `Amounts`.

    A reservation uses the first booking in hand that has its amounts. The rest of that booking, and those before it, come back.
    `corrections` is what the store has yet to hear: what was used besides the bookings, less what came back.

    A copy is a rehearsal: it assumes that all bookings after those in hand are its own, and calls nobody.
    """

    __slots__ = (
        "_counts",
        "_free",
        "_granted",
        "_hand",
        "_late",
        "_look_at",
        "ask_before",
        "bursts",
        "corrected",
        "corrections",
        "lacks",
        "levels",
        "oldest",
        "rate",
        "rates",
        "waits_for",
    )
    spent: int

    def __init__(self, rates: Sequence[Rate], bursts: Sequence[int], late: int, counts: bool = True) -> None:
        """``late`` is how late (ns) a booking may be used at least; ``counts``: whether grants in an outage are counted."""
        super().__init__()
        self.rates: tuple[Rate, ...] = tuple(rates)
        self.bursts: tuple[int, ...] = tuple(bursts)
        self.rate: Rate = self.rates[0]
        self._late: int = late
        self._counts: bool = counts
        self._hand: deque[Booking] = deque()
        self._granted: deque[tuple[int, Booking, tuple[int, ...]]] = deque()  # the latest grants, which may come back
        self._look_at: int | None = None  # when to ask again for a reservation that the store has not booked
        self._free: tuple[int, int] | None = None  # the first and last instant at which something was granted that nobody counts
        self.levels: Levels = Levels(self.rates, self.bursts)
        """As the store said last."""
        self.ask_before: int = 0
        """How many ns before the last booking in hand is due more are wanted."""
        self.corrections: list[int] = [0] * len(self.rates)
        """Of each dimension."""
        self.corrected: Callable[[], None] | None = None
        """Called when there are corrections."""
        self.oldest: int | None = None
        """The first instant of a grant of which something comes back by these corrections; None: nothing does."""
        self.lacks: bool = False
        """Whether bookings are wanted for a request that has none."""
        self.waits_for: int = 0
        """The place of the dimension that the last request without a booking waits for."""

    # What the store does.

    def book(self, starts: Sequence[int], of: Sequence[tuple[int, ...]], places: Sequence[int], look_at: int | None) -> None:
        """Add bookings: their instants, amounts, and the dimension that each waits for, counted from 1; 0: none.

        ``look_at`` is when to ask again, if the first request was not booked. Its dimension comes last then.
        """
        for start, amounts, place in zip(starts, of, places, strict=False):
            self._hand.append(Booking(start, start + self._lateness(amounts), amounts, place - 1))
        if look_at is not None and places[-1]:
            self.waits_for = places[-1] - 1
        self.asked_at, self._look_at, self.lacks = None, look_at, False

    def unanswered(self) -> None:
        super().unanswered()
        self._look_at, self.lacks = None, False

    def uncovered(self, requests: Iterable[Permits], now: int) -> list[tuple[int, ...]]:
        """The amounts of those requests, in order of the line, that have no booking in hand."""
        hand = deque([booking for booking in self._hand if now <= booking.until])
        lacking: list[tuple[int, ...]] = []
        for permits in requests:
            amounts = amounts_of(permits, len(self.rates))
            if any(amounts):
                while hand and not hand[0].covers(amounts):
                    hand.popleft()
                if hand:
                    hand.popleft()
                else:
                    lacking.append(amounts)
        return lacking

    def lapse(self, now: int) -> None:
        """Have bookings come back that nobody used in time."""
        while self._hand and now > self._hand[0].until and not self.patient:
            self._return(self._hand[0].of, self._hand.popleft().start)

    def last_start(self) -> int | None:
        """When the last booking in hand is due; None: there is none."""
        return self._hand[-1].start if self._hand else None

    def give_up(self) -> None:
        """Have all bookings in hand come back."""
        while self._hand:
            self._return(self._hand[0].of, self._hand.popleft().start)

    def clear(self) -> None:
        """Forget bookings and corrections: they belong to another process."""
        self._hand.clear()
        self._granted.clear()
        self.corrections, self.oldest = [0] * len(self.rates), None

    def due_by(self, instant: int, now: int) -> int:
        """The number of bookings in hand that are of use now and due by that instant."""
        return sum([booking.start <= instant and now <= booking.until for booking in self._hand])

    def ready(self, permits: Permits, now: int) -> int:
        """The number of bookings in hand that are of use."""
        return sum([now <= booking.until for booking in self._hand])

    def returnable(self, now: int) -> int:
        """The number of bookings that the store would take back, and of dimensions with corrections."""
        return len(self._hand) + sum([bool(correction) for correction in self.corrections])

    @property
    def in_hand(self) -> int:
        """The number of bookings, including those that have lapsed."""
        return len(self._hand)

    # A reservation.

    def take(self, permits: Permits, now: int, since: int | None = None) -> int:
        amounts = amounts_of(permits, len(self.rates))
        if not any(amounts):
            return now
        place, booking = self._booking_for(amounts, now)
        if booking is None:
            return self._without_booking(permits, now)
        if booking.start > now:
            self.waits_for = self.waits_for if booking.place < 0 else booking.place
            return booking.start
        for _ in range(place):
            self._return(self._hand[0].of, self._hand.popleft().start)
        self._hand.popleft()
        self._note(now, booking, amounts)
        self.spent += 1
        self._return(tuple([own - amount for own, amount in zip(booking.of, amounts, strict=True)]), booking.start)
        if not self.rehearsal and (not self._hand or self._hand[-1].start - now <= self.ask_before):
            self.want(now)
        return booking.start

    def peek(self, permits: Permits, now: int, ahead: Permits = 0) -> int:
        if ahead:
            return peek_behind(self, permits, now, ahead)
        amounts = amounts_of(permits, len(self.rates))
        if not any(amounts):
            return now
        _, booking = self._booking_for(amounts, now)
        if booking is not None:
            return booking.start
        if self.rehearsal:
            return (self.levels if self.fallback is None else self.fallback).at(permits, now)
        if self.patient:  # the caller is first in line, and calls take() only once this is due
            self._ask(permits, now)
        if self.fallback is not None:
            return self.fallback.at(permits, now) if self.patient else _later(self.fallback, permits, now)
        return max(self.levels.at(permits, now), now + self.answer_ns, self._look_at or now)

    def give_back(self, permits: Permits, now: int, taken: int | None = None) -> None:
        """Put the booking of that grant back in hand. If it has lapsed, its amounts come back."""
        amounts = amounts_of(permits, len(self.rates))
        for place, (instant, booking, used) in enumerate(self._granted):
            if instant == taken and used == amounts:
                del self._granted[place]
                if now <= booking.until:
                    later = sum([other.start < booking.start for other in self._hand])
                    self._hand.insert(later, Booking(booking.start, booking.until, amounts, booking.place))
                    return
                break
        if taken is None or not self._is_free(taken):
            self._return(amounts, now if taken is None else taken)

    def correct(self, place: int, more: int, taken: int) -> None:
        """Have the store take the ``more`` permits of that dimension that a request used than it took; below 0, they come back."""
        if more and not self._is_free(taken):
            self._correct([more if own == place else 0 for own in range(len(self.rates))], taken)

    def charge(self, permits: Permits, now: int) -> None:
        """Have the store take the amounts from all processes; here they delay what is booked from now on."""
        self._correct(amounts_of(permits, len(self.rates)), now)
        self.levels.spend(permits, now)

    def take_ahead(self, permits: Permits, now: int) -> None:
        """As one request, which uses no booking."""
        (self.levels if self.fallback is None else self.fallback).spend(permits, now)

    def set_rate(self, rate: Rate, now: int) -> NoReturn:
        """Refused: other processes go by the same rates."""
        raise RuntimeError("set_rate(): a budget has a rate for each dimension.")

    def lag(self, now: int) -> int:
        """How late (ns) the first booking in hand is."""
        return max(now - self._hand[0].start, 0) if self._hand else 0

    def bound(self, window: int, largest: int = 1) -> None:
        """None: the bounds are those of the dimensions."""

    def available(self, now: int) -> int:
        """The number of bookings that are due."""
        return self.due_by(now, now)

    def _rested(self, now: int) -> bool:
        """Whether nothing is in hand, on its way, or to be told."""
        return self.asked_at is None and self.fallback is None and not self.returnable(now)

    def shift(self, ns: int) -> None:
        """Follow a pause: the time of this budget stood still for ``ns``, and the store's did not."""
        self.levels.shift(ns)
        for booking in self._hand:
            booking.start -= ns
            booking.until -= ns
        if self.asked_at is not None:
            self.asked_at -= ns
        if self._look_at is not None:
            self._look_at -= ns

    def __deepcopy__(self, memo: object) -> Bookings:
        twin = Bookings(self.rates, self.bursts, self._late, self._counts)
        twin._hand.extend([Booking(booking.start, booking.until, booking.of, booking.place) for booking in self._hand])
        twin.levels, twin.patient = deepcopy(self.levels), self.patient
        if self.asked_at is not None:
            twin.levels.not_before = self.asked_at + self.answer_ns
        twin.fallback = deepcopy(self.fallback)
        twin.rehearsal, twin._receipts = True, False
        return twin

    def _ask(self, permits: Permits, now: int) -> None:
        """Have the store asked, unless it was, and said when to ask again."""
        if self._look_at is None or now >= self._look_at:
            self._look_at = None
            self.lacks = True
            self.want(now)

    def _without_booking(self, permits: Permits, now: int) -> int:
        """When such a request is due, for which no booking is in hand. Taken, if that is now."""
        if self.rehearsal:
            deciding = self.levels if self.fallback is None else self.fallback
            at = deciding.at(permits, now)
            if at <= now:
                deciding.spend(permits, now)
            return at
        self._ask(permits, now)
        if self.fallback is None:
            return self.look_again_at(now) if self._look_at is None or self.asked_at is not None else self._look_at
        at = self.fallback.at(permits, now)
        if at <= now:
            self.spent += 1
            if self._counts:
                self.fallback.spend(permits, now)
            else:
                self._free = (now if self._free is None else self._free[0], now)
        return at

    def _booking_for(self, amounts: tuple[int, ...], now: int) -> tuple[int, Booking | None]:
        """The first booking in hand that covers the amounts, and its place."""
        kept: tuple[int, Booking | None] = 0, None
        for place, booking in enumerate(self._hand):
            if booking.covers(amounts):
                if now <= booking.until:
                    return place, booking
                if self.patient:
                    kept = place, booking
        return kept

    def _lateness(self, amounts: tuple[int, ...]) -> int:
        """How late a booking may be used: a little, or half of the time that it takes of the dimension that it takes least of.

        That adds half of it to the bound of each dimension: two bookings in a row are not both late and followed by one in time.
        """
        pairs = zip(amounts, self.rates, strict=True)
        return max(self._late, min([amount * rate.period_ns // (2 * rate.permits) for amount, rate in pairs if amount], default=0))

    def _note(self, now: int, booking: Booking, amounts: tuple[int, ...]) -> None:
        """Record a grant that may come back until its booking lapses."""
        while self._granted and self._granted[0][1].until < now:
            self._granted.popleft()
        if not self.rehearsal:
            self._granted.append((now, booking, amounts))

    def _is_free(self, taken: int) -> bool:
        """Whether a grant of that instant was counted by nobody."""
        return self._free is not None and self._free[0] <= taken <= self._free[1]

    def _return(self, amounts: Sequence[int], taken: int) -> None:
        if any(amounts):
            self._correct([-amount for amount in amounts], taken)

    def _correct(self, more: Sequence[int], taken: int) -> None:
        if not self.rehearsal:
            if min(more) < 0 and (self.oldest is None or taken < self.oldest):
                self.oldest = taken
            self.corrections = [own + its for own, its in zip(self.corrections, more, strict=True)]
            if self.corrected is not None:
                self.corrected()

    def __repr__(self) -> str:
        return f"Bookings({', '.join(map(str, self.rates))}, in_hand={self.in_hand})"


def _later(fallback: Fallback, permits: Permits, now: int) -> int:
    """When they are due; `NOBODY_KNOWS` if the policy refuses requests."""
    try:
        return fallback.at(permits, now)
    except ConnectionError:
        return NOBODY_KNOWS
