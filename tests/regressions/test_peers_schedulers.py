"""Defects that schedulers of other libraries had: rates, bursts, clocks and odd input, each named by its report."""

from __future__ import annotations

import random
from itertools import product

from helpers.server import most_in_any_window
from helpers.strategies import EACH
from helpers.transcripts import S

import aiorate
from aiorate import SlidingWindow, TokenBucket, TokenPool
from aiorate.testing import simulate

BOUNDED = [name for name in EACH if name not in ("TicksAccumulator", "BurstCompensation-half")]
MAKERS = (aiorate.TokenPool, aiorate.BurstCompensation, aiorate.SmoothBursty, aiorate.BurstRatio)


def test_a_day_of_idleness_is_one_burst() -> None:
    """pelikan-io/rustcommon#36: 31 at once instead of 1."""
    for name in BOUNDED:
        scheduler = EACH[name]()
        scheduler.peek(1, 0)
        now = 86_400 * S
        at_once = sum(scheduler.take(1, now) <= now for _ in range(200))

        assert at_once <= (scheduler.bound(1) or 0), name


def test_the_cap_holds_at_any_size_of_number_and_period() -> None:
    """sindresorhus/p-queue#126: ignored for large numbers and small periods. dotnet/runtime#109027: a small period became 0."""
    for make, permits, period in random.Random(1).sample(
        list(product(MAKERS, ("0.01", "1", "7", "100000"), ("1ms", "250ms", "s", "min", "day"))), 20
    ):
        granted = simulate(make(f"{permits}/{period}"), [0] * 500)
        length = make(f"{permits}/{period}").rate.period_ns

        assert most_in_any_window(granted, length) <= (make(f"{permits}/{period}").bound(length) or 0), (make, permits, period)
        assert granted[-1] > 0, (make, permits, period)


def test_a_clock_that_goes_back_and_forth_gives_nothing() -> None:
    """golang/go#71360, #65508, #23145, #56287: 5000 times the rate. One second repeated is still one second."""
    for name in BOUNDED:
        scheduler, dice = EACH[name](), random.Random(name)
        granted = sum(scheduler.take(1, now) <= now for now in (dice.randrange(S) for _ in range(1_000)))

        assert granted <= (scheduler.bound(S) or 0), name


def test_a_step_of_the_clock_makes_no_absurd_wait() -> None:
    """vutran1710/PyrateLimiter#45: 1.6e9 s. Any origin and a jump of years give a sensible wait."""
    for name in EACH:
        for origin in (-(10**18), 0, 1_700_000_000 * S):
            scheduler = EACH[name]()
            simulate(scheduler, [origin] * 30)
            now = origin + 50 * 365 * 86_400 * S
            assert scheduler.take(1, now) <= now, name
            assert max(scheduler.peek(1, now) - now, 0) <= S, name


def test_a_clock_that_moves_in_steps_keeps_the_rate() -> None:
    """MagicStack/uvloop#359: time stands still between calls. The line, served at the next step, loses nothing on average."""
    for step in [10**6, 15_600_000]:
        for name in ["TokenPool", "TokenBucket-paced", "BurstRatio", "SmoothBursty", "BurstCompensation-strict"]:
            coarse, exact = EACH[name](), simulate(EACH[name](), [0] * 500)
            now = 0
            for due in exact:
                while (at := coarse.take(1, now, since=0)) > now:
                    assert at == due, (step, name)
                    now = -(-at // step) * step
            assert now - exact[-1] < step, (step, name)


def test_a_period_under_a_millisecond_still_refills() -> None:
    """dotnet/runtime#109027, #130027: it was truncated to 0 and the refill stopped for ever."""
    for period in ["100us", "10us", "1us", "1ns"]:
        for scheduler in (TokenBucket(f"1/{period}", burst=1), SlidingWindow(f"1/{period}"), TokenPool(f"1/{period}", pool=1)):
            length = scheduler.rate.period_ns
            assert simulate(scheduler, [0] * 4) == [0, length, 2 * length, 3 * length], period
