"""Defects that other libraries had, each named by its report."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import Crowd, one_loop, turns
from helpers.strategies import EACH

import aiorate
from aiorate import SlidingWindow, TokenBucket, TokenPool
from aiorate.testing import ManualClock, simulate


@one_loop
@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket"])
async def test_granted_task_may_cancel_all_others_at_once(name: str) -> None:
    """dotnet/runtime#85523: a cancellation from inside a grant waited for the lock that the grant held."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    while crowd.limiter.try_acquire():
        pass

    async def first() -> None:
        await crowd.limiter.acquire()
        for who in "ABC":
            crowd.tasks[who].cancel()
        crowd.ask("again")

    task = asyncio.ensure_future(first())
    await turns(2)
    await crowd.queue("ABC")
    await clock.run(5)

    assert task.done()
    assert list(crowd.granted) == ["again"]
    assert crowd.limiter.statistics().cancelled == 3


def test_a_period_under_a_millisecond_still_refills() -> None:
    """dotnet/runtime#109027, #130027: it was truncated to 0 and the refill stopped for ever."""
    for period in ["100us", "10us", "1us", "1ns"]:
        for scheduler in (TokenBucket(f"1/{period}", burst=1), SlidingWindow(f"1/{period}"), TokenPool(f"1/{period}", pool=1)):
            length = scheduler.rate.period_ns
            assert simulate(scheduler, [0] * 4) == [0, length, 2 * length, 3 * length], period
