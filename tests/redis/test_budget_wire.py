"""RedisBudget over real connections, in one event loop after the other, in a child process, and in a loop that is late."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic_ns
from typing import Any

import pytest
import redis.asyncio
import trio
import valkey.asyncio
from helpers.driving import LONG, one_loop, others
from helpers.forks import program
from helpers.loops import LeapingLoop
from helpers.platforms import needs_fork
from helpers.stores import RealServer, TimedClient, now

from aiorate import KeyedBudget, WaitTooLong
from aiorate.redis import RedisBudget, RedisLimiter

SOURCES: dict[str, Any] = {"url": str, "redis-py": redis.asyncio.Redis.from_url, "valkey-py": valkey.asyncio.Valkey.from_url}


async def reserve(budget: RedisBudget, tokens: int = 10, used: int = 5) -> float:
    """When it was granted."""
    async with budget.reserve(tokens=tokens) as lease:
        granted = now()
        lease.settle(tokens=used)
    return granted


@pytest.mark.asyncio
@pytest.mark.parametrize("source", SOURCES)
async def test_it_works_through_every_client(store: RealServer, source: str) -> None:
    """On asyncio and uvloop."""
    client = SOURCES[source](store.url)
    budget = RedisBudget(client, "x", requests="1000/s", tokens="100_000/s")
    async with asyncio.timeout(LONG):
        await asyncio.gather(*[reserve(budget) for _ in range(100)])
        await reserve(budget)

    assert 101 == budget.statistics().granted
    await budget.aclose()
    assert not others()
    if source != "url":
        await client.aclose()


@one_loop
async def test_budgets_of_a_client_are_asked_for_in_one_call(store: RealServer) -> None:
    """With its limiters, whatever their scripts: over one connection."""
    client = redis.asyncio.Redis.from_url(store.url)
    keyed = KeyedBudget(lambda key: RedisBudget(client, f"key:{key}", requests="1000/s", tokens="100_000/s"))
    limiter = RedisLimiter(client, "limiter", "1000/s")

    async def one(key: int) -> None:
        async with keyed.reserve(key, tokens=3):
            pass

    async with asyncio.timeout(LONG):
        await asyncio.gather(*[one(key) for key in range(20)], limiter.acquire())
    assert 21 == len(store.send("KEYS", "*").split()) or store.calls() >= 21
    assert 1 == sum("evalsha" in line or "cmd=eval" in line for line in store.send("CLIENT", "LIST").splitlines())
    await keyed.aclose()
    await limiter.aclose()
    await client.aclose()


def test_one_budget_serves_one_loop_after_the_other(store: RealServer) -> None:
    """A script that calls asyncio.run() more than once."""
    budget = RedisBudget(store.url, "x", requests="100/s", tokens="1000/s")

    async def twice() -> int:
        await asyncio.gather(reserve(budget), reserve(budget))
        return budget.statistics().granted

    assert [2, 4] == [asyncio.run(twice()) for _ in range(2)]


def test_under_trio_there_is_an_error(store: RealServer) -> None:
    """Its client is asyncio's."""
    budget = RedisBudget(store.url, "x", tokens="100/s")

    with pytest.raises(RuntimeError, match="asyncio and uvloop"):
        trio.run(reserve, budget)


@needs_fork
def test_a_child_process_asks_by_itself(store: RealServer) -> None:
    """The parent's bookings, and what came back there, are the parent's."""
    printed = program(
        """
from aiorate.redis import RedisBudget

budget = RedisBudget(URL, "x", requests="1000/s", tokens="10_000/s")


async def work(count):
    async def one():
        async with budget.reserve(tokens=10) as lease:
            lease.settle(tokens=4)
    await asyncio.gather(*[one() for _ in range(count)])
    return budget.statistics().granted


async def main():
    waiting = asyncio.create_task(work(30))
    await asyncio.sleep(0.01)
    in_child(lambda: print(asyncio.run(work(20)) >= 20))
    print(await waiting)
    await budget.aclose()


asyncio.run(main())
""",
        URL=store.url,
    )
    assert ["True", "30"] == printed.split()


@pytest.mark.asyncio(loop_factories=["leaping"])
async def test_bookings_that_a_late_loop_missed_come_back(store: RealServer) -> None:
    """They serve others, and this process books again."""
    late, other = [RedisBudget(TimedClient(store), "x", requests="100/s", tokens="1000/s") for _ in range(2)]
    waiting = [asyncio.create_task(reserve(late, used=10)) for _ in range(20)]
    while not late.statistics().granted:
        await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, LeapingLoop)
    began = now()
    for _ in range(20):
        await loop.leap(0.5)

    granted = await asyncio.gather(*waiting, reserve(other))
    assert len(granted) == 21
    assert max(granted) - began <= 11
    await late.aclose()
    await other.aclose()


def test_a_budget_of_the_process_serves_threads_and_loops(store: RealServer) -> None:
    """Through one connection, in synchronous code and in event loops at once, within both rates."""
    before = threading.enumerate()  # threads of other tests
    budget = RedisBudget(store.url, "x", requests="200/s", tokens="2000/s", scope="process")
    granted: list[int] = []

    def in_a_thread() -> None:
        for _ in range(10):
            with budget.reserve(tokens=10) as lease:
                granted.append(monotonic_ns())
                lease.settle(tokens=5)

    async def in_a_loop() -> None:
        async def one() -> None:
            async with budget.reserve(tokens=10) as lease:
                granted.append(monotonic_ns())
                lease.settle(tokens=5)

        await asyncio.gather(*[one() for _ in range(10)])

    def at_once() -> None:
        for _ in range(2):
            with budget.reserve(tokens=100_000, max_wait=0):
                granted.append(monotonic_ns())

    threads = [threading.Thread(target=target) for target in (in_a_thread, in_a_thread, lambda: asyncio.run(in_a_loop()))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)

    assert 30 == len(granted) == budget.statistics().granted
    assert max(granted) - min(granted) >= 29 / 200 * 1e9 * 0.95
    with pytest.raises(WaitTooLong, match=r"reserve\(\) would wait"):
        at_once()
    asyncio.run(budget.aclose())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("aiorate") and thread not in before]
