"""What any strategy answers besides instants: how it stands, after a reset, and in a rehearsal."""

from __future__ import annotations

import random
from copy import deepcopy

import pytest
from helpers.capped import Capped
from helpers.strategies import EACH
from helpers.transcripts import S

import aiorate
from aiorate import AllOf, CalendarWindow, Rate, Scheduler, SlidingWindow, TokenBucket

MORE = {
    **EACH,
    "thirds": lambda: TokenBucket("7/3s", burst=1),
    "fast": lambda: TokenBucket(Rate(3 * 10**9), burst=40),
    "a fast pool": lambda: aiorate.TokenPool("3000/s"),
    "a calendar": lambda: CalendarWindow("20/s", "UTC", origin=0),
    "a long window": lambda: SlidingWindow("50/10s"),
    "a window that is full": lambda: SlidingWindow("1/3s"),
    "several": lambda: AllOf(SlidingWindow("5/s"), TokenBucket("30/10s", burst=4)),
    "a quota": lambda: Capped(SlidingWindow("5/s"), 7, 0, 9 * S),
}


def later(scheduler: Scheduler, dice: random.Random, now: int) -> int:
    """Make a random call; returns the instant after it."""
    permits = dice.randint(1, min(scheduler.max_permits or 4, 4))
    now += dice.choice([0, 1, S // 7, S, 5 * S])
    match dice.randrange(8):
        case 0:
            scheduler.give_back(permits, now)
        case 1:
            scheduler.charge(permits, now)
        case 2 | 3 if scheduler.peek(permits, now) <= now:
            scheduler.take(permits, now)
            scheduler.give_back(dice.randint(1, permits), now + dice.randrange(S), now)
        case _:
            now = max(now, scheduler.peek(permits, now))
            assert scheduler.take(permits, now) <= now
    return now


@pytest.mark.parametrize("name", MORE)
def test_standing_is_what_a_request_would_find(name: str) -> None:
    for seed in range(20):
        dice, scheduler, now = random.Random(seed), MORE[name](), 0
        if scheduler.members:
            return
        for _ in range(30):
            now = later(scheduler, dice, now)
            asked = now + dice.choice([0, 0, 10**7, 5 * 10**8])
            [(most, rate, left, more_at)] = scheduler._standings(asked)
            assert (rate, left) == (scheduler.rate, scheduler.available(asked))
            if scheduler.max_permits is not None:
                assert left <= most == scheduler.max_permits
            if left < most:
                assert more_at == scheduler.peek(left + 1, asked)


@pytest.mark.parametrize("name", EACH)
def test_after_a_reset_a_scheduler_is_like_a_new_one(name: str) -> None:
    """No debt, no credit, no backlog."""
    dice = random.Random(name)
    used, now = EACH[name](), 0
    for _ in range(40):
        now = later(used, dice, now)

    used.reset(now)
    fresh = EACH[name]()
    fresh.peek(1, now)  # which is when its schedule begins

    assert (used.lag(now), used._spilled, used.available(now)) == (fresh.lag(now), fresh._spilled, fresh.available(now))
    for _ in range(60):
        permits = dice.randint(1, min(used.max_permits or 5, 5))
        assert used.peek(permits, now) == fresh.peek(permits, now)
        assert used.take(permits, now) == fresh.take(permits, now)
        now += dice.randrange(S // 4)
    assert repr(used) == repr(fresh)


def test_a_charge_may_be_the_first_call() -> None:
    """The first instant given starts the schedule, that of a charge too."""
    for name, make in EACH.items():
        charged, taken, now = make(), make(), S
        permits = min(charged.max_permits or 7, 7)
        charged.charge(permits, S)
        for _ in range(permits):
            now = max(now, taken.peek(1, now))
            taken.take(1, now)
        assert charged.peek(1, S) >= taken.peek(1, S) - S // 1000, name


def test_a_line_before_a_request_is_foretold_by_its_sum() -> None:
    """Exactly where single permits lie on a line, and never too late elsewhere. Nothing changes."""
    for name in MORE:
        dice = random.Random(9)
        for many in (1, 2, 9, 50, 333):
            scheduler, now = MORE[name](), 0
            for _ in range(dice.randrange(60)):
                now = later(scheduler, dice, now)
            now -= many % 2 * S // 3  # the clock may go back
            one_by_one, end, before = deepcopy(scheduler), now, scheduler.peek(1, now)
            for _ in range(many):
                end = max(one_by_one.peek(1, end), end)
                one_by_one.take(1, end)
            told, true = max(scheduler.peek(1, now, many), now), max(one_by_one.peek(1, end), end)
            assert told <= true, name
            if name not in {"a quota", "AllOf", "several", "BurstCompensation-half", "TokenPool-burst"}:
                assert true - told <= 1, name
            assert scheduler.peek(1, now) == before
