"""What processes share in a store besides slots: a calendar's quota, and the bookings of a budget."""

from __future__ import annotations

import pytest
from helpers.transcripts import S

from aiorate import CalendarWindow, EngineUnavailable, Rate
from aiorate.schedulers.booked_dimensions import BookedDimensions, StoreDimension
from aiorate.schedulers.bookings import Bookings
from aiorate.schedulers.dimensions import Amounts
from aiorate.schedulers.interface import NOBODY_KNOWS
from aiorate.schedulers.quota_scheduler import QuotaScheduler
from aiorate.schedulers.windows_ahead import WindowsAhead

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
    """At its edge nothing is, whatever is in hand."""
    scheduler, store = made(granted=5)
    assert scheduler.take(2, 0) == 0
    assert (scheduler.in_hand, scheduler.available(9 * S), store.asked) == (3, 3, 0)
    closes, store.answers = 19 * S // 2, False
    assert scheduler.take(1, closes) == scheduler.take(1, 10 * S - 1) == 10 * S
    assert (scheduler.available(closes), scheduler.returnable(closes), scheduler.ending(closes)) == (0, 0, True)
    store.answers = True
    assert (scheduler.take(1, 10 * S), scheduler.spent) == (NOBODY_KNOWS, 2)


def test_the_store_is_asked_once_until_it_answers() -> None:
    """And not at all before there may be something."""
    scheduler, store = made()
    assert [scheduler.take(1, 0), scheduler.take(3, 1)] == [NOBODY_KNOWS] * 2
    assert (store.asked, scheduler.refused) == (1, 3)
    store.answers = False
    scheduler.book(10, 0, S, 9 * S, 0, [10 * S], 4 * S, S // 100)
    assert (scheduler.take(1, 2 * S), scheduler.nothing_until(2 * S)) == (4 * S, 4 * S)
    scheduler.recheck()
    assert scheduler.nothing_until(2 * S) is None


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


def test_estimates_are_the_windows_that_have_enough() -> None:
    """A debt is paid by the next ones, known or not."""
    for left, permits, due in [
        (10, 10, 0),
        (3, 3, 0),
        (3, 4, 10),
        (0, 10, 10),
        (-1, 9, 10),
        (-1, 10, 20),
        (-25, 5, 30),
        (-25, 6, 40),
        (-10_000, 10, 10_010),
    ]:
        scheduler, _ = made(left=left)
        assert scheduler.peek(permits, 0) == max(due * S, S // 100)
        assert scheduler.rehearse().peek(permits, 0) == WindowsAhead(10, 10 * S, left, [10 * S]).at(permits, 0) == due * S, (left, permits)


def test_a_line_before_a_quota_is_foretold() -> None:
    """First what is in hand, then what is left, then from the next windows; nothing is taken here."""
    scheduler, store = made(granted=2, left=3)
    twin, now, found = scheduler.rehearse(), 0, []
    for size in (1, 1, 3, 4, 6, 10, 1):
        now = max(twin.peek(size, now), now)
        assert twin.take(size, now) <= now
        found.append(now // S)

    assert found == [0, 0, 0, 10, 10, 20, 30]
    assert (scheduler.in_hand, store.asked) == (2, 0)
    twin = scheduler.rehearse()
    twin.take_ahead(25, 0)
    assert twin.peek(1, 0) == 30 * S  # 2 in hand, 3 left, and two windows


def test_a_charge_a_rate_and_a_pause_change_what_is_left() -> None:
    """The store hears of a charge; grants so far still count. The limiter's time stood still for 3 s, and the store's went on."""
    scheduler, store = made(left=4)
    scheduler.charge(6, 0)
    assert (store.charges, scheduler.peek(8, 0)) == (6, 10 * S)
    scheduler.set_rate(Rate.parse("15/10s"), 0)
    assert (scheduler.max_permits, scheduler.peek(3, 0), scheduler.peek(4, 0)) == (15, S // 100, 10 * S)
    assert (scheduler.lag(0), scheduler.bound(20 * S), scheduler.rested(0)) == (0, 45, False)
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


def test_a_booking_that_comes_back_is_in_hand_again() -> None:
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


def test_charges_and_corrections_of_a_booking_are_told() -> None:
    bookings = booked()
    told: list[list[int]] = []
    bookings.corrected = lambda: told.append(list(bookings.corrections))
    bookings.charge(Amounts((0, 7)), 0)
    bookings.correct(1, 5, 0)
    bookings.correct(1, 0, 0)
    assert told == [[0, 7], [0, 12]]


def test_a_dimension_in_a_store_says_what_the_store_allows() -> None:
    """The burst at once, then the rate, for the window and the slack of its slots. The store counts, so it counts nothing itself."""
    dimension, any_amount = (StoreDimension(Rate.parse("100/s"), burst, S // 100) for burst in (20, None))
    dimension.charge(7, 5)
    dimension.give_back(3, 5)

    assert [dimension.bound(seconds * S) for seconds in (1, 2, 10)] == [121, 221, 1021]
    assert dimension.max_permits == dimension.available(0) == 20
    assert dimension.take(20, 5) == dimension.peek(20, 5) == 5
    assert (dimension.lag(5), dimension.rested(5)) == (0, True)
    assert (any_amount.max_permits, any_amount.bound(S, largest=50), any_amount.available(0)) == (None, 50 + 125, 0)
    for scheduler in (dimension, BookedDimensions([Rate.parse("100/s")], [20], S // 100)):
        with pytest.raises(RuntimeError, match=r"reset\(\)"):
            scheduler.reset(0)
    for scheduler in (dimension, booked()):
        with pytest.raises(RuntimeError, match="a rate for each dimension"):
            scheduler.set_rate(Rate.parse("50/s"), 0)
