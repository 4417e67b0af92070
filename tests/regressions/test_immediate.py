"""Over a store, ``acquire(max_wait=0)`` asks once, and is granted what is due."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from helpers.driving import others
from helpers.stores import Process, RealServer, TimedClient, now
from redis.exceptions import ConnectionError as NoConnection

import aiorate
from aiorate import Budget, EngineUnavailable, KeyedLimiter, Limiter, LimiterClosed, LineFull, TokenBucket, WaitTooLong
from aiorate.redis import RedisLimiter

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


async def outcomes(limiter: Any, count: int, permits: int = 1) -> list[float | str]:
    """Return the wait of each call, or the name of its error."""

    async def one() -> float | str:
        try:
            waited: float = await limiter.acquire(permits, max_wait=0)
        except aiorate.LimiterError as error:
            return type(error).__name__
        return waited

    return await asyncio.gather(*[one() for _ in range(count)])


async def test_a_full_budget_is_granted(store: RealServer) -> None:
    """40 of 40 were refused on an unused budget, so every server answered 429 to everybody."""
    process = Process(store, "10/s", burst=20, latency=0.01)

    results = await outcomes(process.limiter, 40)
    assert [pytest.approx(0.02)] * 20 == results[:20]
    assert ["WaitTooLong"] * 20 == results[20:]
    assert pytest.approx(0.02) == now()
    assert (20, 20, 0) == tuple(getattr(process.limiter.statistics(), name) for name in ("granted", "refused", "waiting"))
    await process.stop()
    assert not others()


async def test_the_first_caller_asks_once(store: RealServer) -> None:
    """A refusal takes one question too, and the error says when to come again."""
    process = Process(store, "10/s", latency=0.01)
    await process.limiter.acquire(max_wait=0)
    calls = process.client.calls
    with pytest.raises(WaitTooLong, match=r"acquire\(1\) would wait 0\.0\d+ s, but max_wait is 0 s") as caught:
        await process.limiter.acquire(max_wait=timedelta(0))

    assert 1 == process.client.calls - calls
    assert pytest.approx(0.08, abs=0.011) == caught.value.wait
    await asyncio.sleep(caught.value.wait)
    assert pytest.approx(0.02, abs=0.005) == await process.limiter.acquire(max_wait=0)
    await process.stop()


@pytest.mark.parametrize("max_wait", [0.0005, 0.01, 0.039])
async def test_max_wait_shorter_than_a_round_trip_asks_once(store: RealServer, max_wait: float) -> None:
    """A store 40 ms away can grant nothing in 10 ms, so all callers were refused for ever, and nothing was asked."""
    process = Process(store, "10/s", burst=3, latency=0.02)
    await process.limiter.acquire()
    await asyncio.sleep(1)
    assert [pytest.approx(0.04)] * 3 == await asyncio.gather(*[process.limiter.acquire(max_wait=max_wait) for _ in range(3)])

    with pytest.raises(WaitTooLong, match=f"max_wait is {max_wait:g} s"):
        await process.limiter.acquire(max_wait=max_wait)
    await process.stop()


@pytest.mark.parametrize(("each", "seconds"), [(0.001, 2), (0.013, 10), (0.1, 10)])
async def test_refused_callers_cost_no_permit(store: RealServer, each: float, seconds: int) -> None:
    """A slot booked for a caller that has gone would lapse, so no caller would ever be granted under load."""
    process = Process(store, "5/s", burst=3)
    granted = 0
    for _ in range(round(seconds / each)):
        granted += "WaitTooLong" not in await outcomes(process.limiter, 1)
        await asyncio.sleep(each)

    assert 3 + 5 * seconds * 0.9 - 1 <= granted <= 3 + 5 * seconds + 1
    await process.stop()


async def test_large_requests_are_granted_whole(store: RealServer) -> None:
    """A part of what a request needs is not taken from the others, or five at a time would never be granted."""
    process, other = Process(store, "5/s", burst=5), Process(store, "5/s", burst=5)
    assert [0.0] == await outcomes(process.limiter, 1, 5)
    await asyncio.sleep(0.65)
    assert ["WaitTooLong"] == await outcomes(process.limiter, 1, 5)
    assert [0.0, "WaitTooLong"] == await outcomes(other.limiter, 2, 3)

    granted = 0
    for _ in range(200):
        granted += 5 * ("WaitTooLong" not in await outcomes(process.limiter, 1, 5))
        await asyncio.sleep(0.1)
    assert 5 * 20 * 0.9 <= granted <= 5 * 20 + 5
    await process.stop()
    await other.stop()


async def test_large_and_small_requests_share_one_call(store: RealServer) -> None:
    """They are answered in order, and a refused one does not hold up the others."""
    process = Process(store, "1/s", burst=10, latency=0.01)
    limiter = process.limiter
    tasks = [asyncio.create_task(limiter.acquire(permits, max_wait=0)) for permits in (3, 3, 5, 2, 2, 1, 1)]
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [True, True, False, True, True, False, False] == [isinstance(result, float) for result in results]
    assert 10 == limiter.statistics().granted
    await process.stop()


async def test_callers_that_wait_are_not_passed(store: RealServer) -> None:
    """A waiter in line comes first, so nothing is due for the next caller."""
    process = Process(store, "10/s", latency=0.01)
    process.ask(3)
    await asyncio.sleep(0.05)

    assert ["WaitTooLong"] * 2 == await outcomes(process.limiter, 2)
    assert pytest.approx(0.05, abs=0.021) == now()
    await asyncio.wait(process.tasks)
    assert [0.02, pytest.approx(0.12), pytest.approx(0.22)] == process.granted
    await process.stop()


async def test_waiters_and_immediate_callers_share_one_answer(store: RealServer) -> None:
    """The answer has a burst for all of them."""
    process = Process(store, "10/s", burst=5, latency=0.01)
    process.ask(2)
    results = asyncio.create_task(outcomes(process.limiter, 5))
    await asyncio.sleep(0.001)
    process.ask(1)

    assert [False] * 3 + [True] * 2 == [result == "WaitTooLong" for result in await results]
    await asyncio.wait(process.tasks)
    assert [0.02, 0.02] == process.granted[:2]
    await process.stop()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, "EngineUnavailable"),
        ({"on_unavailable": "wait"}, "WaitTooLong"),
        ({"on_unavailable": "local", "local_share": 0.5}, 0.0),
        ({"on_unavailable": "open"}, 0.0),
    ],
)
async def test_the_policy_decides_in_an_outage(store: RealServer, policy: dict[str, Any], expected: Any) -> None:
    """Within the grace nobody waits for the store, and after it the policy holds."""
    client = TimedClient(store)
    limiter = RedisLimiter(client, "x", "10/s", **policy)
    client.error = NoConnection()
    assert ["WaitTooLong"] == await outcomes(limiter, 1)
    assert 0 == now()
    waiting = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(2)

    assert [expected] == await outcomes(limiter, 1)
    client.error = None
    await asyncio.wait([waiting])
    await asyncio.sleep(1)
    assert [0.0] == await outcomes(limiter, 1)
    await limiter.aclose()


async def test_a_pause_refuses_at_once(store: RealServer) -> None:
    """Also a pause that begins while the answer is under way."""
    process = Process(store, "10/s", latency=0.1)
    asked = asyncio.create_task(outcomes(process.limiter, 1))
    await asyncio.sleep(0.05)
    process.limiter.pause(30)

    assert ["WaitTooLong"] == await asked
    assert pytest.approx(0.05) == now()
    with pytest.raises(WaitTooLong) as caught:
        await process.limiter.acquire(max_wait=0)
    assert pytest.approx(30, abs=0.3) == caught.value.wait
    await process.stop()


async def test_other_refusals_are_the_usual_ones(store: RealServer) -> None:
    """A full line, a closed limiter, a size of 0, a wrong type."""
    process = Process(store, "10/s", max_waiting=1, latency=0.01)
    waiting = asyncio.create_task(process.limiter.acquire())
    await asyncio.sleep(0)
    with pytest.raises(LineFull):
        await process.limiter.acquire(max_wait=0)
    await waiting
    with pytest.raises(ValueError, match="acquire"):
        await process.limiter.acquire(0, max_wait=0)
    for wrong in ("", False, []):
        with pytest.raises(TypeError, match="max_wait"):
            await process.limiter.acquire(max_wait=wrong)  # type: ignore[arg-type]
    await process.stop()
    with pytest.raises(LimiterClosed):
        await process.limiter.acquire(max_wait=0)


async def test_a_cancelled_caller_leaves_its_slot_to_the_next(store: RealServer) -> None:
    """A client that disconnects takes nothing with it."""
    process = Process(store, "10/s", burst=2, latency=0.01)
    tasks = [asyncio.create_task(process.limiter.acquire(max_wait=0)) for _ in range(3)]
    await asyncio.sleep(0.015)
    tasks[0].cancel()
    await asyncio.wait(tasks)

    assert [pytest.approx(0.02)] * 2 == [task.result() for task in tasks[1:]]
    await process.stop()


async def test_keys_ask_once_in_one_call(store: RealServer) -> None:
    """As in a server with a limit for each client."""
    client = TimedClient(store)
    client.latency = 0.01
    keyed = KeyedLimiter(lambda key: RedisLimiter(client, f"client:{key}", "10/s", burst=3))
    results = await asyncio.gather(*[keyed.acquire(key, max_wait=0) for key in range(20) for _ in range(5)], return_exceptions=True)

    assert 60 == sum(isinstance(result, float) for result in results)
    assert 40 == sum(isinstance(result, WaitTooLong) for result in results)
    assert pytest.approx(0.02) == now()
    await keyed.aclose()
    assert not others()


async def test_servers_answer_429_honestly(store: RealServer) -> None:
    """Several workers, each with a limit for each client, as in the how-to. Clients that return when told are served."""
    workers = [
        KeyedLimiter(lambda key, client=client: RedisLimiter(client, f"client:{key}", "5/s", burst=10))
        for client in (TimedClient(store), TimedClient(store), TimedClient(store))
    ]

    async def statuses(count: int) -> list[float]:
        """Send ``count`` requests in turn: 0 for a permit, else the seconds until the next try."""

        async def one(place: int) -> float:
            try:
                await workers[place % 3].acquire("ann", max_wait=0)
            except WaitTooLong as error:
                return error.wait
            return 0.0

        return await asyncio.gather(*[one(place) for place in range(count)])

    first = await statuses(40)
    assert 10 == first.count(0.0)
    assert all(0.19 <= wait <= 0.2 for wait in first if wait)
    for _ in range(20):
        await asyncio.sleep(0.2)
        again = await statuses(6)
        assert 1 == again.count(0.0)
        assert all(0.19 <= wait <= 0.2 for wait in again if wait)
    for worker in workers:
        await worker.aclose()


async def test_try_acquire_without_a_lease_is_an_error(store: RealServer) -> None:
    """It always returned False, with no error. With a lease it works."""
    limiter = RedisLimiter(TimedClient(store), "x", "1000/s")
    with pytest.raises(RuntimeError, match=r"acquire\(max_wait=0\).*lease=0\.05"):
        limiter.try_acquire()
    leased = RedisLimiter(TimedClient(store), "x", "1000/s", lease=0.05)
    assert not leased.try_acquire()
    await asyncio.sleep(0.001)

    assert leased.try_acquire()
    await limiter.aclose()
    await leased.aclose()


async def test_refusal_of_the_store_is_an_error(store: RealServer) -> None:
    """A wrong password is not "too many requests"."""
    store.send("SET", "aiorate:x", "hello")
    limiter = RedisLimiter(TimedClient(store), "x", "10/s")

    with pytest.raises(EngineUnavailable, match="the store refuses: WRONGTYPE"):
        await limiter.acquire(max_wait=0)
    await limiter.aclose()


@pytest.mark.parametrize("max_wait", [0, 0.0001])
@pytest.mark.parametrize("lease", [None, 0.05])
async def test_key_in_a_store_does_not_wait_for_its_shared_limit(store: RealServer, lease: float | None, max_wait: float) -> None:
    """It had its slot from the store, and then stood in the line of the shared limit until granted there."""
    client = TimedClient(store, latency=0.01)
    shared = Limiter(TokenBucket("1/min", burst=2)) if lease is None else RedisLimiter(client, "shared", "1/min", burst=2, lease=lease)
    keyed = KeyedLimiter(lambda key: RedisLimiter(client, f"key {key}", "100/s", burst=10), shared=shared)
    await keyed.acquire("ann")
    await keyed.acquire("ann", max_wait=1)
    begin = now()
    for _ in range(3):
        with pytest.raises(WaitTooLong):
            await keyed.acquire("ann", max_wait=max_wait)

    assert now() < begin + 0.1  # at most three answers
    assert 0 == keyed["ann"].statistics().waiting == shared.statistics().waiting
    await keyed.aclose()
    await shared.aclose()


async def test_max_wait_0_under_a_shared_limit_in_a_store_is_an_error(store: RealServer) -> None:
    """Below a shared limit in a store, every caller that would not wait was refused for ever."""
    shared = RedisLimiter(TimedClient(store), "shared", "100/s", burst=10)
    keyed = KeyedLimiter(lambda key: "1000/s", shared=shared)
    both = KeyedLimiter(lambda key: RedisLimiter(TimedClient(store), key, "1000/s"), shared=shared)
    budget = Budget(requests=shared, tokens="1000/s")

    for limits in (keyed, both):
        with pytest.raises(RuntimeError, match=r"acquire\(max_wait=0\): a shared RedisLimiter without a lease"):
            await limits.acquire("ann", max_wait=0)
    with pytest.raises(RuntimeError, match=r"try_acquire\(\): a shared RedisLimiter without a lease.*lease=0\.05"):
        keyed.try_acquire("ann")
    with pytest.raises(RuntimeError, match=r"reserve\(max_wait=0\): a shared RedisLimiter without a lease"):
        await budget.reserve(requests=1, tokens=1, max_wait=0).__aenter__()
    await keyed.acquire("ann", max_wait=0.1)
    assert 1 == shared.statistics().granted
    await both.aclose()
    await budget.aclose()
    await keyed.aclose()
    await shared.aclose()


async def test_lease_has_permits_for_callers_that_do_not_wait(store: RealServer) -> None:
    """The error tells users to write this."""
    shared = RedisLimiter(TimedClient(store), "shared", "100/s", burst=10, lease=0.05)
    keyed = KeyedLimiter(lambda key: "1000/s", shared=shared)
    await keyed.acquire("ann")
    await keyed.acquire("ann", max_wait=0.1)

    for _ in range(50):
        await asyncio.sleep(0.01)
        with suppress(WaitTooLong):
            await keyed.acquire("ann", max_wait=0)
    assert 25 < shared.statistics().granted
    await keyed.aclose()
    await shared.aclose()
