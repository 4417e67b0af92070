"""Strategies: first mistakes with their arguments, equal paces under several names, and one limiter for each scheduler."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable

import pytest
from helpers.strategies import EACH

from aiorate import (
    AllOf,
    BurstCompensation,
    Limiter,
    Rate,
    Scheduler,
    SlidingWindow,
    SmoothBursty,
    TicksAccumulator,
    TokenBucket,
    TokenPool,
)


def test_a_burst_given_to_a_pool_names_the_bucket() -> None:
    """``TokenPool("10/s", burst=20)``, meant as a bucket, granted 21 at once after 2 s, and 244 in any second."""
    with pytest.raises(TypeError, match=r"burst_ratio.*TokenBucket\('10/s', burst=20\).*burst_ratio"):
        TokenPool("10/s", burst=20)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"takes rate, burst_ratio and pool, not ratio"):
        TokenPool("10/s", ratio=1.5)  # type: ignore[arg-type]


def test_a_pool_shows_its_burst_ratio() -> None:
    """The factor has the same name where it is given and where it is shown."""
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
def test_unknown_argument_of_a_strategy_is_answered_by_a_hint(make: Callable[[], object], hint: str) -> None:
    """The message "takes 2 positional arguments but 3 were given" did not say how to write 100 per 60 s."""
    with pytest.raises(TypeError, match=hint):
        make()


@pytest.mark.parametrize(("text", "hint"), [("10/month", "'10/30day'"), ("5 per months", "'5/30day'"), ("1_000/year", "'1_000/365day'")])
def test_rate_per_month_is_refused_with_days_as_a_hint(text: str, hint: str) -> None:
    """The error "is not a rate" did not say how to write a quota of a month."""
    with pytest.raises(ValueError, match=f"has no fixed length. Write {hint}"):
        Rate.parse(text)


def test_strictness_above_one_names_the_strategy_for_it() -> None:
    """The original's strictness above 1 is a burst ratio here."""
    with pytest.raises(ValueError, match=r"write BurstRatio\('10/s', ratio=1\.1\)"):
        BurstCompensation("10/s", strictness=1.1)
    with pytest.raises(ValueError, match=r"to 1 \(strict\)\.$"):
        BurstCompensation("10/s", strictness=-1)


def test_apply_without_a_ratio_sets_the_default_ratio() -> None:
    """``Limiter("12000/s")`` starts with a ratio of 1, ``apply("12000")`` sets 1.1; the page says so."""
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
    """A default of 1.0 was read digit by digit, and loading decimal and fractions takes 4 to 6 ms."""
    code = f"import sys; from aiorate import *; {call}; print(*sorted({{'decimal', '_decimal', 'fractions'}} & set(sys.modules)))"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout

    assert loaded == "\n"


def granted(scheduler: Scheduler, since: bool, sizes: tuple[int, ...]) -> list[int]:
    """Return the grants of a long random history: calm and herds, late requests, receipts."""
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
    """The page says which strategies are equal for single permits."""
    for since in (False, True):
        strict, bucket, smooth = BurstCompensation(rate), TokenBucket(rate, burst=1), SmoothBursty(rate, max_burst=0)
        expected = granted(strict, since, (1,))
        assert granted(bucket, since, (1,)) == expected
        assert granted(smooth, since, (1,)) == expected


def test_a_strict_pace_is_a_window_of_one_permit() -> None:
    """Equal where the interval is whole ns and no late request is booked from its arrival."""
    assert granted(SlidingWindow("1/100ms"), False, (1,)) == granted(BurstCompensation("10/s"), False, (1,))


@pytest.mark.parametrize("rate", ["10/s", "7/s", "3e9/s"])
def test_no_strictness_is_the_plain_accumulator(rate: str) -> None:
    """Equal for requests of any size, late ones too."""
    for since in (False, True):
        assert granted(BurstCompensation(rate, strictness=0), since, (1, 2, 7)) == granted(TicksAccumulator(rate), since, (1, 2, 7))


@pytest.mark.parametrize("strategy", EACH)
def test_a_scheduler_belongs_to_one_limiter(strategy: str) -> None:
    """Two limiters on one scheduler each took permits promised to the other: 1 to 14 grants where 6 were fair."""
    scheduler = EACH[strategy]()
    first = Limiter(scheduler, name="first")

    with pytest.raises(ValueError, match="'first'"):
        Limiter(scheduler)
    with pytest.raises(ValueError, match="share that limiter"):
        Limiter(AllOf(TokenBucket("10/s", burst=5), scheduler))

    assert first.try_acquire()


def test_a_member_of_all_of_belongs_to_its_limiter_too() -> None:
    """Alone or inside another AllOf, at any depth; and a refused limiter has claimed nothing."""
    inner, outer = TokenBucket("10/s", burst=5), TokenBucket("20/s", burst=5)
    limiter = Limiter(AllOf(AllOf(inner), outer))

    for scheduler in (inner, outer):
        with pytest.raises(ValueError, match="belongs to"):
            Limiter(scheduler)
    free = TokenBucket("10/s", burst=1)
    with pytest.raises(ValueError, match="belongs to"):
        Limiter(AllOf(free, inner))

    assert Limiter(free).try_acquire()
    assert limiter.try_acquire(5)


def test_a_scheduler_is_one_member_at_any_depth() -> None:
    """AllOf refused the same scheduler twice, but not inside another AllOf, where each permit cost it two."""
    scheduler = TokenBucket("1/s", burst=10)

    with pytest.raises(ValueError, match=r"twice|belongs"):
        Limiter(AllOf(scheduler, AllOf(scheduler, TokenBucket("1/s", burst=10))))
