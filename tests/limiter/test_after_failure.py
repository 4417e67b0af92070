"""A driver that fails raises in every waiter; after that the limiter works as if they had never asked."""

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


async def test_a_timer_that_cannot_be_set_blocks_no_later_request() -> None:
    """The empty line must not count as a line with a timer, or the next request would hang."""
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


async def test_a_filler_cancelled_from_outside_is_replaced() -> None:
    """A new filler serves the waiters, and later permits are granted as usual."""
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
