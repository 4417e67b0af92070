"""`max_wait` bounds the wait in every scope and on every loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from helpers.driving import LONG, turns
from helpers.stores import RealServer, TimedClient, now
from redis.exceptions import ConnectionError as NoConnection

import aiorate
from aiorate import Budget, EngineUnavailable, KeyedLimiter, Limiter, TokenBucket, WaitTooLong
from aiorate.http import read_feedback
from aiorate.redis import RedisBudget
from aiorate.testing import ManualClock

AFTERWARDS: dict[str, Callable[[Limiter], None]] = {
    "a pause": lambda limiter: limiter.pause(5),
    "a lower rate": lambda limiter: limiter.set_rate("1/h"),
    "a charge": lambda limiter: limiter.charge(1_000),
    "a quota": lambda limiter: limiter.observe(
        read_feedback(200, {"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset-After": "30"})
    ),
    "a stop": lambda limiter: limiter.apply("10,1,stop"),
}


async def refused_at(clock: ManualClock, limit: float, call: Callable[[], Any], meanwhile: Callable[[], None]) -> None:
    """Ask, change something in between, and expect WaitTooLong at that instant, and not before."""
    task = asyncio.ensure_future(call())
    await turns(3)
    assert not task.done()
    meanwhile()
    await clock.run(limit - 0.001)
    assert not task.done()
    await clock.run(0.001)

    assert task.done()
    assert isinstance(task.exception(), WaitTooLong)
    assert limit == task.exception().max_wait < task.exception().wait  # type: ignore[union-attr]
    assert 0 == clock.timers


@pytest.mark.asyncio
@pytest.mark.parametrize("change", AFTERWARDS)
async def test_max_wait_holds_whatever_comes_afterwards(change: str) -> None:
    """In line with ``max_wait=1`` when a 429 with Retry-After 5 arrived, a request waited for 5.2 s."""
    clock = ManualClock()
    limiter = Limiter(aiorate.TokenPool("10/s"), clock=clock, max_concurrency=5)
    while limiter.try_acquire():
        pass
    granted = limiter.statistics().granted

    await refused_at(clock, 1, lambda: limiter.acquire(max_wait=1), lambda: AFTERWARDS[change](limiter))
    statistics = limiter.statistics()
    assert (granted, 0, 0) == (statistics.granted, statistics.waiting, statistics.cancelled)


def test_max_wait_holds_under_trio() -> None:
    """Each of three in line leaves at its own time; the rest wait for the pause to end."""

    async def main() -> list[tuple[float, str]]:
        limiter = Limiter(TokenBucket("10/s", burst=1))
        await limiter.acquire()
        left: list[tuple[float, str]] = []

        async def ask(max_wait: float | None) -> None:
            try:
                await limiter.acquire(max_wait=max_wait)
                left.append((round(trio.current_time(), 6), "granted"))
            except WaitTooLong:
                left.append((round(trio.current_time(), 6), "refused"))

        async with trio.open_nursery() as nursery:
            for max_wait in (2, 1, None, 6):
                nursery.start_soon(ask, max_wait)
                await trio.testing.wait_all_tasks_blocked()
            limiter.pause(5)
        await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == 5.2  # no timer is left for the time to jump to
        return left

    granted = [(5.1, "granted"), (5.2, "granted")]
    assert [(1, "refused"), (2, "refused"), *granted] == trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["key", "budget"])
async def test_max_wait_holds_through_a_shared_limit(kind: str) -> None:
    """It is held up after the request joined its line."""
    clock = ManualClock()
    shared = Limiter(TokenBucket("10/s", 1), clock=clock)
    keyed = KeyedLimiter[str](lambda key: Limiter("100/s", clock=clock), shared=shared)
    budget = Budget(calls="100/s", requests=shared, clock=clock)
    await shared.acquire()

    async def reserve() -> None:
        async with budget.reserve(max_wait=1):
            pass

    call = reserve if kind == "budget" else lambda: keyed.acquire("a", max_wait=1)
    await refused_at(clock, 1, call, lambda: shared.pause(5))
    assert 0 == shared.statistics().waiting


def test_max_wait_holds_for_synchronous_code() -> None:
    """``acquire_blocking(max_wait=0.5)`` blocked for 3.2 s, and synchronous code has no other timeout."""
    with pytest.raises(WaitTooLong, match=r"acquire\(2\).*60 s.*1 s"):
        Limiter(TokenBucket("1/min", burst=2, initial=1), scope="process", clock=ManualClock()).acquire_blocking(2, max_wait=1)
    limiter = Limiter(TokenBucket("1000/s", burst=1), scope="process")
    outcome: list[Exception] = []

    def ask() -> None:
        try:
            limiter.acquire_blocking(max_wait=0.2)
        except WaitTooLong as error:
            outcome.append(error)

    while not outcome:
        limiter.pause(0.1)
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        while thread.is_alive() and not limiter.statistics().waiting:
            time.sleep(0.001)
        limiter.pause(3_600)
        thread.join(LONG)
        assert not thread.is_alive()
        limiter.resume()  # if a slow machine granted it, try again

    assert "acquire(1)" in str(outcome[0])
    assert 0 == limiter.statistics().waiting


@pytest.mark.asyncio
@pytest.mark.parametrize("options", [{}, {"precise": True}, {"scope": "process"}], ids=["loop", "precise", "process"])
async def test_max_wait_holds_in_real_time(options: dict[str, Any]) -> None:
    """By the timers of a real loop, of the kernel and of a thread; and never before the time is over."""
    limiter = Limiter(TokenBucket("1000/s", burst=1), **options)
    refused: list[float] = []

    async def ask() -> None:
        began = time.monotonic()
        try:
            await limiter.acquire(max_wait=0.2)
        except WaitTooLong:
            refused.append(time.monotonic() - began)

    async with asyncio.timeout(LONG):
        while not refused:
            limiter.pause(0.1)
            task = asyncio.ensure_future(ask())
            await turns(3)
            limiter.pause(3_600)
            await task
            limiter.resume()  # if a slow machine granted it, try again
    assert min(refused) >= 0.2
    await limiter.aclose()


@pytest.mark.asyncio
async def test_request_due_exactly_at_max_wait_is_granted() -> None:
    """After a pause too; and no timer stays."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("10/s", burst=1), clock=clock)
    await limiter.acquire()
    task = asyncio.ensure_future(limiter.acquire(max_wait=1))
    await turns(3)
    limiter.pause(0.9)
    clock.advance(1)

    assert 1 == await task
    assert 0 == clock.timers


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_deadline_ends_a_wait_while_the_store_is_down(store: RealServer) -> None:
    """The shared budget refuses to say when it would grant, and no request is forgotten."""
    client = TimedClient(store)
    team = RedisBudget(client, "team", tokens="100/s", grace=0.1)
    budget = RedisBudget(client, "user", shared=team, tokens="100/s", grace=10)

    async def reserve(max_wait: float | None) -> float:
        began = now()
        with pytest.raises(WaitTooLong):
            async with budget.reserve(max_wait=max_wait, tokens=1):
                pass
        return now() - began

    client.error = NoConnection("down")
    patient = asyncio.create_task(reserve(None))
    tasks = [asyncio.create_task(reserve(0.5)) for _ in range(3)]
    with pytest.raises(EngineUnavailable):
        async with team.reserve(tokens=1):
            pass
    await asyncio.wait(tasks, timeout=5.0)

    assert [0.5] * 3 == [pytest.approx(task.result(), abs=0.01) for task in tasks if task.done()]
    assert 1 == budget.waiting
    patient.cancel()
    await budget.aclose()
    await team.aclose()
