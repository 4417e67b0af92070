"""What a server tells of a strategy: its quotas, and how they stand. Faster versions say what the default would."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from aiorate import (
    AllOf,
    BurstRatio,
    CalendarWindow,
    Rate,
    Scheduler,
    SlidingWindow,
    SmoothBursty,
    SmoothWarmingUp,
    TicksAccumulator,
    TokenBucket,
    TokenPool,
)
from aiorate.schedulers.capped import Capped
from aiorate.schedulers.next_free import NextFree
from aiorate.schedulers.slot_scheduler import SlotScheduler

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND = 1_000_000_000

MAKERS: list[Callable[[], Scheduler]] = [
    lambda: TokenBucket("10/s", burst=5),
    lambda: TokenBucket("7/3s", burst=1),
    lambda: TokenBucket(Rate(3 * 10**9), burst=40),
    lambda: TokenPool("10/s"),
    lambda: TokenPool("3000/s"),
    lambda: TokenPool("10/s", burst_ratio=1.5),
    lambda: SlidingWindow("10/s"),
    lambda: SlidingWindow("1/3s"),
    lambda: CalendarWindow("20/s", "UTC", origin=0),
    lambda: SmoothBursty("10/s"),
    lambda: SmoothWarmingUp("10/s", 3),
    lambda: TicksAccumulator("10/s"),
    lambda: BurstRatio("10/s", 1.5),
]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: repr(make()))
def test_standing_is_what_a_request_would_find(make: Callable[[], Scheduler]) -> None:
    """So many permits are granted now, and one more at that instant and not before."""
    for seed in range(200):
        random, scheduler, now = Random(seed), make(), 0
        [(most, rate)] = scheduler.quotas()
        assert rate is scheduler.rate
        for _ in range(30):
            now += random.choice([0, 1, 10**6, 10**8, 333_333_333, SECOND, 10 * SECOND])
            permits = random.randint(1, 3)
            if scheduler.max_permits is None or permits <= scheduler.max_permits:
                scheduler.take(permits, now)
            later = now + random.choice([0, 0, 10**7, 5 * 10**8])

            [(left, more_at)] = scheduler.standings(later)

            assert left == scheduler.available(later)
            if scheduler.max_permits is not None:
                assert left <= most == scheduler.max_permits
            if left < most:
                assert more_at == scheduler.peek(left + 1, later)


def test_all_of_has_the_quotas_of_its_members() -> None:
    """In the order given."""
    both = AllOf(TokenBucket("10/s", burst=5), SlidingWindow("100/min"))
    both.take(3, 0)

    assert [(5, Rate(10)), (100, Rate(100, 60))] == both.quotas()
    assert [(2, SECOND // 10), (97, 60 * SECOND)] == [(left, at) for left, at in both.standings(0)]


def test_quota_of_a_server_lowers_what_stands() -> None:
    """Until its window ends."""
    bucket = TokenBucket("10/s", burst=5)
    bucket.take(1, 0)
    capped = Capped(bucket, 2, 0, 3 * SECOND)

    assert [(5, Rate(10))] == capped.quotas()
    assert [(2, 3 * SECOND)] == capped.standings(0)
    assert [(5, 4 * SECOND)] == capped.standings(4 * SECOND)


def test_slots_in_hand_and_those_of_the_store_are_left() -> None:
    """Each rate by itself."""
    scheduler = SlotScheduler([Rate(10), Rate(100, 60)], [5, 8], 10**9)
    assert [(5, Rate(10)), (8, Rate(100, 60))] == scheduler.quotas()
    assert [(5, 0), (8, 0)] == scheduler.standings(0)

    scheduler.book([0, 0], 2, 0, [-2 * 10**8, SECOND], 1_000)

    assert [(4, 10**8), (1, SECOND)] == scheduler.standings(0)  # the second slot in hand is due later


def test_next_free_slot_stands_with_nothing_left() -> None:
    """At the instant at which it is due."""
    free = NextFree([Rate(10)], [3])
    assert (3, 0) == free.standing(0, 0)
    for left in (2, 1, 0):
        free.spend(1, 0)
        assert (left, 10**8) == free.standing(0, 0)
    free.spend(1, 0)
    assert (0, 2 * 10**8) == free.standing(0, 0)
