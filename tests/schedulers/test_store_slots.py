"""SlotScheduler: slots that a store assigned, granted when they are due, gathered, given back, and lapsed. All instants are exact."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
from helpers.laws import check

from aiorate import Rate
from aiorate._schedulers.interface import NOBODY_KNOWS
from aiorate._schedulers.next_free import NextFree
from aiorate._schedulers.slot_scheduler import SlotScheduler

MS = 1_000_000
SECOND = 1_000 * MS
SLACK = 5 * MS
NOW = 100 * SECOND
GIVING_BACK = ("giving_back_leaves_no_trace", "giving_back_later_leaves_no_trace", "giving_back_makes_nobody_sooner")


class Teller:
    """A link that passes on what it is told."""

    def __init__(self, wanted: Callable[[int], bool] = lambda now: False, charged: Callable[[int], None] = lambda permits: None) -> None:
        self.wanted, self.charged = wanted, charged


def booked(*rates: str, burst: int = 1, slots: int = 0, start: int = NOW) -> SlotScheduler:
    """With ``slots`` in hand, the first at ``start``."""
    each = [Rate.parse(rate) for rate in rates or ("1000/s",)]
    scheduler = SlotScheduler(each, [burst] * len(each), SLACK)
    scheduler._receipts = False
    if slots:
        scheduler.book([start] * len(each), slots, NOW, [start + slots * max(rate.interval_ns for rate in each)] * len(each), MS)
    return scheduler


def granted(scheduler: SlotScheduler, until: int, permits: int = 1, step: int = MS // 4) -> list[float]:
    """The ms after `NOW` at which a caller that asks all the time is granted."""
    return [(now - NOW) / MS for now in range(NOW, NOW + until, step) if scheduler.take(permits, now) <= now]


def test_slots_are_granted_when_they_are_due() -> None:
    """Each once, at its own instant. Those of a burst are due from their arrival, and lapse from then."""
    assert granted(booked(slots=3), 10 * MS) == [0, 1, 2]
    burst = booked(burst=3, slots=3, start=NOW - 2 * MS)
    assert (burst.available(NOW), burst.ready(1, NOW + SLACK + MS)) == (3, 0)
    assert granted(burst, 10 * MS) == [0, 0.25, 0.5]


def test_a_slot_lapses_after_the_slack() -> None:
    scheduler = booked(slots=10)
    at = NOW + 7 * MS
    assert [(scheduler.take(1, at) - NOW) // MS for _ in range(6)] == [2, 3, 4, 5, 6, 7]
    assert scheduler.take(1, at) > at
    assert scheduler.lapsed == 2 * MS


def test_slots_are_gathered_for_one_large_request() -> None:
    """Ten permits take ten slots, and the first is twice as old as the slack by then. Slots that lapsed before are not hoarded."""
    assert granted(booked(slots=20), 30 * MS, permits=10, step=MS) == [9, 19]
    scheduler = booked(slots=20)
    assert granted(scheduler, 1, permits=4) == []
    at = NOW + 40 * MS
    assert scheduler.ready(4, at) == 3
    scheduler.book([at], 1, at, [at + MS], MS)
    assert [scheduler.take(4, at), min(at + 1, scheduler.take(4, at))] == [at, at + 1]


def test_slots_come_back_by_receipt_to_where_they_were() -> None:
    """Also part of a request, its latest slots. Those that come back late have lapsed, and a refund brings none: nobody knows which."""
    scheduler, part, late = booked(slots=4), booked(slots=5), booked(slots=2)
    for permits, at in ((1, NOW), (2, NOW + 2 * MS), (1, NOW + 3 * MS)):
        scheduler.take(permits, at, NOW)
    scheduler.give_back(1, NOW + 3 * MS, NOW)
    scheduler.give_back(1, NOW + 3 * MS, NOW + 3 * MS)
    assert [(scheduler.take(1, NOW + 4 * MS) - NOW) // MS for _ in range(2)] == [0, 3]

    part.take(4, NOW + 3 * MS, NOW)
    part.give_back(3, NOW + 3 * MS, NOW + 3 * MS)
    assert part.ready(1, NOW + 3 * MS) == 4
    assert [(part.take(1, NOW + 4 * MS) - NOW) // MS for _ in range(4)] == [1, 2, 3, 4]

    late.take(2, NOW + MS)
    late.give_back(1, NOW + MS)
    assert late.ready(1, NOW + MS) == 0
    late.give_back(1, NOW + SECOND, NOW + MS)
    assert late.take(1, NOW + SECOND) > NOW + SECOND


def test_several_rates_make_slots_that_all_allow() -> None:
    """The faster rate rules as long as the slower has a burst left, and exactly from where it has none."""
    scheduler = SlotScheduler([Rate.parse("10/s"), Rate.parse("1/s")], [1, 5], SLACK)
    scheduler.book([NOW, NOW - 4 * SECOND], 8, NOW, [NOW + SECOND, NOW + 4 * SECOND], MS)
    dues = [(scheduler.peek(count, NOW) - NOW) // MS for count in range(1, 9)]
    assert dues == [0, 100, 200, 300, 400, 1000, 2000, 3000]


def test_the_store_is_asked_once_until_an_answer_comes() -> None:
    """And nobody is woken by a timer for what the answer tells. Without an event loop nobody asks, and a request looks again."""
    told: list[int] = []
    scheduler, alone = booked(), booked()
    scheduler.link, alone.link = Teller(lambda now: told.append(now) is None), Teller()
    assert [scheduler.take(1, NOW), scheduler.take(1, NOW + MS)] == [NOBODY_KNOWS] * 2
    scheduler.book([NOW], 1, NOW, [NOW + MS], MS)
    assert [scheduler.take(1, NOW), scheduler.take(1, NOW + 2 * MS)] == [NOW, NOBODY_KNOWS]
    assert told == [NOW, NOW + 2 * MS]
    assert NOW < alone.take(1, NOW) < NOW + SECOND


def test_an_estimate_begins_where_the_store_stands() -> None:
    """What others have booked is known from the last answer, and an answer takes its time. A charge counts at once, and is told."""
    told: list[int] = []
    scheduler = booked()
    assert scheduler.peek(1, NOW) == NOW + MS
    scheduler.book([NOW], 0, NOW, [NOW + 50 * MS], 2 * MS)
    assert [scheduler.peek(1, NOW), scheduler.peek(3, NOW), scheduler.peek(1, NOW + 90 * MS)] == [NOW + ms * MS for ms in (50, 52, 92)]
    scheduler.book([NOW], 0, NOW, [NOW], MS)
    scheduler.link = Teller(charged=told.append)
    scheduler.charge(100, NOW)
    assert (scheduler.peek(1, NOW), told) == (NOW + 100 * MS, [100])


def test_a_pause_does_not_move_the_slots() -> None:
    """The limiter's time stands still, the store's does not; an answer under way is as far away as before."""
    scheduler, asked = booked(slots=10), booked()
    scheduler.shift(4 * MS)
    assert scheduler.take(1, NOW) == NOW - 4 * MS
    asked.book([NOW], 0, NOW, [NOW], 10 * MS)
    asked.link = Teller(lambda now: True)
    asked.take(1, NOW)
    asked.shift(4 * MS)
    assert deepcopy(asked).peek(1, NOW) == NOW + 6 * MS


def test_a_copy_has_the_slots_of_every_answer_and_keeps_the_laws() -> None:
    """It assumes that all further slots are its own: then it is a scheduler as any other, but nothing comes back to it."""
    scheduler = booked(slots=2)
    scheduler.book([NOW + 10 * MS], 2, NOW, [NOW + 12 * MS], MS)
    assert granted(deepcopy(scheduler), 13 * MS) == [0, 1, 10, 11, 12]
    assert granted(scheduler, 13 * MS) == [0, 1, 10, 11]
    for rates in (["10/s"], ["10/s", "30/10s"], ["7/s", "3/s", "1/250ms"]):
        check(lambda rates=rates: deepcopy(booked(*rates, burst=3)), 2, GIVING_BACK)  # type: ignore[misc]


def test_its_part_of_the_rate_is_what_it_says() -> None:
    """While the store is away: from nothing, up to the burst, in whole ticks."""
    for burst in (1, 4):
        local, dues, later = NextFree([Rate.parse("3/s")], [burst], [NOW]), [], NOW + 60 * SECOND
        for _ in range(4):
            dues.append(at := local.at(1, NOW))
            local.spend(1, at)
        assert [due - NOW for due in dues] == [0, 333_333_334, 666_666_667, 1_000_000_000]
        for _ in range(burst):
            assert local.at(1, later) == later
            local.spend(1, later)
        assert local.at(1, later) > later


def test_a_slot_scheduler_answers_for_all_its_slots() -> None:
    """The bound is b + R (W + slack), and the largest request more; each rate stands by itself; it lags by its first slot."""
    scheduler, late = booked("1000/s", burst=5), booked(slots=3, start=NOW + MS)
    assert (scheduler.bound(SECOND), scheduler.bound(SECOND, 10)) == (5 + 1_005, 5 + 1_005 + 10)
    assert [late.lag(NOW + ms * MS) for ms in (0, 1, 3)] == [0, 0, 2 * MS]
    two = SlotScheduler([Rate(10), Rate(100, 60)], [5, 8], 10**9)
    assert (two._quotas(), two._standings(0)) == ([(5, Rate(10)), (8, Rate(100, 60))], [(5, 0), (8, 0)])
    two.book([0, 0], 2, 0, [-2 * 10**8, SECOND], 1_000)
    assert two._standings(0) == [(4, 10**8), (1, SECOND)]  # the second slot in hand is due later
    with pytest.raises(RuntimeError, match="Use another name"):
        scheduler.reset(NOW)
    with pytest.raises(RuntimeError, match="one of several rates"):
        two.set_rate(Rate.parse("5/s"), NOW)
