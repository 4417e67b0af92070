"""The meter: a permit from it has the same outcome as any other.

It is only open with the machine's monotonic clock, which other event loops use too. So that clock is replaced here and moved by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from helpers.driving import SECOND, turns, until
from helpers.meters import Machine, at_once

import aiorate

pytestmark = pytest.mark.asyncio


async def test_the_meter_never_passes_a_line(machine: Machine) -> None:
    """Three permits are available and the first in line wants five: a request for one is behind it, also after other calls."""
    looks: tuple[Callable[[aiorate.Limiter], object], ...] = (
        aiorate.Limiter.statistics,
        aiorate.Limiter.delay,
        aiorate.Limiter.try_acquire,
    )
    for look in looks:
        limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=5))
        assert await at_once(limiter)
        assert await at_once(limiter)
        large = asyncio.ensure_future(limiter.acquire(5))
        await turns(3)

        look(limiter)
        small = asyncio.ensure_future(limiter.acquire())
        await turns(3)

        assert (large.done(), small.done(), limiter.statistics().waiting) == (False, False, 2), look
        large.cancel()
        await turns(5)
        assert small.result() == 0.0


async def test_a_thousand_due_requests_are_granted_per_iteration(machine: Machine) -> None:
    """All 2500 in one iteration of the loop would block other tasks for too long."""
    for scheduler in (aiorate.SlidingWindow("5000/h"), aiorate.TokenPool("1/s", pool=5000 * SECOND)):
        limiter = aiorate.Limiter(scheduler)
        assert limiter.try_acquire()  # its schedule begins now
        limiter.pause(3600)
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(2500)]
        await turns(3)

        machine.instant += 7200 * SECOND
        granted = [limiter.statistics().granted for _ in range(2)]
        assert granted == [1001, 1001]
        await until(lambda tasks=tasks: all(task.done() for task in tasks))  # type: ignore[misc]

        assert limiter.statistics().granted == 2501
