"""`max_wait` bounds the wait in every scope and on every loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest
import trio
import trio.testing
from helpers.driving import LONG, others, turns
from helpers.server import Server
from helpers.stores import Process, RealServer

import aiorate
from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket, WaitTooLong
from aiorate.http import hooks, read_feedback
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
@pytest.mark.parametrize("strategy", [aiorate.TokenPool, lambda rate: TokenBucket(rate, 1)])
@pytest.mark.parametrize("change", AFTERWARDS)
async def test_max_wait_holds_whatever_comes_afterwards(change: str, strategy: Any) -> None:
    """In line with ``max_wait=1`` when a 429 with Retry-After 5 arrived, a request waited for 5.2 s."""
    clock = ManualClock()
    limiter = Limiter(strategy("10/s"), clock=clock, max_concurrency=5)
    while limiter.try_acquire():
        pass
    granted = limiter.statistics().granted

    await refused_at(clock, 1, lambda: limiter.acquire(max_wait=1), lambda: AFTERWARDS[change](limiter))
    statistics = limiter.statistics()
    assert (granted, 0, 0) == (statistics.granted, statistics.waiting, statistics.cancelled)


@pytest.mark.asyncio
@pytest.mark.parametrize("change", AFTERWARDS)
@pytest.mark.parametrize("shared", [None, "10/s"])
async def test_max_wait_holds_for_keys(change: str, shared: str | None) -> None:
    """For the limit of a key, and for the limit that all keys share."""
    clock = ManualClock()
    common = None if shared is None else Limiter(TokenBucket(shared, 1), clock=clock)
    keyed = KeyedLimiter(lambda key: Limiter(TokenBucket("10/s", 1), clock=clock), shared=common)
    await keyed.acquire("b" if common else "a")
    limiter = keyed["a"] if common is None else common

    await refused_at(clock, 1, lambda: keyed.acquire("a", max_wait=1), lambda: AFTERWARDS[change](limiter))
    assert 0 == keyed["a"].statistics().waiting == limiter.statistics().waiting
    assert (0 if shared else 1) == keyed["a"].statistics().granted


@pytest.mark.asyncio
async def test_max_wait_holds_for_reservations() -> None:
    """A reservation delayed by the settling of another lease leaves the budget's line in time."""
    clock = ManualClock()
    budget = Budget(clock=clock, requests="10/s", tokens=TokenBucket("10/s", burst=10))
    lease = await budget.reserve(tokens=10).__aenter__()

    async def call() -> None:
        async with budget.reserve(tokens=5, max_wait=1):
            raise AssertionError("it was granted")

    await refused_at(clock, 1, call, lambda: lease.settle(tokens=1_000))
    assert 0 == budget.waiting


@pytest.mark.asyncio
async def test_max_wait_holds_for_a_request_of_a_client(server: Server) -> None:
    """The page calls it the bound, and no timeout of httpx2 covers the wait."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("10/s", burst=1), clock=clock)
    await limiter.acquire()
    async with httpx2.AsyncClient(base_url=server.url, event_hooks=hooks(limiter, max_wait=timedelta(seconds=1))) as client:
        await refused_at(clock, 1, lambda: client.get("/"), lambda: limiter.pause(5))
    assert not server.arrivals


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_max_wait_holds_over_a_store() -> None:
    """The process pauses in between, in virtual time; here a timedelta gives the bound."""
    with RealServer() as store:
        await pause_in_between(Process(store))


async def pause_in_between(process: Process) -> None:
    await process.limiter.acquire(5)
    began = asyncio.get_running_loop().time()
    waiting = asyncio.ensure_future(process.limiter.acquire(max_wait=timedelta(seconds=1)))
    await turns(3)
    process.limiter.pause(5)
    await asyncio.wait([waiting])

    assert isinstance(waiting.exception(), WaitTooLong)
    assert pytest.approx(1, abs=2e-3) == asyncio.get_running_loop().time() - began
    await process.stop()


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
@pytest.mark.parametrize("change", AFTERWARDS)
async def test_max_wait_holds_for_all_loops_of_a_process(change: str) -> None:
    """In the line that all event loops share."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("10/s", 1), clock=clock, scope="process")
    await limiter.acquire()

    await refused_at(clock, 1, lambda: limiter.acquire(max_wait=1), lambda: AFTERWARDS[change](limiter))


def test_max_wait_holds_for_synchronous_code() -> None:
    """``acquire_blocking(max_wait=0.5)`` blocked for 3.2 s, and synchronous code has no other timeout."""
    with pytest.raises(WaitTooLong, match=r"acquire_blocking\(2\) would wait 60 s, but max_wait is 1 s"):
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

    assert "acquire_blocking(1) was not granted within max_wait (0.2 s)" in str(outcome[0])
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
@pytest.mark.parametrize("scope", ["loop", "process"])
async def test_request_due_exactly_at_max_wait_is_granted(scope: Any) -> None:
    """After a pause too; and no timer stays."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("10/s", burst=1), clock=clock, scope=scope)
    await limiter.acquire()
    task = asyncio.ensure_future(limiter.acquire(max_wait=1))
    await turns(3)
    limiter.pause(0.9)
    clock.advance(1)

    assert 1 == await task
    assert 0 == clock.timers


@pytest.mark.asyncio
async def test_request_behind_one_that_gives_up_is_granted_at_once() -> None:
    """A large request gives up at the head of the line, and the small one behind it goes at that very instant."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("10/s", burst=10), clock=clock)
    await limiter.acquire(10)
    large = asyncio.ensure_future(limiter.acquire(10, max_wait=1))
    await turns(3)
    small = asyncio.ensure_future(limiter.acquire())
    await turns(3)
    limiter.charge(5)
    await clock.run(1)

    assert isinstance(large.exception(), WaitTooLong)
    assert 1 == small.result()


@pytest.mark.asyncio
async def test_a_herd_has_one_timer_for_all_deadlines() -> None:
    """Three thousand deadlines share one timer; granted, cancelled or refused, none leaves one behind."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("1000/s", burst=1), clock=clock)
    limiter.try_acquire()
    tasks = [asyncio.ensure_future(limiter.acquire(max_wait=4 + i / 1_000)) for i in range(3_000)]
    await turns(3)
    assert 2 == clock.timers  # plus the one for the first in line
    for task in tasks[::3]:
        task.cancel()
    await clock.run(1)
    assert 1_000 == sum(task.done() and not task.cancelled() for task in tasks)
    limiter.pause(60)
    await clock.run(7)

    assert 0 == clock.timers
    assert 1_000 == sum(not task.cancelled() and task.exception() is not None for task in tasks)
    assert not others()


@pytest.mark.asyncio
@pytest.mark.parametrize("scope", ["loop", "process"])
async def test_max_wait_may_be_a_timedelta(scope: Any) -> None:
    """``pause()`` took a timedelta and ``max_wait`` only a number; both take both."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("1/s", burst=1), clock=clock, scope=scope)
    budget = Budget(clock=clock, requests=TokenBucket("1/s", burst=1))
    await limiter.acquire(max_wait=timedelta(0))
    async with budget.reserve(max_wait=timedelta(0)):
        pass
    for refused in (limiter.acquire(max_wait=timedelta(milliseconds=999)), budget.reserve(max_wait=timedelta(0)).__aenter__()):
        with pytest.raises(WaitTooLong):
            await refused
    with pytest.raises(ValueError, match=r"acquire\(max_wait\) must be 0 seconds or more"):
        await limiter.acquire(max_wait=timedelta(-1))
    with pytest.raises(TypeError, match=r"acquire\(max_wait\)"):
        await limiter.acquire(max_wait="1")  # type: ignore[arg-type]
