"""Defects found by the second attack: numbers 4, 34, 35, 36, 43, and first mistakes with strategies."""

from __future__ import annotations

import copy
import pickle
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from helpers.strategies import EACH
from helpers.transcripts import S

from aiorate import (
    AllOf,
    Budget,
    BurstCompensation,
    CalendarWindow,
    KeyedLimiter,
    Limiter,
    Rate,
    RateSpec,
    SlidingWindow,
    TokenBucket,
    TokenPool,
)
from aiorate.testing import ManualClock
from aiorate.testing.laws import EXACT_RECEIPTS, LAWS, run_law

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate import Scheduler

MS = 1_000_000


def test_a_burst_given_to_a_pool_names_the_bucket() -> None:
    """First mistake: ``TokenPool("10/s", burst=20)`` meant as a bucket's granted 21 at once after 2 s, and 244 in any second."""
    with pytest.raises(TypeError, match=r"burst_ratio.*TokenBucket\('10/s', burst=20\)"):
        TokenPool("10/s", burst=20)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"no ratio; it takes rate, burst_ratio"):
        TokenPool("10/s", ratio=1.5)  # type: ignore[arg-type]


def test_a_pool_shows_its_burst_ratio() -> None:
    """The factor has one name, where it is given and where it is shown."""
    pool = TokenPool("10/s", burst_ratio=1.5)

    assert pool.burst_ratio == 1.5
    assert "burst_ratio=1.5" in repr(pool)


QUOTIENTS = [100 / 60, 10 / 3, f"{100 / 60}/s", f"10/{0.1 + 0.2}s", 2**0.5, 0.1234567]


@pytest.mark.parametrize("rate", QUOTIENTS)
@pytest.mark.parametrize("make", [SlidingWindow, lambda rate: CalendarWindow(rate, "UTC")], ids=["sliding", "calendar"])
def test_a_window_of_a_computed_float_is_refused(make: Callable[[float | str], Scheduler], rate: float | str) -> None:
    """Number 4: ``SlidingWindow(100 / 60)`` was 16666666666666667 permits per 1e16 s, which limits nobody."""
    with pytest.raises(ValueError, match=r"Write whole permits and their period: '\d+/"):
        make(rate)


def test_the_error_of_a_computed_float_says_what_to_write() -> None:
    """Number 4: somebody who divides means a number per period."""
    with pytest.raises(ValueError, match="'100/min'"):
        Limiter(SlidingWindow(100 / 60))
    with pytest.raises(ValueError, match="'10/3s'"):
        KeyedLimiter(Limiter, shared=SlidingWindow(10 / 3))
    with pytest.raises(ValueError, match="'100/3s'"):
        Budget(requests=SlidingWindow(f"10/{0.1 + 0.2}s"))
    with pytest.raises(ValueError, match="'7/10day'"):
        SlidingWindow("0.7/day")


@pytest.mark.parametrize(
    ("rate", "permits", "period"),
    [
        ("100/min", 100, 60),
        (0.5, 1, 2),
        ("2.5/min", 5, 120),
        ("1/365d", 1, 365 * 86_400),
        ("30/1.1s", 30, Fraction(11, 10)),
        (72.9, 729, 10),
    ],
)
def test_a_window_counts_as_it_is_written(rate: float | str, permits: int, period: Fraction) -> None:
    """Number 4: whole permits in the period written, or in the shortest one of 24 h at most."""
    assert SlidingWindow(rate).rate == Rate(permits, period)


def test_a_window_keeps_its_period_when_the_rate_falls() -> None:
    """Number 4: nine tenths of 100/s were 90, then 81, then 729 at once, and then everything."""
    limiter = Limiter(SlidingWindow("100/s"), clock=ManualClock())
    seen = []
    for _ in range(2):
        limiter.set_rate(limiter.rate.per_second * 0.9)
        seen.append(str(limiter.rate))
    with pytest.raises(ValueError, match=r"72\.9 permits .* Write '72/s' or '73/s'"):
        limiter.set_rate(limiter.rate.per_second * 0.9)

    assert seen == ["90/s", "81/s"]
    assert sum(limiter.try_acquire() for _ in range(1000)) == 81


@pytest.mark.parametrize("period", ["s", "min", "h", "day", "7day", "1.1s"])
@pytest.mark.parametrize("permits", [1, 7, 33, 100, 999])
def test_a_window_reads_its_own_rate_back(permits: int, period: str) -> None:
    """Number 4: a float per second cannot hold 100 per minute, and means it all the same."""
    window, limiter = SlidingWindow(f"{permits}/{period}"), Limiter(SlidingWindow(f"{permits}/{period}"))

    window.set_rate(Rate(window.rate.per_second * 3 * 1.1 * 10), 0)
    limiter.apply(RateSpec(limiter.rate.per_second, 1, "configure"))

    assert window.rate == Rate.parse(f"{33 * permits}/{period}")
    assert limiter.rate == Rate.parse(f"{permits}/{period}")


def test_every_way_to_a_window_keeps_its_period() -> None:
    """Number 4: a member, a day of the calendar, and a text; only a rate that is whole as written brings its period."""
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
    """Number 4: the window goes on at the rate that it has."""
    for window in (SlidingWindow("2/h"), CalendarWindow("2/h", "UTC", origin=0)):
        window.take(2, 5)

        with pytest.raises(ValueError, match=r"0\.36 permits .* Write '1/h'\."):
            window.set_rate(Rate(0.0001), 6)

        assert window.rate == Rate.parse("2/h")
        assert window.peek(1, 7) > 7


def test_a_pickled_rate_is_as_it_was_written() -> None:
    """Number 4: a copy in another process makes the same window, or none."""
    assert not pickle.loads(pickle.dumps(Rate(100 / 60))).is_whole
    assert copy.deepcopy(Rate.parse("100/min")).is_whole


@pytest.mark.parametrize(
    ("rate", "hint"), [("10/2day", "'5/day'"), ("10/2week", "'5/7day'"), ("3/36h", "'2/day'"), ("1/5day", "'10000/day'")]
)
def test_days_that_no_calendar_groups_are_refused(rate: str, hint: str) -> None:
    """First mistake: ``CalendarWindow("10/2day")`` counted from an even day of the year 1."""
    with pytest.raises(ValueError, match=rf"a day or a week\. Write {hint}.*SlidingWindow"):
        CalendarWindow(rate, "UTC")

    assert CalendarWindow("10/week", "UTC", origin=0).bound(1) == 20


def dues(scheduler: Scheduler, now: int, since: int | None = None) -> list[int]:
    """The instants of the next four permits, the first of them for a request that joined the line at ``since``."""
    instants = []
    for _ in range(4):
        now = max(now, scheduler.peek(1, now))
        scheduler.take(1, now, since)
        instants.append(now)
    return instants


def test_a_bucket_that_took_and_gave_back_is_as_before() -> None:
    """Number 43: at 7/s the next was 9.6 ms later, because a request in line was booked from when the permit came back."""
    gave, never = (TokenBucket("7/s", burst=1, start=0) for _ in range(2))

    gave.take(1, 500 * MS)
    gave.give_back(1, 510 * MS, taken=500 * MS)

    assert dues(gave, 510 * MS, since=500_400_000) == dues(never, 510 * MS, since=500_400_000)


def test_a_full_bucket_is_no_fraction_fuller_for_a_permit_that_came_back() -> None:
    """Number 43: never sooner. A permit that came back made the bucket up to 1 ns fuller than full."""
    gave, never = (TokenBucket("7/s", burst=1, start=0) for _ in range(2))
    gave.take(1, 4_052_982)

    gave.give_back(1, 4_052_983, taken=4_052_982)

    assert dues(gave, 4_052_983) == dues(never, 4_052_983)


@pytest.mark.parametrize("back", [(3,), (2, 1), (1, 2), (1, 1, 1)])
def test_a_group_that_comes_back_whole_leaves_no_trace(back: tuple[int, ...]) -> None:
    """Number 43: of three taken at one instant while behind, only the last came back, and the next was 381 ms later."""
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
    """Number 43: requests that joined the line at different instants were booked from them, and only the last was undone."""
    gave, never = (EACH[strategy]() for _ in range(2))
    for scheduler in (gave, never):
        scheduler.take(1, 0)

    taken = sum(gave.take(1, 2 * S, since=2 * S - place * 450 * MS) <= 2 * S for place in (3, 2, 0))
    for _ in range(taken):
        gave.give_back(1, 2 * S + late, taken=2 * S)

    assert taken > 1
    assert dues(gave, 2 * S + late) == dues(never, 2 * S + late)


def test_a_pool_that_took_and_gave_back_later_makes_nobody_sooner() -> None:
    """Number 43: two came back 258 ms later. Meanwhile they had made room for tokens to return, so the next were 4.5 ms sooner."""
    gave, never = (TokenPool("7/s", burst_ratio=1.5, start=0) for _ in range(2))
    for scheduler in (gave, never):
        scheduler.take(1, 164 * MS)
    gave.take(1, 300 * MS, since=3 * MS)
    gave.take(1, 300 * MS)

    for _ in range(2):
        gave.give_back(1, 558 * MS, taken=300 * MS)

    assert dues(gave, 558 * MS) == dues(never, 558 * MS)


def test_a_pool_with_others_in_between_makes_nobody_sooner() -> None:
    """Number 43: a permit that comes back after others were taken may be late, and is never a permit more."""
    sooner = []
    for late in range(0, 900 * MS, 5 * MS):
        gave, never = (TokenPool("7/s", burst_ratio=1.5, start=0) for _ in range(2))
        gave.take(2, 2 * S)
        granted = [scheduler.take(1, 2 * S + late // 2) <= 2 * S + late // 2 for scheduler in (gave, never)]
        if all(granted):
            gave.give_back(2, 2 * S + late, taken=2 * S)
            sooner += [late for one, other in zip(dues(gave, 2 * S + late), dues(never, 2 * S + late), strict=True) if one < other]

    assert not sooner


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ("bucket", "giving_back_later_leaves_no_trace"),
        ("pool", "giving_back_later_leaves_no_trace"),
        ("group", "a_group_that_comes_back_leaves_no_trace"),
    ],
)
def test_the_laws_find_receipts_that_are_not_exact(wrong: str, name: str) -> None:
    """Number 43: each of the three defects, put back into its strategy, breaks a law within fifteen histories."""
    law = next(law for law in LAWS + EXACT_RECEIPTS if law.__name__ == name)

    with pytest.raises(AssertionError, match=name):
        run_law(law, WRONG[wrong], 15)


class CutAtOnce(TokenBucket):
    """Cuts what comes back at a full bucket, as of the instant at which it comes back."""

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        super().give_back(permits, now, taken)
        super().set_rate(self.rate, now)
        if self.peek(self.burst, now) == now:
            self.reset(now)


class LatestOnly(BurstCompensation):
    """Undoes the latest record of an instant, and loses the others."""

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at = super().take(permits, now, since)
        self.older_takes = []
        return at


class FillsUp(TokenPool):
    """Puts all that comes back into the pool that is active."""

    def undo_takes(self, permits: int, taken: int) -> int:
        return permits


WRONG: dict[str, Callable[[], Scheduler]] = {
    "bucket": lambda: CutAtOnce("7/s", burst=1),
    "group": lambda: LatestOnly("7/s", strictness=0.3),
    "pool": lambda: FillsUp("7/s", burst_ratio=1.5),
}
