"""A driver that failed has sent everybody away; whoever comes next must find the limiter as if they had never stood there."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import one_loop, others, turns

import aiorate
from aiorate.testing import ManualClock

pytestmark = one_loop


class Broken(ManualClock):
    """A clock whose timers fail once."""

    broken = True

    def call_at(self, instant, callback):  # type: ignore[no-untyped-def]
        if self.broken:
            self.broken = False
            raise ZeroDivisionError
        return super().call_at(instant, callback)


async def test_a_timer_that_cannot_be_set_blocks_nobody_later() -> None:
    """The line is empty, and must not count as one: the next in it would have no timer at all, and hang."""
    clock = Broken()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock)
    assert limiter.try_acquire()

    with pytest.raises(ZeroDivisionError):
        await limiter.acquire()
    task = asyncio.ensure_future(limiter.acquire())
    await clock.run(0.1)

    assert task.result() == 0.1
    await clock.run(0.1)
    assert limiter.try_acquire()


async def test_a_filler_cancelled_from_outside_blocks_nobody_later() -> None:
    """Another one serves its waiters; the permits that come later are there for the taking."""
    clock = ManualClock()
    limiter = aiorate.Limiter("10/s", clock=clock)
    assert limiter.try_acquire()
    task = asyncio.ensure_future(limiter.acquire())
    await turns(5)
    (filler,) = others() - {task}

    filler.cancel()
    await turns(5)
    await clock.run(0.2)

    assert task.result() == 0.1
    assert limiter.try_acquire()
