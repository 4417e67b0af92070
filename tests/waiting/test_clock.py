"""Which clock is read, and the limiter's own time during a pause."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import aiorate
from aiorate.testing import ManualClock, VirtualLoop
from aiorate.waiting.asyncio.view import AsyncioLoop

SECOND = 1_000_000_000


@pytest.mark.asyncio
async def test_real_loops_are_timed_by_the_monotonic_clock() -> None:
    """uvloop's own time moves in steps of 1 ms (MagicStack/uvloop#359); wall-clock time is never used."""
    assert AsyncioLoop(asyncio.get_running_loop(), None, False).read is time.monotonic_ns


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_virtual_loops_are_timed_by_their_own_time() -> None:
    """T2: a frozen test clock must not become a wait of years."""
    loop = asyncio.get_running_loop()
    read = AsyncioLoop(loop, None, False).read
    before = read()

    await asyncio.sleep(5)

    assert isinstance(loop, VirtualLoop)
    assert read() - before == 5 * SECOND


def test_uvloops_timers_are_set_for_the_end_of_a_millisecond() -> None:
    """It rounds to the nearest: a timer of 0.4 ms would fire at once, again and again (MagicStack/uvloop#233)."""
    uvloop = pytest.importorskip("uvloop")
    waits: list[float] = []

    class Watched(uvloop.Loop):
        __module__ = "uvloop"

        def call_later(self, delay: float, *arguments: Any, **options: Any) -> Any:
            waits.append(delay)
            return super().call_later(delay, *arguments, **options)

    loop = Watched()
    limiter_side = AsyncioLoop(loop, None, False)
    for ns in (1, 400_000, 999_999, 1_300_000, 250_000_001):
        limiter_side.call_at(limiter_side.read() + ns, loop.stop).cancel()
    loop.close()

    assert [round(1000 * wait, 6) % 1 for wait in waits] == [0.0] * 5
    assert waits[-1] <= 0.251
    assert min(waits) >= 0


class Bare:
    """A clock with only now(), as a user would write it."""

    def __init__(self) -> None:
        self.instant = 0

    def now(self) -> int:
        return self.instant


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_clock_without_timers_is_read_again_by_the_loops() -> None:
    """The loop's timer is a hint: while the clock stands still nothing is granted, and the loop is not kept busy."""
    clock = Bare()
    limiter = aiorate.Limiter("10/s", clock=clock)
    assert await limiter.acquire() == 0.0
    task = asyncio.ensure_future(limiter.acquire())

    await asyncio.sleep(60)
    assert not task.done()
    clock.instant = SECOND // 10
    await asyncio.sleep(1)

    assert task.result() == 0.1


@pytest.mark.parametrize("seconds", [0, 0.0, 1e-9, 1e300, 10**300])
def test_a_pause_of_any_length_is_taken_as_it_is(seconds: float) -> None:
    """From 0 to a length that a float of seconds cannot express in nanoseconds."""
    clock = ManualClock()
    limiter = aiorate.Limiter("10/s", clock=clock)

    limiter.pause(seconds)

    assert limiter.try_acquire() is (seconds == 0)
    limiter.resume()
    assert limiter.statistics().paused_until is None
    assert limiter.try_acquire() is (seconds != 0)
