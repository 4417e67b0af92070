"""RedisBudget in virtual time: the real server is told what the loop's clock says, so every instant is exact.

Two budgets with a client each are two processes: they share only the store.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.driving import others
from helpers.stores import RealServer, TimedClient, now

from aiorate import TokenBucket, WaitTooLong
from aiorate.redis import RedisBudget

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


def process(store: RealServer, name: str = "x", **options: Any) -> RedisBudget:
    """A budget of another process, as far as the store knows."""
    return RedisBudget(TimedClient(store), name, **options)


async def granted(budget: RedisBudget, **amounts: int) -> float:
    """When the reservation was granted; its estimate stands."""
    async with budget.reserve(**amounts):
        return now()


async def test_reservations_go_at_the_rate_of_the_tightest(store: RealServer) -> None:
    budget = process(store, requests="10/s", tokens="1000/s")

    instants = [await granted(budget, tokens=amount) for amount in (50, 200, 50, 50)]

    assert [pytest.approx(instant, abs=1e-3) for instant in (0.0, 0.1, 0.3, 0.4)] == instants
    await budget.aclose()
    assert not others()


async def test_a_lease_says_which_dimension_it_waited_for(store: RealServer) -> None:
    budget = process(store, requests="10/s", tokens="100/s")

    async def limited_by(tokens: int) -> str | None:
        async with budget.reserve(tokens=tokens) as lease:
            return lease.limited_by

    assert [None, "tokens", "requests", "requests", "tokens"] == await asyncio.gather(*[limited_by(n) for n in (50, 5, 5, 50, 1)])
    await budget.aclose()


async def test_what_comes_back_is_granted_to_those_waiting(store: RealServer) -> None:
    one, other = process(store, tokens="10/s"), process(store, tokens="10/s")
    async with one.reserve(tokens=100) as lease:
        waiting = [asyncio.create_task(granted(each, tokens=1)) for each in (one, other)]
        await asyncio.sleep(1.0)
        assert not any(task.done() for task in waiting)
        lease.settle(tokens=5)

    assert max(await asyncio.gather(*waiting)) <= 1.5
    await one.aclose()
    await other.aclose()


async def test_a_cancelled_reservation_costs_nothing(store: RealServer) -> None:
    budget = process(store, requests="10/s")
    tasks = [asyncio.create_task(granted(budget)) for _ in range(4)]
    await asyncio.sleep(0.05)
    tasks[1].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)

    assert [pytest.approx(instant, abs=1e-3) for instant in (0.0, 0.1, 0.2)] == [each for each in done if isinstance(each, float)]
    await budget.aclose()


async def test_max_wait_of_0_asks_the_store_once(store: RealServer) -> None:
    one, other = process(store, tokens="10/s"), process(store, tokens="10/s")
    async with one.reserve(tokens=10, max_wait=0):
        pass
    with pytest.raises(WaitTooLong, match=r"reserve\(\) would wait"):
        await granted(other, max_wait=0)
    await asyncio.sleep(1.0)

    assert pytest.approx(1.0, abs=1e-3) == await granted(other, max_wait=0)
    await one.aclose()
    await other.aclose()


async def test_a_pause_holds_all_processes(store: RealServer) -> None:
    one, other = process(store, requests="10/s"), process(store, requests="10/s")
    await granted(one)
    one.pause(5)
    await asyncio.sleep(0.01)
    assert pytest.approx(5.0, abs=0.02) == await granted(other)

    other.pause(100)
    waiting = asyncio.create_task(granted(one))
    await asyncio.sleep(1)
    other.resume()
    assert await waiting <= 7.2
    await one.aclose()
    await other.aclose()


async def test_a_large_reservation_is_not_starved(store: RealServer) -> None:
    one = process(store, tokens=TokenBucket("10/s", burst=20))
    other = process(store, tokens=TokenBucket("10/s", burst=20))
    await granted(one, tokens=20)
    small = [asyncio.create_task(granted(one, tokens=1)) for _ in range(100)]
    await asyncio.sleep(0.3)

    assert await granted(other, tokens=20) <= 8.0
    for task in small:
        task.cancel()
    await asyncio.gather(*small, return_exceptions=True)
    await one.aclose()
    await other.aclose()


async def test_a_process_that_dies_holds_nobody_up_for_long(store: RealServer) -> None:
    """Neither its bookings nor the place of its large reservation, which the others let pass."""
    client = TimedClient(store)
    dead = RedisBudget(client, "x", tokens=TokenBucket("10/s", burst=20))
    other = process(store, tokens=TokenBucket("10/s", burst=20))
    await granted(dead, tokens=20)
    large = asyncio.create_task(granted(dead, tokens=20))
    await asyncio.sleep(0.1)
    client.hangs = True
    begin = now()

    assert await granted(other, tokens=1) - begin <= 2.0
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)
    await other.aclose()


async def test_a_store_that_comes_back_empty_is_told_what_was_booked(store: RealServer) -> None:
    one, other = process(store, tokens="100/s"), process(store, tokens="100/s")
    await granted(one, tokens=200)
    store.send("FLUSHALL")
    waiting = asyncio.create_task(granted(one, tokens=1))
    await asyncio.sleep(0.01)

    assert 2.0 <= await granted(other, tokens=1)
    assert 2.0 <= await waiting
    await one.aclose()
    await other.aclose()
