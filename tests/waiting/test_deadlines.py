"""Deadlines of requests in line: what is kept of finished ones, their timers, and how many fail at once."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from helpers.driving import SECOND, SteppedClock, alive, one_loop, turns

from aiorate import Limiter, TokenBucket, TokenPool, WaitTooLong
from aiorate.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate import Scheduler


@one_loop
@pytest.mark.parametrize("cancel", [False, True])
async def test_requests_with_far_deadlines_do_not_pile_up(cancel: bool) -> None:
    """Granted or cancelled long before, behind one with a sooner deadline: a line that never ends would keep them for hours."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("1/s", burst=1), clock=clock)
    limiter.try_acquire()
    line: list[asyncio.Task[float]] = []
    before = alive(asyncio.Future)
    for step in range(400):
        line.append(asyncio.ensure_future(limiter.acquire(max_wait=5 if step % 2 else 10_000)))
        await turns(2)
        if cancel and step % 2 == 0:
            line.pop().cancel()
        elif step >= 2:
            await clock.run(1)
        line = [task for task in line if not task.done()]
    assert len(line) >= 1
    del line

    assert alive(asyncio.Future) - before < 50


@one_loop
async def test_a_closed_coroutine_leaves_no_timer() -> None:
    """Its future is never done, unlike that of a cancelled one; another request in line has no deadline."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("1/h", burst=1), clock=clock)
    limiter.try_acquire()
    other = asyncio.ensure_future(limiter.acquire())
    await turns(2)
    coroutine = limiter.acquire(max_wait=10_000)
    coroutine.send(None)
    assert 2 == clock.timers
    coroutine.close()
    assert 1 == clock.timers
    other.cancel()
    await turns(2)
    assert 0 == clock.timers


@one_loop
@pytest.mark.parametrize("strategy", [lambda: TokenBucket("1/s", burst=1), lambda: TokenPool("1/s")])
async def test_no_timer_of_a_deadline_stays_after_the_grant(strategy: Callable[[], Scheduler]) -> None:
    """The rest of the line has one timer, for its first request."""
    clock = ManualClock()
    limiter = Limiter(strategy(), clock=clock)
    limiter.try_acquire()
    tasks = [asyncio.ensure_future(limiter.acquire(max_wait=max_wait)) for max_wait in (100, None)]
    await turns(3)
    assert 2 == clock.timers
    await clock.run(1)
    assert (True, 1) == (tasks[0].done(), clock.timers)
    await clock.run(1)
    assert 0 == clock.timers
    await asyncio.wait(tasks)


@one_loop
async def test_only_the_earliest_deadline_has_a_timer() -> None:
    """A request with an earlier deadline takes the timer over at once."""
    clock = SteppedClock()
    limiter = Limiter(TokenBucket("1/min", burst=1), clock=clock)
    limiter.try_acquire()
    for max_wait in (9_000, 8_000, 7_300):
        task = asyncio.ensure_future(limiter.acquire(max_wait=max_wait))
        await turns(2)
        assert not task.done()
        assert 60 * SECOND == clock.next_timer
    limiter.pause(20_000)
    assert 7_300 * SECOND == clock.next_timer
    await clock.run(7_299)
    assert 3 == limiter.statistics().waiting
    for left, passes in ((2, 1), (1, 700), (0, 1_000)):
        await clock.run(passes)
        assert left == limiter.statistics().waiting
    assert clock.next_timer is None


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_thousand_deadlines_fail_per_iteration() -> None:
    """All 3500 at once would block other tasks of the loop."""
    limiter = Limiter(TokenBucket("1000/s", burst=1))
    limiter.try_acquire()
    refused = 0

    async def ask() -> None:
        nonlocal refused
        try:
            await limiter.acquire(max_wait=10)
        except WaitTooLong:
            refused += 1

    tasks = [asyncio.ensure_future(ask()) for _ in range(3_500)]
    await turns(3)
    limiter.pause(60)
    await asyncio.sleep(9.999)
    seen = [refused]
    while refused < 3_500:
        await asyncio.sleep(0.000_1)
        seen.append(refused)

    assert 0 == seen[0]
    assert max(later - before for before, later in pairwise(seen)) == 1_000
    assert asyncio.get_running_loop().time() < 10.01
    await asyncio.wait(tasks)
