"""Permits that come back by receipt leave no trace, and make nobody sooner."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable

import pytest
from helpers.driving import SECOND
from helpers.strategies import EACH
from helpers.transcripts import S

from aiorate import BurstCompensation, Scheduler, TokenBucket, TokenPool

MS = 1_000_000


def dues(scheduler: Scheduler, now: int, since: int | None = None) -> list[int]:
    """Return the instants of the next four permits, the first for a request that joined the line at ``since``."""
    instants = []
    for _ in range(4):
        now = max(now, scheduler.peek(1, now))
        scheduler.take(1, now, since)
        instants.append(now)
    return instants


def test_a_bucket_that_took_and_gave_back_is_as_before() -> None:
    """At 7/s the next permit was 9.6 ms late, because a request in line was booked from the instant of the return."""
    gave, never = (TokenBucket("7/s", burst=1, start=0) for _ in range(2))

    gave.take(1, 500 * MS)
    gave.give_back(1, 510 * MS, taken=500 * MS)

    assert dues(gave, 510 * MS, since=500_400_000) == dues(never, 510 * MS, since=500_400_000)


def test_returned_permit_does_not_overfill_a_bucket() -> None:
    """A returned permit made the bucket up to 1 ns fuller than full, so the next was sooner than if never taken."""
    gave, never = (TokenBucket("7/s", burst=1, start=0) for _ in range(2))
    gave.take(1, 4_052_982)

    gave.give_back(1, 4_052_983, taken=4_052_982)

    assert dues(gave, 4_052_983) == dues(never, 4_052_983)


@pytest.mark.parametrize("back", [(3,), (2, 1), (1, 2), (1, 1, 1)])
def test_a_group_that_comes_back_whole_leaves_no_trace(back: tuple[int, ...]) -> None:
    """Of three permits taken at one instant while behind, only the last was undone, and the next was 381 ms late."""
    gave, never = (BurstCompensation("7/s", strictness=0.3, start=0) for _ in range(2))
    for _ in range(3):
        gave.take(1, 3 * S)

    for permits in back:
        gave.give_back(permits, 3 * S, taken=3 * S)

    assert gave.spilled == 0
    assert dues(gave, 3 * S) == dues(never, 3 * S)


@pytest.mark.parametrize(
    "strategy", ["TokenPool-burst", "BurstCompensation-half", "BurstRatio", "SmoothBursty", "SmoothWarmingUp", "TokenBucket"]
)
@pytest.mark.parametrize("late", [0, 258 * MS])
def test_late_requests_that_come_back_whole_leave_no_trace(strategy: str, late: int) -> None:
    """Requests that joined the line at different instants were booked from those, and only the last was undone."""
    gave, never = (EACH[strategy]() for _ in range(2))
    for scheduler in (gave, never):
        scheduler.take(1, 0)

    taken = sum(gave.take(1, 2 * S, since=2 * S - place * 450 * MS) <= 2 * S for place in (3, 2, 0))
    for _ in range(taken):
        gave.give_back(1, 2 * S + late, taken=2 * S)

    assert taken > 1
    assert dues(gave, 2 * S + late) == dues(never, 2 * S + late)


def test_returning_to_a_pool_later_makes_nobody_sooner() -> None:
    """Two came back 258 ms later. Meanwhile their absence made room for fresh tokens, so the next were 4.5 ms sooner."""
    gave, never = (TokenPool("7/s", burst_ratio=1.5, start=0) for _ in range(2))
    for scheduler in (gave, never):
        scheduler.take(1, 164 * MS)
    gave.take(1, 300 * MS, since=3 * MS)
    gave.take(1, 300 * MS)

    for _ in range(2):
        gave.give_back(1, 558 * MS, taken=300 * MS)

    assert dues(gave, 558 * MS) == dues(never, 558 * MS)


def test_returning_to_a_pool_after_others_makes_nobody_sooner() -> None:
    """A permit returned after others were taken may make the next late, and never adds a permit."""
    sooner = []
    for late in range(0, 900 * MS, 5 * MS):
        gave, never = (TokenPool("7/s", burst_ratio=1.5, start=0) for _ in range(2))
        gave.take(2, 2 * S)
        granted = [scheduler.take(1, 2 * S + late // 2) <= 2 * S + late // 2 for scheduler in (gave, never)]
        if all(granted):
            gave.give_back(2, 2 * S + late, taken=2 * S)
            sooner += [late for one, other in zip(dues(gave, 2 * S + late), dues(never, 2 * S + late), strict=True) if one < other]

    assert not sooner


@pytest.mark.parametrize("strategy", EACH)
def test_permits_returned_by_receipt_keep_the_bound(strategy: str) -> None:
    """Whatever is returned and when, the permits kept stay within the bound: 40 histories of each strategy."""
    for seed in range(40):
        dice = random.Random(seed)
        scheduler = EACH[strategy]()
        kept: list[int] = []
        now = 0
        for _ in range(60):
            now += dice.choice((0, 0, 30, 100, 150, 1000)) * MS
            if dice.random() < 0.4 and kept:
                receipt = kept.pop(dice.randrange(len(kept)))
                scheduler.give_back(1, now, receipt)
            elif scheduler.take(1, now) <= now:
                kept.append(now)

        instants = sorted(kept)
        for first, begin in enumerate(instants):
            for end in sorted(set(instants[first:])):
                most = scheduler.bound(end - begin + 1)
                assert most is None or bisect_right(instants, end) - first <= most


@pytest.mark.parametrize(
    "make",
    [lambda: TokenBucket("1/h", burst=1_000), lambda: TokenPool("1/h", pool=1_000 * 3_600 * SECOND)],
    ids=["TokenBucket", "TokenPool"],
)
def test_receipt_is_worth_a_permit_after_many_takes(make: Callable[[], Scheduler]) -> None:
    """In the record of levels the highest seemed ever more recent: of 330 cancellations, 70 lost their permit."""
    scheduler = make()
    scheduler.take(1, 0)
    scheduler.give_back(1_000, 0)  # full
    for now in range(1, 501):
        assert scheduler.take(1, now) <= now
    before = scheduler.stock(501)

    scheduler.give_back(1, 501, 300)

    assert before + 1 == scheduler.stock(501)
