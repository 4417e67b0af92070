"""Defects found by the second attack: numbers 4, 34, 35, 36, and first mistakes with strategies."""

from __future__ import annotations

import copy
import pickle
import random
import subprocess
import sys
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

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
    SmoothBursty,
    TicksAccumulator,
    TokenBucket,
    TokenPool,
)
from aiorate.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate import Scheduler


def test_a_burst_given_to_a_pool_names_the_bucket() -> None:
    """First mistake: ``TokenPool("10/s", burst=20)`` meant as a bucket's granted 21 at once after 2 s, and 244 in any second."""
    with pytest.raises(TypeError, match=r"burst_ratio.*TokenBucket\('10/s', burst=20\).*burst_ratio"):
        TokenPool("10/s", burst=20)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"takes rate, burst_ratio and pool, not ratio"):
        TokenPool("10/s", ratio=1.5)  # type: ignore[arg-type]


def test_a_pool_shows_its_burst_ratio() -> None:
    """The factor has one name, where it is given and where it is shown."""
    pool = TokenPool("10/s", burst_ratio=1.5)

    assert pool.burst_ratio == 1.5
    assert "burst_ratio=1.5" in repr(pool)


MISTAKES: list[tuple[Callable[..., object], str]] = [
    (lambda: SlidingWindow(100, 60), r"one argument: Rate\(100, 60\), or text such as '100/60s'"),
    (lambda: SlidingWindow(100, period=60), r"Rate\(100, 60\)"),
    (lambda: SlidingWindow("10/s", burst=5), r"TokenBucket\('10/s', burst=5\)"),
    (lambda: TicksAccumulator("10", "1s"), r"text such as '100/60s'"),
    (lambda: TokenBucket(100, 5, per=60), r"takes rate, burst and initial, not per.*Rate\(100, 60\)"),
    (lambda: SmoothBursty("10/s", burst=5), r"max_stored \(permits\), not burst"),
    (lambda: TicksAccumulator("10/s", size=5), r"TokenBucket\('10/s', burst=5\)"),
    (lambda: SlidingWindow("10/s", color="red"), r"takes rate, not color\.$"),
]


@pytest.mark.parametrize(("make", "hint"), MISTAKES)
def test_an_argument_that_a_strategy_lacks_is_answered(make: Callable[[], object], hint: str) -> None:
    """First mistakes: "takes 2 positional arguments but 3 were given" does not say how to write 100 per 60 s."""
    with pytest.raises(TypeError, match=hint):
        make()


@pytest.mark.parametrize(("text", "hint"), [("10/month", "'10/30day'"), ("5 per months", "'5/30day'"), ("1_000/year", "'1_000/365day'")])
def test_a_month_is_no_rate_and_days_are(text: str, hint: str) -> None:
    """First mistake: "is not a rate" left a quota of a month without any way to write it."""
    with pytest.raises(ValueError, match=f"has no fixed length. Write {hint}"):
        Rate.parse(text)


def test_a_strictness_above_one_names_the_strategy_that_has_it() -> None:
    """Number 34: the original's strictness above 1 is a burst ratio."""
    with pytest.raises(ValueError, match=r"write BurstRatio\('10/s', ratio=1\.1\)"):
        BurstCompensation("10/s", strictness=1.1)
    with pytest.raises(ValueError, match=r"to 1 \(strict\)\.$"):
        BurstCompensation("10/s", strictness=-1)


def test_a_text_without_a_ratio_brings_its_own() -> None:
    """Number 34: ``Limiter("12000/s")`` begins with a ratio of 1, ``apply("12000")`` makes it 1.1, and the page says so."""
    limiter = Limiter("12000/s")
    pool = limiter.scheduler
    assert isinstance(pool, TokenPool)

    seen = [pool.burst_ratio]
    for text in ("12000", "12000,1"):
        limiter.apply(text)
        seen.append(pool.burst_ratio)

    assert seen == [1, 1.1, 1]


@pytest.mark.parametrize(
    "call",
    [
        "Limiter('100/s')",
        "Limiter(100)",
        "Limiter(20.0)",
        "Limiter('500/min')",
        "Limiter(BurstCompensation('10/s'))",
        "Limiter(TokenBucket(10, 5))",
    ],
)
def test_a_plain_limiter_loads_no_decimal_arithmetic(call: str) -> None:
    """Number 35: a default of 1.0 was read digit by digit, and loading decimal and fractions takes 4 to 6 ms."""
    code = f"import sys; from aiorate import *; {call}; print(*sorted({{'decimal', '_decimal', 'fractions'}} & set(sys.modules)))"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout

    assert loaded == "\n"


def granted(scheduler: Scheduler, since: bool, sizes: tuple[int, ...]) -> list[int]:
    """What a scheduler grants in a long random history: calm and herds, late requests, receipts, changes of the rate."""
    dice, now, seen = random.Random(36), 0, []
    for _ in range(3000):
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


@pytest.mark.parametrize("rate", ["10/s", "7/s", "3e9/s", "1/day"])
def test_a_strict_pace_goes_by_three_names(rate: str) -> None:
    """Number 36: the page says which strategies are the same for single permits."""
    for since in (False, True):
        strict, bucket, smooth = BurstCompensation(rate), TokenBucket(rate, burst=1), SmoothBursty(rate, max_burst=0)
        expected = granted(strict, since, (1,))
        assert granted(bucket, since, (1,)) == expected
        assert granted(smooth, since, (1,)) == expected


def test_a_strict_pace_is_a_window_of_one_permit() -> None:
    """Number 36: where the interval is whole ns, and no late request is booked from when it came."""
    assert granted(SlidingWindow("1/100ms"), False, (1,)) == granted(BurstCompensation("10/s"), False, (1,))


@pytest.mark.parametrize("rate", ["10/s", "7/s", "3e9/s"])
def test_no_strictness_is_the_plain_accumulator(rate: str) -> None:
    """Number 36: for requests of any size, late ones too."""
    for since in (False, True):
        assert granted(BurstCompensation(rate, strictness=0), since, (1, 2, 7)) == granted(TicksAccumulator(rate), since, (1, 2, 7))


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
