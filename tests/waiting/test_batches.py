"""Batches: fast calls take many permits at one reading of the clock, and return what is left.

Permits from a batch are booked late, as if they had been taken at the next reading of the clock. So a limiter may grant later than its
scheduler alone would, and never sooner or more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import cast

import pytest
from helpers.batches import STRATEGIES
from helpers.driving import SECOND, one_loop, turns

import aiorate
from aiorate.testing import ManualClock, VirtualLoop


class Asked(ManualClock):
    """A clock that counts its readings: a permit from a batch takes none."""

    reads = 0

    def now(self) -> int:
        self.reads += 1
        return super().now()


@one_loop
async def test_a_clock_that_goes_back_makes_no_permit_free() -> None:
    """A permit of a batch that was booked at an earlier instant would be refused, and never paid for."""
    clock = Asked(10 * SECOND)
    limiter = aiorate.Limiter(aiorate.TokenBucket(10**6, burst=1_000), clock=clock)
    granted = sum(limiter.try_acquire() for _ in range(300))
    assert clock.reads < 20

    clock.set(9 * SECOND)
    granted += sum(limiter.try_acquire() for _ in range(2_000))
    clock.set(10 * SECOND)
    granted += sum(limiter.try_acquire() for _ in range(2_000))

    assert granted == 1_000
    assert limiter.statistics().granted == 1_000


@one_loop
@pytest.mark.parametrize("idle", [0, 1, 200_000, 3_600 * SECOND])
async def test_the_rest_of_a_batch_is_not_a_credit(idle: int) -> None:
    """Taken an hour later, its permits count at that time: a bucket never exceeds its capacity."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket(10**6, burst=1_000), clock=clock)
    before = sum(limiter.try_acquire() for _ in range(300))

    clock.set(idle)
    after = sum(limiter.try_acquire() for _ in range(5_000))

    assert before == 300
    assert after <= min(700 + idle // 1_000, 1_000)
    assert after >= min(700 + idle // 1_000, 1_000) - 256


@one_loop
@pytest.mark.parametrize("rate", [100, 10**4, 10**5, 10**6])
@pytest.mark.parametrize("kind", ["TokenPool-small", "TokenBucket"])
async def test_late_booking_of_a_batch_costs_at_most_200_us(kind: str, rate: int) -> None:
    """That is the inflow lost if no iteration of the loop runs for hours after 35 fast calls, until the bucket is full again."""
    clock = ManualClock()
    make = {"TokenPool-small": lambda: aiorate.TokenPool(rate, pool=1_000 * SECOND // rate), "TokenBucket": lambda: STRATEGIES[kind](rate)}
    limiter, alone = aiorate.Limiter(make[kind](), clock=clock), make[kind]()
    for each in (limiter.try_acquire, lambda: alone.take(1, 0)):
        each()
    clock.set(20_000 * SECOND)
    taken = sum(limiter.try_acquire() for _ in range(35))
    assert taken == sum(alone.take(1, clock.now()) <= clock.now() for _ in range(35)) == 35

    clock.set(40_000 * SECOND)
    there = sum(limiter.try_acquire() for _ in range(1_100))
    alone_there = sum(alone.take(1, clock.now()) <= clock.now() for _ in range(1_100))

    assert alone_there - min(256, rate // 5_000) <= there <= alone_there


@one_loop
async def test_the_rest_of_a_batch_is_returned_when_the_loop_runs() -> None:
    """An idle limiter holds nothing back: after an hour the bucket is completely full."""
    clock = Asked()
    limiter = aiorate.Limiter(aiorate.TokenBucket(10**6, burst=1_000), clock=clock)
    assert sum(limiter.try_acquire() for _ in range(300)) == 300
    assert clock.reads < 20

    await asyncio.sleep(0)
    clock.set(3_600 * SECOND)
    clock.reads = 0

    assert limiter.try_acquire()
    assert clock.reads  # no batch was left
    limiter.refund(1)
    assert limiter.delay(1_000) == 0.0


def test_without_a_loop_no_batches_are_taken() -> None:
    """Nothing would return what is left of them."""
    clock = Asked()
    limiter = aiorate.Limiter(aiorate.TokenBucket(10**6, burst=1_000), clock=clock)

    granted = sum(limiter.try_acquire() for _ in range(300))

    assert granted == 300
    assert clock.reads >= 300


def test_a_loop_in_another_thread_gets_nothing_from_a_batch() -> None:
    """It gets a RuntimeError; the batch of the first loop is returned before another task can run."""
    limiter = aiorate.Limiter(aiorate.TokenBucket(10**6, burst=1_000), clock=ManualClock())
    outcomes: list[object] = []

    async def intrude() -> None:
        try:
            outcomes.append(await limiter.acquire())
        except RuntimeError as error:
            outcomes.append(type(error))

    async def own() -> int:
        taken = sum(limiter.try_acquire() for _ in range(300))
        await asyncio.sleep(0)
        thread = threading.Thread(target=asyncio.run, args=(intrude(),))
        thread.start()
        await asyncio.to_thread(thread.join)
        return taken + sum(limiter.try_acquire() for _ in range(2_000))

    taken = asyncio.run(own())

    assert outcomes == [RuntimeError]
    assert taken == 1_000 == limiter.statistics().granted


@one_loop
async def test_a_block_takes_from_a_batch_too() -> None:
    """``async with`` counts as acquire(), and is granted as many permits."""
    clock = ManualClock(SECOND)
    limiter = aiorate.Limiter(aiorate.TicksAccumulator("10/s", start=0), clock=clock)
    for _ in range(5):
        async with limiter as waited:
            assert 0 == waited
        assert limiter.try_acquire()

    assert 10 == limiter.statistics().granted
    assert [True, False] == [limiter.try_acquire(), limiter.try_acquire()]


@one_loop
@pytest.mark.parametrize("before", [*range(120, 136), *range(240, 264), *range(376, 400)])
async def test_time_that_passes_within_a_batch_adds_no_permit(before: int) -> None:
    """At any point of the batch, the scheduler is asked again for the rest."""
    clock = ManualClock(SECOND)
    limiter = aiorate.Limiter(aiorate.TicksAccumulator("1000/s", start=0), clock=clock)
    for _ in range(before):
        assert 0 == await limiter.acquire()
    clock.advance(1)

    assert 0 == await limiter.acquire()
    granted = before + 1
    while limiter.try_acquire():
        granted += 1
    assert 2001 == granted == limiter.statistics().granted


@one_loop
async def test_a_batch_that_could_not_be_returned_is_returned_later() -> None:
    """The clock fails at the next iteration of the loop, and no permit is lost or free."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    clock = Breaking()
    limiter = aiorate.Limiter(aiorate.TokenBucket(10**5, burst=100), clock=clock)
    taken = before = 0
    while taken < 40 or clock.reads == before:  # fast enough for batches of twenty, until one was just taken
        before = clock.reads
        taken += limiter.try_acquire()

    clock.broken = True
    await turns(2)
    clock.broken = False
    while limiter.try_acquire():
        taken += 1

    assert taken == limiter.statistics().granted == 100


class Breaking:
    """A clock that stands still, or returns None."""

    broken = False
    reads = 0

    def now(self) -> int:
        self.reads += 1
        return None if self.broken else SECOND  # type: ignore[return-value]


# Other tasks.


class Slow(VirtualLoop):
    """Virtual time on a slow machine: each reading of the clock is later than the one before."""

    step = taken = 0  # ns

    def time(self) -> float:
        self.taken += self.step
        return super().time() + self.taken / SECOND


@pytest.mark.parametrize("step", [300, 700, 1_000, 1_500])
@pytest.mark.parametrize("kind", [aiorate.TokenPool, aiorate.TokenBucket])
@pytest.mark.parametrize("turn", [64, 256, 100_000])
def test_a_caller_as_fast_as_the_rate_yields_to_other_tasks(kind: Callable[..., aiorate.Scheduler], step: int, turn: int) -> None:
    """Each permit falls due just before it is asked for, so no call would ever wait, and the loop would never run.

    Nor are single iterations enough: there must be time in which nothing runs.
    """
    scheduler = kind(10**6, burst=10_000) if kind is aiorate.TokenBucket else kind(10**6)

    async def worker() -> int:
        loop.step = step
        limiter = aiorate.Limiter(scheduler)
        waited = 0
        for k in range(50_000):
            waited += await limiter.acquire() > 0
            if k % turn == 0:
                await asyncio.sleep(0)
        loop.step = 0
        return waited

    with asyncio.Runner(loop_factory=Slow) as runner:
        loop = cast(Slow, runner.get_loop())
        waited = runner.run(worker())

    assert waited >= 5


@one_loop
async def test_only_callers_that_may_wait_yield_to_other_tasks() -> None:
    """A call with max_wait=0 or max_waiting=0, or try_acquire(), is not refused for the sake of other tasks."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket(10**6, burst=100), clock=clock, max_waiting=0)
    patient = aiorate.Limiter(aiorate.TokenBucket(10**6, burst=100), clock=clock)
    assert [limiter.try_acquire() for _ in range(101)] == [True] * 100 + [False]
    assert [patient.try_acquire() for _ in range(101)] == [True] * 100 + [False]

    clock.set(1_000)

    assert await limiter.acquire() == 0.0
    assert patient.try_acquire()
    clock.set(2_000)
    assert await patient.acquire(max_wait=0) == 0.0


@one_loop
@pytest.mark.parametrize("later", [1_000, 20_000_000])
@pytest.mark.parametrize("kind", ["TokenPool", "TokenBucket"])
async def test_a_caller_that_yields_to_other_tasks_needs_no_timer(kind: str, later: int) -> None:
    """A ManualClock fires no timer until it is moved again; the next iteration of the loop must be enough."""
    clock = ManualClock()
    limiter = aiorate.Limiter(STRATEGIES[kind](10**6), clock=clock)
    clock.set(SECOND)
    while limiter.try_acquire():
        pass

    clock.set(SECOND + later)
    task = asyncio.ensure_future(limiter.acquire())
    await turns(8)

    assert task.done()
    assert task.result() == 0.0
