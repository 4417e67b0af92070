"""Rates keep the numbers that were written, and windows count by them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction

import pytest
from helpers.driving import SECOND
from helpers.transcripts import S

from aiorate import AllOf, Budget, CalendarWindow, KeyedLimiter, Limiter, Rate, RateSpec, Scheduler, SlidingWindow, TokenBucket
from aiorate.testing import ManualClock

MS = SECOND // 1000


@pytest.mark.parametrize(
    ("text", "permits", "period_ns"),
    [
        ("9.9^2", 9801, 100 * SECOND),
        ("9.9^2,1.2,restart", 9801, 100 * SECOND),
        ("1.5^3", 3375, 1000 * SECOND),
        ("0.5^2", 25, 100 * SECOND),
        ("2.50^1", 25, 10 * SECOND),
        ("1.1^2K", 1210, SECOND),
        ("2^10", 1024, SECOND),
    ],
)
def test_the_base_of_a_power_may_be_a_decimal(text: str, permits: int, period_ns: int) -> None:
    """``9.9^2`` was refused; the original takes it, as exactly 98.01."""
    rate = RateSpec.parse(text).rate

    assert Fraction(permits, period_ns) == Fraction(rate.permits, rate.period_ns)


@pytest.mark.parametrize(
    ("rate", "permits", "period_ns"),
    [
        (lambda: Rate.parse("10/1.1s"), 10, 1_100 * MS),
        (lambda: Rate.parse("10/1.5s"), 10, 1_500 * MS),
        (lambda: Rate.parse("10/1100ms"), 10, 1_100 * MS),
        (lambda: Rate.parse("10/0.25min"), 10, 15 * SECOND),
        (lambda: Rate(10, 1.1), 10, 1_100 * MS),
        (lambda: Rate(10, Fraction(11, 10)), 10, 1_100 * MS),
        (lambda: Rate(10, 1 / 3), 10, 333_333_333),
        (lambda: Rate(10, 2 / 3), 10, 666_666_667),
        # Periods that are not whole nanoseconds are scaled with the permits, by the least factor.
        (lambda: Rate(10, Fraction(1, 3)), 30, SECOND),
        (lambda: Rate.parse("10/1.5ns"), 20, 3),
        (lambda: Rate.parse("0.5/1.5s"), 1, 3 * SECOND),
        (lambda: Rate.parse("100/60s"), 100, 60 * SECOND),
    ],
)
def test_a_rate_keeps_the_numbers_that_were_given(rate: Callable[[], Rate], permits: int, period_ns: int) -> None:
    """``10/1.1s`` became 100 per 11 s, so a window granted 100 at one instant."""
    made = rate()

    assert (permits, period_ns) == (made.permits, made.period_ns)


def test_a_window_grants_as_many_at_once_as_its_rate_says() -> None:
    """The same through a limiter, where users met it."""
    for text in ("10/1.1s", "10/1.5s", "10/0.3s"):
        limiter = Limiter(SlidingWindow(text), clock=ManualClock())

        assert limiter.try_acquire(10)
        assert not limiter.try_acquire()
        assert float(text[3:-1]) == limiter.delay(10)


def test_a_computed_period_is_read_to_the_nanosecond() -> None:
    """A third of a second is not a fraction of 17 digits, and a timedelta is read exactly."""
    assert Rate(1, per=1 / 3) == Rate.exactly(1, 333_333_333)
    assert Rate(1, per=0.123456789) == Rate.exactly(1, 123_456_789)
    assert Rate(3, per=timedelta(days=1, microseconds=1)) == Rate.exactly(3, 86_400 * S + 1_000)
    assert Rate.exactly(6, S, 4) == Rate.parse("3/2s")


def test_a_number_of_800_digits_is_read_and_one_more_is_not() -> None:
    """The error names the limit."""
    assert Rate.parse(f"0.{'1' * 798}/s").permits > 0
    with pytest.raises(ValueError, match="801 digits is too long; 800"):
        Rate.parse(f"0.{'1' * 799}/s")


QUOTIENTS = [100 / 60, 10 / 3, f"{100 / 60}/s", f"10/{0.1 + 0.2}s", 2**0.5, 0.1234567]


@pytest.mark.parametrize("rate", QUOTIENTS)
@pytest.mark.parametrize("make", [SlidingWindow, lambda rate: CalendarWindow(rate, "UTC")], ids=["sliding", "calendar"])
def test_a_window_of_a_computed_float_is_refused(make: Callable[[float | str], Scheduler], rate: float | str) -> None:
    """``SlidingWindow(100 / 60)`` was 16666666666666667 permits per 1e16 s, which limits nothing."""
    with pytest.raises(ValueError, match=r"Write whole permits and their period: '\d+/"):
        make(rate)


def test_the_error_of_a_computed_float_says_what_to_write() -> None:
    """A division means a number per period."""
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
    """Whole permits in the period written, or in the shortest period of at most 24 h."""
    assert SlidingWindow(rate).rate == Rate(permits, period)


def test_a_window_keeps_its_period_when_the_rate_falls() -> None:
    """Nine tenths of 100/s, three times, allowed 90, then 81, then 729 at once, and then everything."""
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
    """A float per second cannot hold 100 per minute exactly, and still means it."""
    window, limiter = SlidingWindow(f"{permits}/{period}"), Limiter(SlidingWindow(f"{permits}/{period}"))

    window.set_rate(Rate(window.rate.per_second * 3 * 1.1 * 10), 0)
    limiter.apply(RateSpec(limiter.rate.per_second, 1, "configure"))

    assert window.rate == Rate.parse(f"{33 * permits}/{period}")
    assert limiter.rate == Rate.parse(f"{permits}/{period}")


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
    """The window goes on at its old rate."""
    for window in (SlidingWindow("2/h"), CalendarWindow("2/h", "UTC", origin=0)):
        window.take(2, 5)

        with pytest.raises(ValueError, match=r"0\.36 permits .* Write '1/h'\."):
            window.set_rate(Rate(0.0001), 6)

        assert window.rate == Rate.parse("2/h")
        assert window.peek(1, 7) > 7


def test_a_pickled_rate_is_as_it_was_written() -> None:
    """A copy in another process makes the same window, or is refused like the original."""
    assert not pickle.loads(pickle.dumps(Rate(100 / 60))).is_whole
    assert copy.deepcopy(Rate.parse("100/min")).is_whole


@pytest.mark.parametrize(
    ("rate", "hint"), [("10/2day", "'5/day'"), ("10/2week", "'5/7day'"), ("3/36h", "'2/day'"), ("1/5day", "'10000/day'")]
)
def test_days_that_no_calendar_groups_are_refused(rate: str, hint: str) -> None:
    """``CalendarWindow("10/2day")`` counted from an even day of the year 1."""
    with pytest.raises(ValueError, match=rf"a day or a week\. Write {hint}.*SlidingWindow"):
        CalendarWindow(rate, "UTC")

    assert CalendarWindow("10/week", "UTC", origin=0).bound(1) == 20
