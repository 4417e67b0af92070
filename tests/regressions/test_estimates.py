"""Estimates that were wrong: `delay()`, `available` and `max_wait` behind long lines and shared limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.driving import Crowd, one_loop, turns
from helpers.strategies import EACH

from aiorate import AllOf, BurstCompensation, KeyedLimiter, Limiter, SlidingWindow, TokenBucket, WaitTooLong
from aiorate.testing import ManualClock, VirtualLoop


def virtually(main: Any) -> Any:
    """Run it in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def test_newcomer_behind_a_line_after_a_pause_is_told_the_truth() -> None:
    """Its request was judged by the clock's reading, which is later by the pause: refused for 2.6 s instead of waiting 0.65 s."""

    async def main() -> tuple[float, float]:
        limiter = Limiter("20/s")
        waiting = [asyncio.ensure_future(limiter.acquire()) for _ in range(20)]
        await asyncio.sleep(0)
        limiter.pause(2)
        await asyncio.sleep(2.35)
        said = limiter.delay()
        waited = await limiter.acquire(max_wait=1.5)
        await asyncio.wait(waiting)
        return said, waited

    said, waited = virtually(main)

    assert said == waited < 0.75


@one_loop
async def test_estimate_does_not_count_cancelled_waiters() -> None:
    """With 100 of 1000 left in line, ``delay()`` said 1001 s once, and 101 s when asked again; ``max_wait`` refused by it."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("1/s", burst=1), clock=clock)
    crowd = Crowd(limiter, clock)
    assert limiter.try_acquire()
    await crowd.queue(range(1_000))
    assert 1001 == limiter.delay()

    for who in range(900):
        crowd.tasks[who].cancel()
    await turns(3)

    assert 101 == limiter.delay()
    for task in crowd.tasks.values():
        task.cancel()
    await turns(3)


@one_loop
@pytest.mark.parametrize("name", sorted(set(EACH) - {"AllOf"}))
@pytest.mark.parametrize("leaving", [7, 700])
async def test_delay_is_exact_after_some_have_left_a_long_line(name: str, leaving: int) -> None:
    """Beside a line of 5900, seven of which were cancelled, it said 1477.0 s where 1475.25 s was right."""
    clock = ManualClock()
    limiter = Limiter(EACH[name](), clock=clock)
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(1_500)]
    await turns(3)
    limiter.delay()
    for task in tasks[1:-1:2][:leaving]:
        task.cancel()
    await turns(3)
    said = limiter.delay()

    last = asyncio.ensure_future(limiter.acquire())
    await clock.run(said - 0.000_001)
    assert not last.done()
    await clock.run(0.000_002)
    assert last.done()
    assert not limiter.statistics().waiting


@one_loop
async def test_available_of_a_window_is_what_one_request_is_granted() -> None:
    """``statistics()`` of a full window of 100 000 took 16 ms, because it tried one size after the other."""
    clock = ManualClock()
    limiter = Limiter(SlidingWindow("20/s"), clock=clock)
    for step in range(400):
        clock.advance(0.013 * (step % 7))
        available = limiter.statistics().available
        assert available == max(size for size in range(21) if not size or not limiter.delay(size))
        if available:
            assert limiter.try_acquire(1 + step % available)
        else:
            with pytest.raises(WaitTooLong):
                await limiter.acquire(max_wait=0)
        if step % 11 == 0:
            limiter.refund(2)
        if step % 17 == 0:
            limiter.charge(5)


@one_loop
async def test_window_estimates_large_requests_after_enough_questions() -> None:
    """At ten per second, requests of 6 go once a second. Until the line is rehearsed again, ten permits a second count."""
    clock = ManualClock()
    limiter = Limiter(SlidingWindow("10/s"), clock=clock)
    tasks: list[asyncio.Task[float]] = []

    async def stand(count: int) -> None:
        tasks.extend([asyncio.ensure_future(limiter.acquire(6)) for _ in range(count)])
        await turns(3)

    def asked_until(exact: float) -> int:
        for questions in range(50):
            if limiter.delay(6) == exact:
                return questions
            assert exact * 0.6 < limiter.delay(6) < exact
        return 50

    for _ in range(2):
        await stand(101)
        begin = limiter.delay(6)
        assert begin % 1 == 0
        assert 100 <= begin <= 101  # the first answer is exact
        limiter.set_rate("10/s")
        assert 1 < asked_until(begin) <= 5
        await stand(100)
        limiter.set_rate("10/s")
        assert 1 < asked_until(begin + 100) <= 5  # each request that joined meanwhile has paid for itself
        for task in tasks:
            task.cancel()
        await turns(3)
        await clock.run(1)


KEYS = 90  # more than a question looks at one by one, and less than twice the window


@one_loop
async def test_estimate_of_a_key_behind_many_others_at_a_shared_window() -> None:
    """It raised IndexError: a window rehearsed past its line forgot the log that the rest follows from."""
    clock = ManualClock()
    window = Limiter(SlidingWindow("50/2s"), clock=clock)
    keyed = KeyedLimiter(lambda key: Limiter(TokenBucket("10/s", burst=9), clock=clock), shared=window)
    for _ in range(10):
        assert window.try_acquire(5)
        clock.advance(0.01)
    waiting = [asyncio.create_task(keyed.acquire(number % KEYS)) for number in range(2 * KEYS)]
    await turns(5)

    told = keyed[0].delay()
    last = asyncio.create_task(keyed.acquire(0))
    await clock.run(1_000)

    assert all(task.done() for task in waiting)
    assert 0 < told <= last.result()


@one_loop
async def test_estimate_of_a_key_with_a_shared_limit_counts_catch_up() -> None:
    """It was 20 ms too long or too short: behind a shared limit, a late booking was not foretold as the key would make it."""
    clock = ManualClock()
    limit = AllOf(TokenBucket("10/s", burst=3), SlidingWindow("8/2s"))
    keyed = KeyedLimiter(lambda key: Limiter(limit, clock=clock), shared=Limiter(TokenBucket("1000/s", burst=8), clock=clock))
    for permits, seconds in ((1, 0.1), (1, 0.1), (3, 0.3), (3, 0)):
        assert keyed.try_acquire("key", permits)
        clock.advance(seconds)
    waiting = asyncio.create_task(keyed.acquire("key", 3))
    await turns(5)

    told = keyed["key"].delay()
    last = asyncio.create_task(keyed.acquire("key"))
    await clock.run(10)

    assert told == last.result() == 1.78
    assert waiting.done()


@one_loop
async def test_estimate_of_a_level_held_up_from_above_is_not_late() -> None:
    """It was 20 ms too short: a wait at the third level for the first was rehearsed as if the second level made up for the time."""
    clock = ManualClock()
    top = Limiter(SlidingWindow("8/3s"), clock=clock)
    tenants = KeyedLimiter(lambda key: Limiter(BurstCompensation("10/s", 1), clock=clock), shared=top)
    users = KeyedLimiter(lambda key: Limiter(TokenBucket("10/s", burst=3), clock=clock), shared=tenants["acme"])
    asked = [top.acquire(2), top.acquire(2), *(tenants.acquire("acme") for _ in range(2)), *(users.acquire("ann") for _ in range(6))]
    waiting = [asyncio.create_task(request) for request in asked]
    await clock.run(0.15)

    told = users["ann"].delay()
    last = asyncio.create_task(users.acquire("ann"))
    await clock.run(20)

    assert told == last.result() == 3.25
    assert all(task.done() for task in waiting)
