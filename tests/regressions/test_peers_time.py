"""Defects that other limiters had with clocks; each named by its report. What schedulers themselves can have."""

from __future__ import annotations

import random

import pytest
from helpers.strategies import EACH
from helpers.transcripts import S

from aiorate import CalendarWindow, SlidingWindow, TokenBucket, TokenPool
from aiorate.testing import simulate


@pytest.mark.parametrize("name", [name for name in EACH if name not in ("TicksAccumulator", "BurstCompensation-half")])
def test_t1_a_clock_that_goes_back_and_forth_gives_nothing(name: str) -> None:
    """golang/go#71360, #65508, #23145, #56287: 5000 times the rate. The same second over and over is one second."""
    scheduler, dice = EACH[name](), random.Random(name)
    granted = sum(scheduler.take(1, now) <= now for now in (dice.randrange(S) for _ in range(5_000)))

    assert granted <= (scheduler.bound(S) or 0)


@pytest.mark.parametrize("name", EACH)
def test_t2_a_step_of_the_clock_makes_no_absurd_wait(name: str) -> None:
    """vutran1710/PyrateLimiter#45: 1.6e9 s. Whatever the origin, and after a jump of years, a wait is a wait."""
    for origin in (-(10**18), 0, 1_700_000_000 * S):
        scheduler = EACH[name]()
        simulate(scheduler, [origin] * 30)
        now = origin + 50 * 365 * 86_400 * S
        assert scheduler.take(1, now) <= now
        assert max(scheduler.peek(1, now) - now, 0) <= S


@pytest.mark.parametrize("step", [10**6, 15_600_000])
@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket-paced", "BurstRatio", "SmoothBursty", "BurstCompensation-strict"])
def test_t5_a_clock_that_moves_in_steps_keeps_the_rate(name: str, step: int) -> None:
    """MagicStack/uvloop#359: time stands still between calls. Served at the next step, the line loses nothing on average."""
    coarse, exact = EACH[name](), simulate(EACH[name](), [0] * 500)
    now = 0
    for due in exact:
        while (at := coarse.take(1, now, since=0)) > now:
            assert at == due
            now = -(-at // step) * step
    assert now - exact[-1] < step


@pytest.mark.parametrize("period", ["100us", "10us", "1us", "1ns"])
def test_t6_a_period_under_a_millisecond_still_refills(period: str) -> None:
    """dotnet/runtime#109027, #130027: it was truncated to 0 and the refill stopped for ever."""
    for scheduler in (TokenBucket(f"1/{period}", burst=1), SlidingWindow(f"1/{period}"), TokenPool(f"1/{period}", pool=1)):
        length = scheduler.rate.period_ns
        assert simulate(scheduler, [0] * 4) == [0, length, 2 * length, 3 * length]


@pytest.mark.parametrize("name", EACH)
def test_t7_a_refusal_names_an_instant_that_is_later(name: str) -> None:
    """PyrateLimiter 4.3 (#289): a wait that rounds to zero spins."""
    scheduler, now = EACH[name](), 0
    for _ in range(500):
        at = scheduler.take(1, now)
        if at > now:
            assert scheduler.take(1, at) <= at
            now = at
        else:
            now += 1


@pytest.mark.parametrize("name", [name for name in EACH if name not in ("TicksAccumulator", "BurstCompensation-half")])
def test_t8_a_suspended_machine_gets_one_burst(name: str) -> None:
    """systemd/systemd#42919: whether the time asleep counts or not, it is one burst at the most."""
    scheduler = EACH[name]()
    simulate(scheduler, [0] * 10)
    now = 3 * 86_400 * S

    assert sum(scheduler.take(1, now) <= now for _ in range(1_000)) <= (scheduler.bound(1) or 0)


def test_t9_the_wait_is_for_the_oldest_entry_and_the_rest_of_the_window() -> None:
    """dotnet/runtime#92557, alisaifee/limits#202, ZhuoZhuoCrayon/throttled-py#87: the whole window, or from the newest entry."""
    sliding, calendar = SlidingWindow("2/s"), CalendarWindow("2/s", "UTC", origin=0)
    for window in (sliding, calendar):
        window.take(1, S // 10)
        window.take(1, S // 2)

    assert sliding.peek(1, 6 * S // 10) == 11 * S // 10
    assert calendar.peek(1, 6 * S // 10) == S
