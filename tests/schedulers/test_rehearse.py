"""Rehearsals: they foretell grants after any history, and change nothing."""

from __future__ import annotations

import random
from copy import deepcopy

import pytest
from helpers.driving import SECOND
from helpers.strategies import EACH

from aiorate import AllOf, Scheduler, SlidingWindow, TokenBucket
from aiorate.schedulers.capped import Capped
from aiorate.schedulers.dimensions import Amounts, Dimensions

SHARED = {
    **EACH,
    "a long window": lambda: SlidingWindow("50/10s"),
    "a window that is full": lambda: SlidingWindow("3/s"),
    "several": lambda: AllOf(SlidingWindow("5/s"), TokenBucket("30/10s", burst=4)),
    "a quota": lambda: Capped(SlidingWindow("5/s"), 7, 0, 9 * SECOND),
}


def later(scheduler: Scheduler, dice: random.Random, now: int) -> int:
    """Make a random call; returns the instant after it."""
    most = min(scheduler.max_permits or 4, 4)
    permits = dice.randint(1, most)
    now += dice.choice([0, 1, SECOND // 7, SECOND, 5 * SECOND])
    match dice.randrange(8):
        case 0:
            scheduler.give_back(permits, now)
        case 1:
            scheduler.charge(permits, now)
        case 2 | 3 if scheduler.peek(permits, now) <= now:
            scheduler.take(permits, now)
            scheduler.give_back(dice.randint(1, permits), now + dice.randrange(SECOND), now)
        case _:
            now = max(now, scheduler.peek(permits, now))
            assert scheduler.take(permits, now) <= now
    return now


@pytest.mark.parametrize("name", SHARED)
def test_a_rehearsal_grants_what_the_scheduler_would(name: str) -> None:
    """After any history, for any request; the scheduler itself is unchanged."""
    dice = random.Random(7)
    for _ in range(60):
        scheduler, now = SHARED[name](), 0
        for _ in range(dice.randrange(80)):
            now = later(scheduler, dice, now)
        copy, before = deepcopy(scheduler), deepcopy(scheduler)
        rehearsal = scheduler.rehearse()
        for _ in range(120):
            permits = dice.randint(1, min(scheduler.max_permits or 4, 4))
            at = max(copy.peek(permits, now), now)
            assert at == max(rehearsal.peek(permits, now), now)
            assert copy.take(permits, at, now) == rehearsal.take(permits, at, now)
            now = at + dice.choice([0, 0, SECOND // 9])
        sizes = range(1, min(scheduler.max_permits or 4, 4) + 1)
        assert [before.peek(permits, now) for permits in sizes] == [scheduler.peek(permits, now) for permits in sizes]
        later(scheduler, random.Random(1), now)
        later(before, random.Random(1), now)
        assert [before.peek(permits, now) for permits in sizes] == [scheduler.peek(permits, now) for permits in sizes]


@pytest.mark.parametrize("name", SHARED)
def test_a_rehearsal_stays_true_while_its_line_is_granted(name: str) -> None:
    """A line is rehearsed once. Its requests are granted in order while others join behind them."""
    dice = random.Random(8)
    scheduler, now = SHARED[name](), 0
    for _ in range(60):
        now = later(scheduler, dice, now)
    rehearsal, foretold = scheduler.rehearse(), list[int]()
    last = now
    for step in range(600):
        last = max(rehearsal.peek(1, last), last)
        rehearsal.take(1, last)
        foretold.append(last)
        if step >= 5:
            now = max(now, scheduler.peek(1, now))
            assert now == foretold[step - 5]
            scheduler.take(1, now)


@pytest.mark.parametrize("name", sorted(set(SHARED) - {"a quota", "AllOf", "several"}))
def test_a_line_of_single_permits_counts_as_their_sum(name: str) -> None:
    """One step for the sum, after a few were rehearsed one by one, gives the same instant as all one by one."""
    dice = random.Random(9)
    for _ in range(40):
        scheduler, now = SHARED[name](), 0
        for _ in range(dice.randrange(60)):
            now = later(scheduler, dice, now)
        one_by_one, at_once = deepcopy(scheduler), scheduler.rehearse()
        few, many = dice.randrange(33), dice.choice([1, 2, 9, 50, 333])
        ends = [now, now]
        for place, rehearsal, count in ((0, one_by_one, few + many), (1, at_once, few)):
            for _ in range(count):
                ends[place] = max(rehearsal.peek(1, ends[place]), ends[place])
                rehearsal.take(1, ends[place])
        at_once.take_ahead(many, ends[1])
        expected = [max(one_by_one.peek(permits, ends[0]), ends[0]) for permits in (1, 2, 3) if permits <= (scheduler.max_permits or 3)]
        found = [max(at_once.peek(permits, ends[1]), ends[1]) for permits in (1, 2, 3) if permits <= (scheduler.max_permits or 3)]

        assert expected == [pytest.approx(at, abs=1) for at in found]


def test_a_quota_holds_up_the_rest_of_a_line() -> None:
    """Of 1000 in line, 7 go before its end. A request behind them waits for its end and for the others."""
    capped = Capped(TokenBucket("10/s", burst=10), 7, 0, 9 * SECOND)
    rehearsal = capped.rehearse()
    rehearsal.take_ahead(1_000, 0)
    assert rehearsal.peek(1, 0) == 9 * SECOND + (1_001 - 7 - 10) * SECOND // 10
    assert capped.peek(7, 0) == 0


def test_a_line_of_a_budget_counts_in_each_dimension() -> None:
    """The sums of its amounts, of which one may be 0."""
    budget = Dimensions([TokenBucket("10/s", burst=10), SlidingWindow("100/s")])
    rehearsal = budget.rehearse()
    rehearsal.take_ahead(Amounts((0, 250)), 0)
    assert rehearsal.peek(Amounts((10, 1)), 0) == 2 * SECOND
    rehearsal.take_ahead(Amounts((60, 1)), 0)
    assert rehearsal.peek(Amounts((1, 1)), 0) == 51 * SECOND // 10
    assert budget.peek(Amounts((10, 100)), 0) == 0
