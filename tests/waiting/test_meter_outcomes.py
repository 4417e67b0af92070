"""The meter: a permit from it has the same outcome as any other.

It is only open with the machine's monotonic clock, which other event loops use too. So that clock is replaced here and moved by hand.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from helpers.driving import SECOND, turns, until
from helpers.meters import Machine, at_once
from helpers.strategies import EACH

import aiorate

pytestmark = pytest.mark.asyncio
MS = SECOND // 1000


@pytest.mark.parametrize("name", list(EACH))
async def test_the_meter_grants_what_the_scheduler_grants(name: str, machine: Machine) -> None:
    """The outcomes are the same at any instant, with refusals in between."""
    dice, expected, actual = random.Random(name), [], []
    limiter, scheduler = aiorate.Limiter(EACH[name]()), EACH[name]()

    for _ in range(400):
        machine.instant += dice.choice((0, 0, 0, 1, MS, 30 * MS, 100 * MS, 400 * MS))
        expected.append(scheduler.take(1, machine.instant) <= machine.instant)
        actual.append(await at_once(limiter))
        await turns(1)

    assert expected == actual
    assert limiter.statistics().granted == sum(expected)


@pytest.mark.parametrize("look", [aiorate.Limiter.statistics, aiorate.Limiter.delay, aiorate.Limiter.try_acquire])
async def test_the_meter_never_passes_a_line(look: Callable[[aiorate.Limiter], object], machine: Machine) -> None:
    """Three permits are available and the first in line wants five: a request for one is behind it, also after other calls."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=5))
    assert await at_once(limiter)
    assert await at_once(limiter)
    large = asyncio.ensure_future(limiter.acquire(5))
    await turns(3)

    look(limiter)
    small = asyncio.ensure_future(limiter.acquire())
    await turns(3)

    assert (large.done(), small.done(), limiter.statistics().waiting) == (False, False, 2)
    large.cancel()
    await turns(5)
    assert small.result() == 0.0


async def test_the_meter_is_shut_during_a_pause_and_a_stop(machine: Machine) -> None:
    """It is open again afterwards."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=100))
    seen = [await at_once(limiter)]

    limiter.pause(60)
    seen.append(await at_once(limiter))
    limiter.resume()
    seen.append(await at_once(limiter))
    limiter.apply("10,1,stop")
    seen.append(await at_once(limiter))
    limiter.apply("10,1,start")
    seen.append(await at_once(limiter))

    assert seen == [True, False, True, False, True]


async def test_the_meter_of_a_closed_limiter_is_shut(machine: Machine) -> None:
    """It is shut even if permits are available."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=100))
    assert await at_once(limiter)

    await limiter.aclose()
    limiter.statistics()

    with pytest.raises(aiorate.LimiterClosed):
        await limiter.acquire()


@pytest.mark.parametrize(("catch_up", "at_once_in_all"), [(1.0, 21), (0.008, 9)])
async def test_after_a_late_wake_up_the_meter_books_from_before_it(catch_up: float, at_once_in_all: int, machine: Machine) -> None:
    """Strict pacing at 1000/s, woken 20 ms late: within catch_up, the missed slots go to callers that could not ask meanwhile."""
    limiter = aiorate.Limiter(aiorate.BurstCompensation("1000/s"), catch_up=catch_up)
    assert await at_once(limiter)
    waiter = asyncio.ensure_future(limiter.acquire())
    await turns(3)

    machine.instant += 21 * MS
    limiter.statistics()
    count = 1
    while await at_once(limiter):
        count += 1
    await waiter

    assert count == at_once_in_all


async def test_requests_after_a_late_wake_up_get_at_most_catch_up(machine: Machine) -> None:
    """A millisecond later, the slots of another millisecond are too old, and the bound for one instant still holds."""
    limiter = aiorate.Limiter(aiorate.BurstCompensation("10000/s"), catch_up=0.008)
    assert await at_once(limiter)
    waiter = asyncio.ensure_future(limiter.acquire())
    await turns(3)
    machine.instant += 100 * MS
    limiter.statistics()
    await waiter

    machine.instant += 1 * MS
    count = 0
    while await at_once(limiter):
        count += 1

    assert count == limiter.bound(1e-9) == 81


@pytest.mark.parametrize("scheduler", [lambda: aiorate.SlidingWindow("5000/h"), lambda: aiorate.TokenPool("1/s", pool=5000 * SECOND)])
async def test_a_thousand_due_requests_are_granted_per_iteration(scheduler: Callable[[], aiorate.Scheduler], machine: Machine) -> None:
    """All 2500 in one iteration of the loop would block other tasks for too long."""
    limiter = aiorate.Limiter(scheduler())
    assert limiter.try_acquire()  # its schedule begins now
    limiter.pause(3600)
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(2500)]
    await turns(3)

    machine.instant += 7200 * SECOND
    granted = [limiter.statistics().granted for _ in range(2)]
    assert granted == [1001, 1001]
    await until(lambda: all(task.done() for task in tasks))

    assert limiter.statistics().granted == 2501


async def test_after_a_pause_instants_are_in_the_limiters_own_time(machine: Machine) -> None:
    """The clock goes on while the schedule stands still: the time of the pause is not granted."""
    limiter = aiorate.Limiter(aiorate.BurstCompensation("10/s"))
    assert await at_once(limiter)

    limiter.pause(0.5)
    machine.instant += 500 * MS
    seen = [await at_once(limiter)]
    await machine.advance(limiter, 99 * MS)
    seen.append(await at_once(limiter))
    await machine.advance(limiter, 1 * MS)
    seen.append(await at_once(limiter))

    assert seen == [False, False, True]
