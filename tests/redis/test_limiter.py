"""RedisLimiter in virtual time: the real server is told what the loop's clock says, so every instant is exact.

Two limiters with a client each are two processes: they share only the store.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.driving import others
from helpers.server import most_in_any_window
from helpers.stores import Process, RealServer, TimedClient, now, stop

import aiorate
from aiorate import TokenBucket, Waited, WaitTooLong
from aiorate.redis import RedisBudget, RedisLimiter

pytestmark = [pytest.mark.asyncio(loop_factories=["virtual"]), pytest.mark.usefixtures("stopped")]


async def test_a_line_is_served_at_the_rate(store: RealServer) -> None:
    process = Process(store, "1000/s")
    await asyncio.gather(*process.ask(100))

    assert [pytest.approx(index / 1000, abs=1e-4) for index in range(100)] == process.granted
    assert process.client.calls <= 12
    assert "shared" == process.limiter.statistics().state


async def test_it_is_a_limiter(store: RealServer) -> None:
    process = Process(store)

    @process.limiter
    async def called() -> float:
        return now()

    assert isinstance(process.limiter, aiorate.Limiter)
    async with process.limiter as waited:
        assert 0 <= waited < 0.001
    assert pytest.approx(0.1, abs=1e-4) == await called()
    async with process.limiter.of(2):
        assert pytest.approx(0.3, abs=1e-4) == now()
    async for slot in process.limiter.slots():
        assert pytest.approx(0.4 + slot.index / 10, abs=1e-3) == now()
        if slot.index == 2:
            break


async def test_two_processes_share_the_rate_evenly(store: RealServer) -> None:
    processes = [Process(store, "1000/s") for _ in range(4)]
    for process, tasks in zip(processes, (150, 15, 15, 15), strict=True):
        process.load(tasks)
    await asyncio.sleep(1.0)

    instants = [instant for process in processes for instant in process.granted]
    assert 990 <= len(instants) <= 1006
    assert most_in_any_window(instants, 0.1) <= 106
    assert [pytest.approx(0.25, abs=0.05)] * 4 == [len(process.granted) / len(instants) for process in processes]
    assert sum(process.client.calls for process in processes) <= 0.15 * len(instants)


async def test_a_token_bucket_is_a_limit(store: RealServer) -> None:
    """Its burst at once, and then one after the other; beside a slower rate, both hold."""
    process = Process(store, TokenBucket("10/s", burst=3))
    await asyncio.gather(*process.ask(5))
    assert [pytest.approx(instant, abs=1e-3) for instant in (0, 0, 0, 0.1, 0.2)] == process.granted
    await stop(process)

    store.send("FLUSHALL")
    process, began = Process(store, [TokenBucket("10/s", burst=3), TokenBucket("1/s", burst=4)]), now()
    await asyncio.gather(*process.ask(6))
    assert [pytest.approx(began + instant, abs=1e-3) for instant in (0, 0, 0, 0.1, 1, 2)] == process.granted


# Giving up.


async def test_a_slot_of_a_caller_that_gives_up_is_the_next_ones(store: RealServer) -> None:
    process = Process(store)
    tasks = process.ask(4)
    await asyncio.sleep(0.05)
    tasks[1].cancel()
    await asyncio.wait(tasks)

    assert [pytest.approx(index / 10, abs=1e-4) for index in (0, 1, 2)] == process.granted


async def test_a_caller_cancelled_as_it_is_granted_gives_the_slot_back(store: RealServer) -> None:
    process = Process(store)
    await process.one()
    tasks = process.ask(2)
    await asyncio.sleep(0.05)
    asyncio.get_running_loop().call_later(0.05, tasks[0].cancel)  # which is when its slot is due
    await asyncio.wait(tasks)

    assert tasks[0].cancelled()
    assert [pytest.approx(0, abs=1e-4), pytest.approx(0.1, abs=2e-4)] == process.granted


async def test_callers_that_all_give_up_in_time_cost_no_rate(store: RealServer) -> None:
    processes = [Process(store, "100/s") for _ in range(4)]
    for process in processes:
        process.load(25, patience=0.2)
    await asyncio.sleep(4.0)

    total = sum(len(process.granted) for process in processes)
    assert 0.98 * 400 <= total <= 402


async def test_a_crowd_of_one_process_does_not_delay_another(store: RealServer) -> None:
    busy, other = Process(store, "1000/s"), Process(store, "1000/s")
    busy.ask(4_000)
    await asyncio.sleep(1.0)
    began = now()
    await other.one()

    assert other.granted[0] - began <= 0.2


# Several permits, several rates.


async def test_a_large_request_gathers_its_slots(store: RealServer) -> None:
    for horizon in (0.001, 0.02, 1.0):
        store.send("FLUSHALL")
        process, began = Process(store, "100/s", horizon=horizon), now()
        process.ask(1, permits=10)
        process.ask(1)
        await asyncio.wait(process.tasks)

        assert [pytest.approx(began + due, abs=2e-3) for due in (0.09, 0.1)] == process.granted, horizon
        await stop(process)


# Leases.


async def test_try_acquire_needs_a_lease(store: RealServer) -> None:
    process = Process(store, "1000/s")
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"acquire\(max_wait=0\).*lease="):
            process.limiter.try_acquire()
        await asyncio.sleep(0.01)

    assert 0 == process.client.calls


async def test_a_lease_has_permits_ready(store: RealServer) -> None:
    process = Process(store, "1000/s", lease=0.05, horizon=0.05)
    taken: list[float] = []
    for _ in range(4_000):
        if process.limiter.try_acquire():
            taken.append(now())
        await asyncio.sleep(0.0005)

    assert 0.95 * 2000 <= len(taken) <= 2000 + 51
    assert most_in_any_window(taken, 0.5) <= (process.limiter.bound(0.5) or 0)
    assert process.client.calls <= 0.06 * len(taken)


# Limits over a limiter.


async def test_a_budget_takes_limits_that_processes_share(store: RealServer) -> None:
    """Requests of this process and tokens of all, both or neither; all processes owe what a request used more."""
    process, other = Process(store, "1000/s", burst=100), Process(store, "1000/s", burst=100)
    budget = aiorate.Budget(requests="10/s", tokens=process.limiter)
    async with asyncio.timeout(10):
        for _ in range(3):
            async with budget.reserve(tokens=100) as lease:
                lease.settle(tokens=150)
    await asyncio.sleep(0.01)
    await other.one()

    assert 300 == process.limiter.statistics().granted
    assert 150 == process.limiter.statistics().charged
    assert pytest.approx(0.35, abs=0.02) == now()


async def test_keys_behind_a_shared_limit_of_a_store(store: RealServer) -> None:
    client = TimedClient(store)
    shared = RedisLimiter(client, "all", "10/s")
    keyed = aiorate.KeyedLimiter(lambda key: RedisLimiter(client, f"key:{key}", "5/s"), shared=shared)
    granted: list[float] = []

    async def one(key: int) -> None:
        await keyed.acquire(key)
        granted.append(now())

    async with asyncio.timeout(20):
        await asyncio.gather(*[one(key) for key in range(4) for _ in range(5)])
    assert 20 == len(granted)
    assert most_in_any_window(granted, 1.0) <= 12
    assert now() <= 4.0
    await keyed.aclose()
    await shared.aclose()
    assert not others()


async def test_a_redis_limiter_tells_what_callers_waited(store: RealServer) -> None:
    """on_wait: also of the requests that wait for one answer, and not of those that it refuses."""
    told: list[Waited] = []
    limiter = RedisLimiter(TimedClient(store, latency=0.01), "api", "10/s", on_wait=told.append)

    waited = await asyncio.gather(*(limiter.acquire() for _ in range(4)))
    with pytest.raises(WaitTooLong):
        await limiter.acquire(max_wait=0)
    await asyncio.sleep(1)
    waited.append(await limiter.acquire(max_wait=0))
    await limiter.aclose()

    assert waited == [each.seconds for each in told]
    assert 5 == len(told)
    assert {("api", 1, None)} == {(each.name, each.permits, each.limited_by) for each in told}


# max_wait.


async def test_delay_and_max_wait_go_by_the_last_answer(store: RealServer) -> None:
    process = Process(store)
    process.ask(3)
    await asyncio.sleep(0.05)

    assert pytest.approx(0.25, abs=1e-3) == process.limiter.delay()
    with pytest.raises(aiorate.WaitTooLong):
        await process.limiter.acquire(max_wait=0.2)
    await process.limiter.acquire(max_wait=0.3)
    assert pytest.approx(0.3, abs=1e-3) == now()


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


class Starts:
    """A clock that jumps by a second at the reading after the next, once it is armed: the process stood still."""

    armed = 0
    jumped = 0

    def now(self) -> int:
        self.armed -= 1
        if not self.armed:
            self.jumped += 10**9
        return round(now() * 1e9) + self.jumped


async def test_max_wait_of_0_is_asked_again_if_the_process_stood_still(store: RealServer) -> None:
    """The slot that the answer brought has lapsed then. A caller of a full bucket was refused."""
    clock = Starts()
    client = TimedClient(store)
    limiter = RedisLimiter(client, "x", TokenBucket("100/s", burst=20), clock=clock)
    answered = client.execute_command

    async def then_stand_still(*args: Any, **options: Any) -> Any:
        reply = await answered(*args, **options)
        clock.armed = 2 if client.calls == 1 else 0
        return reply

    client.execute_command = then_stand_still  # type: ignore[method-assign]
    assert isinstance(await limiter.acquire(max_wait=0), float)
    assert 2 == client.calls
    await limiter.aclose()


async def test_several_rates_are_asked_once(store: RealServer) -> None:
    """max_wait=0: what all of them have now is granted whole, and more is refused."""
    limiter = RedisLimiter(TimedClient(store), "api", ["10/s", "100/min"], burst=3)
    assert isinstance(await limiter.acquire(2, max_wait=0), float)
    for permits in (2, 3):
        with pytest.raises(WaitTooLong):
            await limiter.acquire(permits, max_wait=0)
    assert isinstance(await limiter.acquire(max_wait=0), float)
    await limiter.aclose()


# Budgets.


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


async def test_processes_have_the_whole_rate_of_a_budget_in_few_calls(store: RealServer) -> None:
    """However far the store is: what comes back is told with the next question, and not by one of its own."""
    for latency in (0.0002, 0.03):
        store.send("FLUSHALL")
        clients = [TimedClient(store, latency=latency) for _ in range(4)]
        budgets = [RedisBudget(client, "x", requests="500/s", tokens="500_000/s") for client in clients]
        instants: list[float] = []

        async def work(budget: RedisBudget, instants: list[float] = instants) -> None:
            while True:
                async with budget.reserve(tokens=1500) as lease:
                    lease.settle(tokens=750)
                instants.append(now())

        tasks = [asyncio.create_task(work(budget)) for budget in budgets for _ in range(50)]
        await asyncio.sleep(1)
        calls, begin = sum(client.calls for client in clients), now()
        await asyncio.sleep(2)
        count = sum(instant >= begin for instant in instants)
        assert count >= 0.98 * 1000, latency
        assert sum(client.calls for client in clients) - calls <= 0.15 * count, latency
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for budget in budgets:
            await budget.aclose()


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


async def test_max_wait_of_0_asks_the_store_once(store: RealServer) -> None:
    one, other = process(store, tokens="10/s"), process(store, tokens="10/s")
    async with one.reserve(tokens=10, max_wait=0):
        pass
    with pytest.raises(WaitTooLong, match=r"reserve\(\) was not granted"):
        await granted(other, max_wait=0)
    await asyncio.sleep(1.0)

    assert pytest.approx(1.0, abs=1e-3) == await granted(other, max_wait=0)
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
