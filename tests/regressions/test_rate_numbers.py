"""Rates keep the numbers that were written, windows count by them, and equal strategies are equal."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product

import pytest
from helpers.strategies import EACH

from aiorate import (
    AllOf,
    BurstCompensation,
    CalendarWindow,
    Limiter,
    Rate,
    Scheduler,
    SlidingWindow,
    SmoothBursty,
    TicksAccumulator,
    TokenBucket,
)
from aiorate.testing import ManualClock

QUOTIENTS = [100 / 60, 10 / 3, f"{100 / 60}/s", f"10/{0.1 + 0.2}s", 2**0.5, 0.1234567]


def test_a_window_of_a_computed_float_is_refused() -> None:
    """``SlidingWindow(100 / 60)`` was 16666666666666667 permits per 1e16 s, which limits nothing."""
    for make, rate in product((SlidingWindow, lambda rate: CalendarWindow(rate, "UTC")), QUOTIENTS):
        with pytest.raises(ValueError, match=r"'\d+/"):
            make(rate)


def test_a_window_counts_as_it_is_written() -> None:
    """Whole permits in the period written, or in the shortest period of at most 24 h."""
    for rate, permits, period in [
        ("100/min", 100, 60),
        (0.5, 1, 2),
        ("2.5/min", 5, 120),
        ("1/365d", 1, 365 * 86_400),
        ("30/1.1s", 30, Fraction(11, 10)),
        (72.9, 729, 10),
    ]:
        assert SlidingWindow(rate).rate == Rate(permits, period), (rate, permits, period)


def test_a_window_keeps_its_period_when_the_rate_falls() -> None:
    """Nine tenths of 100/s, three times, allowed 90, then 81, then 729 at once, and then everything."""
    limiter = Limiter(SlidingWindow("100/s"), clock=ManualClock())
    seen = []
    for _ in range(2):
        limiter.set_rate(limiter.rate.per_second * 0.9)
        seen.append(str(limiter.rate))
    with pytest.raises(ValueError, match="'81/s'"):
        limiter.set_rate(limiter.rate.per_second * 0.9)

    assert seen == ["90/s", "81/s"]
    assert sum(limiter.try_acquire() for _ in range(1000)) == 81


def test_every_way_to_change_a_window_keeps_its_period() -> None:
    """A member, a calendar day and a text keep it; only a rate that is whole as written brings another period."""
    calendar = CalendarWindow("10000/day", "UTC", origin=0)
    both = Limiter(AllOf(TokenBucket("10/s", burst=5), SlidingWindow("500/min")))
    sliding = SlidingWindow("500/min")

    calendar.set_rate(Rate(calendar.rate.per_second * 0.9), 0)
    both.set_rate(both.scheduler.members[1].rate.per_second * 0.9, member=1)
    sliding.set_rate(Rate.parse("600/h"), 0)

    assert calendar.rate == Rate.parse("9000/day")
    assert both.scheduler.members[1].rate == Rate.parse("450/min")
    assert sliding.rate == Rate.parse("10/min")
    sliding.set_rate(Rate.parse("1000/h"), 0)
    assert sliding.rate == Rate.parse("1000/h")


def test_a_refused_rate_changes_nothing() -> None:
    for window in (SlidingWindow("2/h"), CalendarWindow("2/h", "UTC", origin=0)):
        window.take(2, 5)

        with pytest.raises(ValueError, match="'2/h'"):
            window.set_rate(Rate(0.0001), 6)

        assert window.rate == Rate.parse("2/h")
        assert window.peek(1, 7) > 7


def test_days_that_no_calendar_groups_are_refused() -> None:
    """``CalendarWindow("10/2day")`` counted from an even day of the year 1."""
    for rate in ("10/2day", "10/2week", "3/36h", "1/5day"):
        with pytest.raises(ValueError, match="'10000/day'"):
            CalendarWindow(rate, "UTC")

        assert CalendarWindow("10/week", "UTC", origin=0).bound(1) == 20, rate


def granted(scheduler: Scheduler, since: bool, sizes: tuple[int, ...]) -> list[int]:
    """Return the grants of a long random history: calm and herds, late requests, receipts."""
    dice, now, seen = random.Random(36), 0, []
    for _ in range(1000):
        now += dice.choice((0, 0, 1, 10**8 - 1, 10**8, dice.randrange(10**8), dice.randrange(10**9)))
        permits, late = dice.choice(sizes), dice.randrange(10**8)
        at = scheduler.take(permits, now, now - late if since else None)
        if at > now:
            now = at if dice.random() < 0.5 else now
        else:
            seen.append(now)
            if dice.random() < 0.1:
                scheduler.give_back(permits, now, taken=now)
    return seen


def test_a_strict_pace_goes_by_three_names() -> None:
    """The page says which strategies are equal for single permits."""
    for rate in ["10/s", "7/s", "3e9/s", "1/day"]:
        for since in (False, True):
            strict, bucket, smooth = BurstCompensation(rate), TokenBucket(rate, burst=1), SmoothBursty(rate, max_burst=0)
            expected = granted(strict, since, (1,))
            assert granted(bucket, since, (1,)) == expected, rate
            assert granted(smooth, since, (1,)) == expected, rate


def test_no_strictness_is_the_plain_accumulator() -> None:
    """Equal for requests of any size, late ones too."""
    for rate in ["10/s", "7/s", "3e9/s"]:
        for since in (False, True):
            one, other = BurstCompensation(rate, strictness=0), TicksAccumulator(rate)
            assert granted(one, since, (1, 2, 7)) == granted(other, since, (1, 2, 7)), rate


def test_a_scheduler_belongs_to_one_limiter() -> None:
    """Two limiters on one scheduler each took permits promised to the other: 1 to 14 grants where 6 were fair."""
    scheduler = EACH["TokenBucket"]()
    first = Limiter(scheduler, name="first")

    with pytest.raises(ValueError, match="'first'"):
        Limiter(scheduler)
    with pytest.raises(ValueError, match="share that limiter"):
        Limiter(AllOf(TokenBucket("10/s", burst=5), scheduler))

    assert first.try_acquire()


def test_a_scheduler_is_one_member_at_any_depth() -> None:
    """AllOf refused the same scheduler twice, but not inside another AllOf, where each permit cost it two."""
    scheduler = TokenBucket("1/s", burst=10)

    with pytest.raises(ValueError, match=r"twice|belongs"):
        Limiter(AllOf(scheduler, AllOf(scheduler, TokenBucket("1/s", burst=10))))
