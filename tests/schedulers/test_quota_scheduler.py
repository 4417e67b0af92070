"""QuotaScheduler and WindowsAhead: permits of a window in hand, and an estimate of the windows after it. Instants are in seconds."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import pytest
from helpers.transcripts import S

from aiorate import CalendarWindow, EngineUnavailable, Rate
from aiorate.schedulers.interface import NOBODY_KNOWS
from aiorate.schedulers.quota_scheduler import QuotaScheduler
from aiorate.schedulers.windows_ahead import WindowsAhead

if TYPE_CHECKING:
    from collections.abc import Sequence


class Store:
    """A link that counts what it is told."""

    def __init__(self, answers: bool = True) -> None:
        self.answers, self.asked, self.charges = answers, 0, 0

    def wanted(self, now: int) -> bool:
        self.asked += 1
        return self.answers

    def charged(self, permits: int) -> None:
        self.charges += permits


def made(granted: int = 0, left: int = 10, nothing_until: int | None = None) -> tuple[QuotaScheduler, Store]:
    """One of ten permits in 10 s, in a window from 0 to 10 s whose last 0.5 s are not used."""
    scheduler, store = QuotaScheduler(CalendarWindow("10/10s", "UTC")), Store()
    scheduler.link = store
    scheduler.book(10, granted, 0, 19 * S // 2, left, [10 * S, 20 * S], nothing_until, S // 100)
    return scheduler, store


def test_permits_in_hand_are_granted_until_the_window_closes() -> None:
    """At its edge nothing is, whatever is in hand."""
    scheduler, store = made(granted=5)
    assert 0 == scheduler.take(2, 0)
    assert (3, 3, 0) == (scheduler.in_hand, scheduler.available(9 * S), store.asked)

    closes, store.answers = 19 * S // 2, False
    assert 10 * S == scheduler.take(1, closes) == scheduler.take(1, 10 * S - 1)
    assert (0, 0, True) == (scheduler.available(closes), scheduler.returnable(closes), scheduler.ending(closes))
    store.answers = True
    assert (NOBODY_KNOWS, 2) == (scheduler.take(1, 10 * S), scheduler.spent)


def test_the_store_is_asked_once_until_it_answers() -> None:
    """And not at all before there may be something."""
    scheduler, store = made()
    assert [NOBODY_KNOWS] * 2 == [scheduler.take(1, 0), scheduler.take(3, 1)]
    assert (1, 3) == (store.asked, scheduler.refused)
    store.answers = False
    scheduler.book(10, 0, S, 9 * S, 0, [10 * S], 4 * S, S // 100)
    assert (4 * S, 4 * S) == (scheduler.take(1, 2 * S), scheduler.nothing_until(2 * S))
    scheduler.recheck()
    assert scheduler.nothing_until(2 * S) is None


def test_another_window_replaces_what_was_in_hand() -> None:
    """Permits of an earlier one are gone, and so are its grants, which cannot come back."""
    scheduler, _ = made(granted=5)
    scheduler.take(2, S)
    scheduler.book(20, 1, 10 * S, 19 * S, 9, [20 * S], None, S // 100)
    scheduler.give_back(2, 11 * S, taken=S)

    assert 1 == scheduler.in_hand
    scheduler.keep(4, window=10)
    assert 1 == scheduler.in_hand
    scheduler.keep(4, window=20)
    assert (5, 3, 2) == (scheduler.in_hand, scheduler.give_up(3), scheduler.in_hand)


def test_only_what_was_granted_in_the_window_comes_back() -> None:
    """By receipt or by a refund."""
    scheduler, store = made(granted=3)
    scheduler.take(3, S)
    scheduler.give_back(1, 2 * S, taken=S)
    assert (1, 1) == (scheduler.in_hand, store.asked)
    scheduler.give_back(9, 2 * S)
    assert 3 == scheduler.in_hand
    scheduler.give_back(1, 2 * S)
    assert 3 == scheduler.in_hand


@pytest.mark.parametrize(
    ("left", "permits", "due"),
    [
        (10, 10, 0),
        (3, 3, 0),
        (3, 4, 10),
        (0, 10, 10),
        (-1, 9, 10),
        (-1, 10, 20),
        (-10, 1, 20),
        (-25, 5, 30),
        (-25, 6, 40),
        (-10_000, 10, 10_010),
    ],
)
def test_estimates_are_the_windows_that_have_enough(left: int, permits: int, due: int) -> None:
    """A debt is paid by the next ones, known or not."""
    scheduler, _ = made(left=left)

    assert max(due * S, S // 100) == scheduler.peek(permits, 0)
    assert due * S == scheduler.rehearse().peek(permits, 0)
    assert due * S == WindowsAhead(10, 10 * S, left, [10 * S]).at(permits, 0)


def dues(scheduler: QuotaScheduler, sizes: Sequence[int]) -> list[int]:
    """When a rehearsal grants requests of these sizes one after the other, in seconds."""
    twin, now, found = scheduler.rehearse(), 0, []
    for size in sizes:
        now = max(twin.peek(size, now), now)
        assert twin.take(size, now) <= now
        found.append(now // S)
    return found


def test_a_rehearsal_grants_a_line_as_the_store_would() -> None:
    """First what is in hand, then what is left, then from the next windows; nothing is taken here."""
    scheduler, store = made(granted=2, left=3)

    assert [0, 0, 0, 10, 10, 20, 30] == dues(scheduler, [1, 1, 3, 4, 6, 10, 1])
    assert (2, 0) == (scheduler.in_hand, store.asked)
    twin = scheduler.rehearse()
    twin.take_ahead(25, 0)
    assert 30 * S == twin.peek(1, 0)  # 2 in hand, 3 left, and two windows


def test_a_charge_and_a_rate_change_what_is_left() -> None:
    """The store hears of a charge; grants so far still count."""
    scheduler, store = made(left=4)
    scheduler.charge(6, 0)
    assert (6, 10 * S) == (store.charges, scheduler.peek(8, 0))
    scheduler.set_rate(Rate.parse("15/10s"), 0)
    assert (15, S // 100, 10 * S) == (scheduler.max_permits, scheduler.peek(3, 0), scheduler.peek(4, 0))
    with pytest.raises(ValueError, match="whole seconds"):
        scheduler.set_rate(Rate.parse("1/7s"), 0)
    with pytest.raises(ValueError, match="317 years"):
        scheduler.charge(10**30, 0)
    with pytest.raises(RuntimeError, match="other processes share this limit"):
        scheduler.reset(0)


def test_a_pause_moves_the_calendar_and_keeps_the_permits() -> None:
    """The limiter's time stood still for 3 s, and the store's went on."""
    scheduler, _ = made(granted=2, left=0, nothing_until=5 * S)
    scheduler.shift(3 * S)

    assert (7 * S, 2) == (scheduler.peek(3, 0), scheduler.available(0))
    assert 0 == scheduler.available(13 * S // 2)


def test_it_describes_itself() -> None:
    """And a copy has its own calendar."""
    scheduler, _ = made(granted=2)
    twin = deepcopy(scheduler)
    twin.set_rate(Rate.parse("20/10s"), 0)

    assert "QuotaScheduler(10/10s in UTC, in_hand=2)" == repr(scheduler)
    assert (0, 30, True) == (scheduler.lag(0), scheduler.bound(20 * S), not scheduler.rested(0))


class Policy:
    """Grants what the store did not at that instant; without one, it refuses."""

    def __init__(self, at: int | None) -> None:
        self.instant, self.spent = at, 0

    def at(self, permits: int, now: int) -> int:
        if self.instant is None:
            raise EngineUnavailable("the store is away")
        return self.instant

    def spend(self, permits: int, now: int) -> None:
        self.spent += permits


def test_a_policy_decides_about_what_is_missing() -> None:
    """Permits in hand are used first; a look never raises, unless the caller is first in line and takes the permits next."""
    scheduler, _ = made(granted=3)
    policy = scheduler.fallback = Policy(at=2 * S)

    assert (scheduler.peek(3, S), scheduler.peek(5, S), scheduler.take(5, S)) == (S, 2 * S, 2 * S)
    assert (scheduler.take(5, 2 * S), policy.spent, scheduler.spent) == (2 * S, 2, 5)

    scheduler.fallback = Policy(at=None)
    assert scheduler.peek(5, 2 * S) == NOBODY_KNOWS
    scheduler.patient = True
    with pytest.raises(EngineUnavailable):
        scheduler.peek(5, 2 * S)
    scheduler.fallback = Policy(at=3 * S)
    assert scheduler.peek(5, 2 * S) == 3 * S
