"""What processes share in a store besides slots: a calendar's quota, and the bookings of a budget."""

from __future__ import annotations

import pytest
from helpers.transcripts import S

from aiorate import CalendarWindow, EngineUnavailable, Rate
from aiorate._schedulers.amounts import Amounts
from aiorate._schedulers.bookings import Bookings
from aiorate._schedulers.interface import NOBODY_KNOWS
from aiorate._schedulers.quota_scheduler import QuotaScheduler

MS = 1_000_000


class Store:
    """A link that counts what it is told."""

    answers, asked, charges = True, 0, 0

    def wanted(self, now: int) -> bool:
        self.asked += 1
        return self.answers

    def charged(self, permits: int) -> None:
        self.charges += permits


class Policy:
    """Grants what the store did not, at that instant; without one, it refuses."""

    def __init__(self, at: int | None = None) -> None:
        self.instant, self.spent = at, 0

    def at(self, permits: int, now: int) -> int:
        if self.instant is None:
            raise EngineUnavailable("the store is away")
        return self.instant

    def spend(self, permits: int, now: int) -> None:
        self.spent += permits


def made(granted: int = 0, left: int = 10, nothing_until: int | None = None) -> tuple[QuotaScheduler, Store]:
    """One of ten permits in 10 s, in a window from 0 to 10 s whose last 0.5 s are not used."""
    scheduler, store = QuotaScheduler(CalendarWindow("10/10s", "UTC")), Store()
    scheduler.link = store
    scheduler.book(10, granted, 0, 19 * S // 2, left, [10 * S, 20 * S], nothing_until, S // 100)
    return scheduler, store


def test_permits_in_hand_are_granted_until_the_window_closes() -> None:
    scheduler, store = made(granted=5)
    assert scheduler.take(2, 0) == 0
    assert (scheduler.in_hand, scheduler.available(9 * S), store.asked) == (3, 3, 0)
    closes, store.answers = 19 * S // 2, False
    assert scheduler.take(1, closes) == scheduler.take(1, 10 * S - 1) == 10 * S
    assert (scheduler.available(closes), scheduler.returnable(closes), scheduler.ending(closes)) == (0, 0, True)
    store.answers = True
    assert (scheduler.take(1, 10 * S), scheduler.spent) == (NOBODY_KNOWS, 2)


def test_only_what_was_granted_in_the_window_comes_back() -> None:
    """By receipt or by a refund. Another window replaces what was in hand, and earlier grants are gone."""
    scheduler, store = made(granted=3)
    scheduler.take(3, S)
    scheduler.give_back(1, 2 * S, taken=S)
    assert (scheduler.in_hand, store.asked) == (1, 1)
    for permits in (9, 1):
        scheduler.give_back(permits, 2 * S)
        assert scheduler.in_hand == 3
    scheduler.book(20, 1, 10 * S, 19 * S, 9, [20 * S], None, S // 100)
    scheduler.give_back(2, 11 * S, taken=S)
    scheduler.keep(4, window=10)
    assert scheduler.in_hand == 1
    scheduler.keep(4, window=20)
    assert (scheduler.in_hand, scheduler.give_up(3), scheduler.in_hand) == (5, 3, 2)


def test_a_charge_a_rate_and_a_pause_change_what_is_left() -> None:
    """The store hears of a charge; grants so far still count. The limiter's time stood still for 3 s, and the store's went on."""
    scheduler, store = made(left=4)
    scheduler.charge(6, 0)
    assert (store.charges, scheduler.peek(8, 0)) == (6, 10 * S)
    scheduler.set_rate(Rate.parse("15/10s"), 0)
    assert (scheduler.max_permits, scheduler.peek(3, 0), scheduler.peek(4, 0)) == (15, S // 100, 10 * S)
    assert (scheduler.lag(0), scheduler.bound(20 * S), scheduler._rested(0)) == (0, 45, False)
    for call, error, hint in [
        (lambda: scheduler.set_rate(Rate.parse("1/7s"), 0), ValueError, "whole seconds"),
        (lambda: scheduler.charge(10**30, 0), ValueError, "317 years"),
        (lambda: scheduler.reset(0), RuntimeError, "other processes share this limit"),
    ]:
        with pytest.raises(error, match=hint):
            call()

    paused, _ = made(granted=2, left=0, nothing_until=5 * S)
    paused.shift(3 * S)
    assert (paused.peek(3, 0), paused.available(0), paused.available(13 * S // 2)) == (7 * S, 2, 0)


def test_a_policy_decides_about_what_is_missing() -> None:
    """Permits in hand are used first; a look never raises, unless the caller is first in line and takes the permits next."""
    scheduler, _ = made(granted=3)
    policy = scheduler.fallback = Policy(at=2 * S)
    assert (scheduler.peek(3, S), scheduler.peek(5, S), scheduler.take(5, S)) == (S, 2 * S, 2 * S)
    assert (scheduler.take(5, 2 * S), policy.spent, scheduler.spent) == (2 * S, 2, 5)
    for refusing, permits in ((scheduler, 5), (booked(), Amounts((1, 30)))):
        refusing.fallback = Policy()
        assert refusing.peek(permits, 2 * S) == NOBODY_KNOWS
        refusing.patient = True
        with pytest.raises(EngineUnavailable):
            refusing.peek(permits, 2 * S)


# The bookings of a budget.


def booked(*starts: int) -> Bookings:
    """Bookings of (1, 30) at those ms, used at most 50 ms late or half of what they take."""
    bookings = Bookings((Rate.of("10/s"), Rate.of("100/s")), (1, 1), 5 * MS)
    bookings.link = Store()
    bookings.book([start * MS for start in starts], [(1, 30)] * len(starts), [1] * len(starts), None)
    return bookings


def test_a_booking_is_used_at_its_instant() -> None:
    """What a smaller request leaves of it is told to the store. A pause moves what is in hand and under way."""
    bookings, paused = booked(0, 100), booked(100)
    assert [bookings.take(Amounts((1, 30)), at) for at in (0, 20 * MS)] == [0, 100 * MS]
    assert bookings.lag(130 * MS) == 30 * MS
    assert bookings.take(Amounts((1, 20)), 100 * MS) == 100 * MS
    assert (bookings.in_hand, bookings.corrections, bookings.lag(130 * MS)) == (0, [0, -10], 0)
    assert paused.take(Amounts((1, 40)), 0) > 0  # larger than what is in hand: the store is asked
    paused.shift(10 * MS)
    assert (paused.peek(Amounts((1, 30)), 0), paused.asked_at) == (90 * MS, -10 * MS)
