"""The scheduler of a budget in a store by itself: bookings come, are used, lapse and come back, and a transcript says what is owed."""

from __future__ import annotations

import pytest

from aiorate import Rate
from aiorate.errors import EngineUnavailable
from aiorate.schedulers.bookings import Bookings
from aiorate.schedulers.dimensions import Amounts
from aiorate.schedulers.interface import NOBODY_KNOWS

MS = 1_000_000
RATES = Rate.of("10/s"), Rate.of("100/s")


class Told:
    """The store's side: whether it is asked."""

    asked = 0

    def wanted(self, now: int) -> bool:
        self.asked += 1
        return True

    def charged(self, permits: int) -> None: ...


class Refusing:
    """A policy that refuses all requests."""

    def at(self, permits: int, now: int) -> int:
        raise EngineUnavailable("the store is away")

    def spend(self, permits: int, now: int) -> None: ...


def booked(*starts: int, of: tuple[int, int] = (1, 30)) -> Bookings:
    """Bookings at those ms, used at most 50 ms late or half of what they take."""
    bookings = Bookings(RATES, (1, 1), 5 * MS)
    bookings.link = Told()
    bookings.book([start * MS for start in starts], [of] * len(starts), [1] * len(starts), None)
    return bookings


def test_a_booking_is_used_at_its_instant() -> None:
    bookings = booked(0, 100)

    assert bookings.take(Amounts((1, 30)), 0) == 0
    assert bookings.take(Amounts((1, 30)), 20 * MS) == 100 * MS
    assert bookings.lag(130 * MS) == 30 * MS
    assert bookings.take(Amounts((1, 20)), 100 * MS) == 100 * MS
    assert (bookings.in_hand, bookings.corrections) == (0, [0, -10])
    assert bookings.lag(130 * MS) == 0


def test_a_grant_that_comes_back_is_in_hand_again() -> None:
    """In its place, as long as it has not lapsed; then its amounts come back."""
    bookings = booked(0, 100, 200)
    for at in (0, 100 * MS):
        assert bookings.take(Amounts((1, 30)), at) == at

    bookings.give_back(Amounts((1, 30)), 101 * MS, 100 * MS)
    assert (bookings.in_hand, bookings.peek(Amounts((1, 30)), 101 * MS)) == (2, 100 * MS)

    bookings.give_back(Amounts((1, 30)), 900 * MS, 0)
    assert (bookings.in_hand, bookings.corrections, bookings.oldest) == (2, [-1, -30], 0)

    bookings.give_back(Amounts((1, 5)), 900 * MS)  # of no grant that is known
    assert bookings.corrections == [-2, -35]


def test_a_charge_and_a_correction_are_told() -> None:
    bookings = booked()
    told: list[list[int]] = []
    bookings.corrected = lambda: told.append(list(bookings.corrections))

    bookings.charge(Amounts((0, 7)), 0)
    bookings.correct(1, 5, 0)
    bookings.correct(1, 0, 0)

    assert told == [[0, 7], [0, 12]]
    with pytest.raises(RuntimeError, match="a rate for each dimension"):
        bookings.set_rate(Rate.of("1/s"), 0)


def test_a_pause_moves_what_is_in_hand_and_under_way() -> None:
    bookings = booked(100)
    assert bookings.take(Amounts((1, 40)), 0) > 0  # larger than what is in hand: the store is asked
    assert bookings.asked_at == 0

    bookings.shift(10 * MS)

    assert bookings.peek(Amounts((1, 30)), 0) == 90 * MS
    assert bookings.asked_at == -10 * MS
    assert str(bookings) == "Bookings(10/s, 100/s, in_hand=1)"


def test_a_policy_that_refuses_has_no_instant() -> None:
    """A look does not raise; the request that is granted next does."""
    bookings = booked()
    bookings.fallback = Refusing()

    assert bookings.peek(Amounts((1, 30)), 0) == NOBODY_KNOWS
    with pytest.raises(EngineUnavailable):
        bookings.take(Amounts((1, 30)), 0)
    bookings.patient = True
    with pytest.raises(EngineUnavailable):
        bookings.peek(Amounts((1, 30)), 0)
