"""max_wait where nobody can say when a request will be granted: a timer fails requests after that time. In virtual time."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import others
from helpers.stores import Process, RealServer, TimedClient, now, stop
from redis.exceptions import ConnectionError as NoConnection

import aiorate
from aiorate import WaitTooLong
from aiorate.redis import RedisLimiter
from aiorate.testing import ManualClock

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


async def behind_others(store: RealServer, permits: int) -> tuple[Process, Process]:
    """A process that has used ``permits`` (10/s), and another that has not heard of it."""
    busy, other = Process(store), Process(store)
    busy.limiter.charge(permits)
    await asyncio.sleep(0.001)
    return busy, other


async def test_the_second_in_line_gives_up_and_the_first_goes_on(store: RealServer) -> None:
    """Its timer is its own, and its slot is that of the next."""
    busy, process = await behind_others(store, 100)
    process.ask()
    second = asyncio.create_task(process.limiter.acquire(max_wait=0.5))
    process.ask()
    await asyncio.wait([second])

    assert isinstance(second.exception(), WaitTooLong)
    assert pytest.approx(0.501, abs=1e-6) == now()
    assert (2, 1) == (process.limiter.statistics().waiting, process.limiter.statistics().refused)
    await asyncio.wait(process.tasks)
    assert [pytest.approx(10, abs=1e-3), pytest.approx(10.1, abs=1e-3)] == process.granted
    await stop(busy, process)


async def test_the_next_moves_up_at_once_when_the_first_gives_up(store: RealServer) -> None:
    """Of what it has gathered for a large request, the latest slot is there for a small one."""
    busy, process = await behind_others(store, 1)
    first = asyncio.create_task(process.limiter.acquire(5, max_wait=0.402))
    process.ask()
    await asyncio.wait([first, *process.tasks])

    assert isinstance(first.exception(), WaitTooLong)
    assert [pytest.approx(0.403, abs=1e-6)] == process.granted
    await stop(busy, process)


async def test_a_grant_within_max_wait_stands(store: RealServer) -> None:
    """No timer stays that would send somebody else away, and cancelling is cancelling."""
    process = Process(store)
    assert 0 == await process.limiter.acquire(max_wait=0.01)
    tasks = [asyncio.create_task(process.limiter.acquire(max_wait=0.35)) for _ in range(3)]
    await asyncio.sleep(0.15)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert [pytest.approx(0.1, abs=1e-3), pytest.approx(0.2, abs=1e-3)] == [tasks[0].result(), tasks[2].result()]
    process.ask(5)
    await asyncio.wait(process.tasks)

    assert 0 == process.limiter.statistics().refused
    assert pytest.approx(0.7, abs=1e-3) == now()
    await stop(process)


async def test_a_key_behind_a_shared_limit_that_cannot_tell(store: RealServer) -> None:
    """The key's own rate says at once, and the store is away."""
    client = TimedClient(store)
    shared = RedisLimiter(client, "all", "1000/s", on_unavailable="wait")
    keyed = aiorate.KeyedLimiter(lambda key: "1000/s", shared=shared)
    await keyed.acquire("a")
    client.error = NoConnection()
    for _ in range(2):
        began = now()
        with pytest.raises(WaitTooLong):
            await keyed.acquire("a", max_wait=0.1)
        assert pytest.approx(0.1, abs=2e-3) == now() - began
    client.error = None
    await asyncio.sleep(1)
    assert await keyed.acquire("a", max_wait=0.1) < 0.01
    await keyed.aclose()
    await shared.aclose()
    assert not others()


async def test_a_budget_of_which_one_part_cannot_tell(store: RealServer) -> None:
    """Both or neither: what the other part had is there for the next."""
    client = TimedClient(store)
    tokens = RedisLimiter(client, "tokens", "1000/s", burst=100, on_unavailable="wait")
    budget = aiorate.Budget(requests="10/s", tokens=tokens)
    client.error = NoConnection()
    with pytest.raises(WaitTooLong, match=r"reserve\(\) was not granted within max_wait \(0\.2 s\)"):
        async with budget.reserve(tokens=10, max_wait=0.2):
            pass
    assert pytest.approx(0.2, abs=1e-6) == now()
    client.error = None
    await asyncio.sleep(1)
    async with budget.reserve(tokens=10, max_wait=0.2):
        assert pytest.approx(1.2, abs=1e-2) == now()
    await tokens.aclose()
    assert not others()


async def test_max_wait_goes_by_a_clock_of_the_callers_own(store: RealServer) -> None:
    """Which is moved by hand."""
    clock, client = ManualClock(), TimedClient(store)
    limiter = RedisLimiter(client, "x", "10/s", on_unavailable="wait", clock=clock)
    client.error = NoConnection()
    waiting = asyncio.create_task(limiter.acquire(max_wait=0.2))
    await asyncio.sleep(10)
    clock.advance(0.199)
    await asyncio.sleep(0)
    assert not waiting.done()
    clock.advance(0.001)
    await asyncio.wait([waiting], timeout=5)

    assert isinstance(waiting.exception(), WaitTooLong)
    assert pytest.approx(10, abs=1e-6) == now()
    await limiter.aclose()


async def test_delay_and_max_wait_go_by_the_last_answer(store: RealServer) -> None:
    """The line included."""
    process = Process(store)
    process.ask(3)
    await asyncio.sleep(0.05)

    assert pytest.approx(0.25, abs=1e-3) == process.limiter.delay()
    with pytest.raises(aiorate.WaitTooLong):
        await process.limiter.acquire(max_wait=0.2)
    await process.limiter.acquire(max_wait=0.3)
    assert pytest.approx(0.3, abs=1e-3) == now()
    await stop(process)


async def test_max_wait_holds_where_only_the_store_knows_the_backlog(store: RealServer) -> None:
    """A newcomer does not know how far the others have booked, and learns it too late to be refused at once."""
    one, other = Process(store, "0.1/s"), Process(store, "0.1/s")
    await one.one()
    with pytest.raises(aiorate.WaitTooLong, match=r"acquire\(1\) was not granted within max_wait \(0\.5 s\)") as told:
        await other.limiter.acquire(max_wait=0.5)

    assert (0.5, 0.5) == (now(), told.value.max_wait)
    assert 10 == pytest.approx(told.value.wait, abs=0.01)
    with pytest.raises(aiorate.WaitTooLong, match=r"would wait 9\.5 s"):
        await other.limiter.acquire(max_wait=0.5)
    assert pytest.approx(9.5) == await other.limiter.acquire(max_wait=9.5)
    await stop(one, other)
