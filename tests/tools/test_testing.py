"""Help for users' tests: a loop in virtual time, a manual clock, limits that begin as new, a simulation."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from aiorate import (
    AllOf,
    Budget,
    BurstCompensation,
    CalendarWindow,
    KeyedBudget,
    KeyedLimiter,
    Limiter,
    Rate,
    Scheduler,
    SlidingWindow,
    TokenBucket,
)
from aiorate.redis import RedisLimiter
from aiorate.testing import ManualClock, VirtualLoop, reset_limiters, simulate

SECOND = 1_000_000_000


def run(main: Any) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


@pytest.mark.asyncio
async def test_a_manual_clock_runs_timers_and_tasks_at_their_instants() -> None:
    """Timers of one instant fire in the order in which they were set; a cancelled one does not. Nobody waits."""
    clock, log = ManualClock(), list[tuple[str, int]]()
    for name, at in (("c", 30), ("a", 10), ("b", 10), ("off", 20)):
        timer = clock.call_at(at, lambda name=name: log.append((name, clock.now())))  # type: ignore[misc]
    timer.cancel()
    clock.advance(2e-8)
    assert (log, clock.now(), clock.timers) == ([("a", 10), ("b", 10)], 20, 1)
    clock.set(40)
    assert (log.pop(), clock.timers) == (("c", 40), 0)
    limiter = Limiter("4/s", clock=clock)
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(4)]
    for task in tasks:
        task.add_done_callback(lambda _: log.append(("task", clock.now())))
    await clock.run(10)
    assert [at - 40 for _, at in log[2:]] == [0, SECOND // 4, SECOND // 2, 3 * SECOND // 4]


def test_virtual_time_is_exact_for_centuries() -> None:
    """asyncio runs timers due within 1 ns. After 194 days that is less than the next float, so no timer would be due."""

    async def main(years: int) -> list[float]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(years * 365 * 86_400)
        limiter, begin, instants = Limiter(TokenBucket("1/day", burst=1)), loop.time(), []
        for _ in range(9):
            await limiter.acquire()
            instants.append(round(loop.time() - begin, 3))
        return instants

    for years in (0, 1, 30, 200):
        assert run(main(years)) == [86_400.0 * day for day in range(9)]


def test_virtual_time_waits_for_threads_and_not_for_what_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of it would run for ever. From CPython 3.12 on, asyncio waits 300 s for threads, which would pass at once."""

    async def spin() -> None:
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.2)
        while True:
            await asyncio.sleep(0)

    monkeypatch.setattr(VirtualLoop, "_MOST_TURNS", 1000)
    with pytest.raises(RuntimeError, match="something spins"):
        run(spin())


def test_simulate_gives_the_instants_of_one_line() -> None:
    bucket = TokenBucket("10/s", burst=2)
    assert simulate(bucket, [0, 0, 0, (0, 2), SECOND]) == [0, 0, SECOND // 10, 3 * SECOND // 10, SECOND]
    edge, paced = CalendarWindow("2/s", "UTC", origin=0), BurstCompensation("4/s")  # which makes up for 20 ms of the wait for the edge
    assert simulate(AllOf(edge, paced), [0] * 4) == [0, SECOND // 4, SECOND, SECOND + SECOND // 4 - SECOND // 50]
    for wrong in ([5, 4], [(1, 2, 3)], [0.5]):
        with pytest.raises((TypeError, ValueError), match="simulate"):
            simulate(bucket, wrong)  # type: ignore[arg-type]


def test_grants_after_a_reset_are_those_of_a_new_limiter() -> None:
    """To the nanosecond, whatever loop used it before and was closed with requests in line: no real time counts."""

    async def granted_at(limiter: Limiter) -> list[float]:
        return [(await limiter.acquire(), asyncio.get_running_loop().time())[1] for _ in range(10)]

    async def wait(limiter: Limiter) -> None:
        await asyncio.wait([asyncio.ensure_future(limiter.acquire()) for _ in range(30)], timeout=0.1)

    for strategy in (lambda: "2/s", lambda: TokenBucket("2/s", 3), lambda: SlidingWindow("2/s")):
        fresh, limiter = run(granted_at(Limiter(strategy()))), Limiter(strategy())
        for use in (lambda: asyncio.sleep(0), limiter.acquire, lambda limiter=limiter: wait(limiter)):  # type: ignore[misc]
            for runner in (run, asyncio.run):
                runner(use())
                reset_limiters(limiter)
                assert run(granted_at(limiter)) == fresh
                reset_limiters(limiter)


def test_keys_are_forgotten_and_what_they_share_is_reset() -> None:
    """At every level. Keys in use or changed are forgotten too, and who holds the old limit of a key has a full one as well."""
    company = Limiter(TokenBucket("1/h", 2))
    teams = KeyedLimiter(lambda team: TokenBucket("1/h", 1), shared=company)
    users = KeyedLimiter(lambda user: TokenBucket("1/h", 1), shared=lambda user: teams[user[0]])
    held = users["h1"]
    users["changed"].set_rate("1/s")
    used = [users.try_acquire(user) for user in ("h1", "h2", "b1", "c1")]
    reset_limiters(users)
    assert (len(users), company.statistics().available, users["changed"].rate) == (0, 2, Rate.parse("1/h"))
    assert [users.try_acquire(user) for user in ("h1", "h2", "b1", "c1")] == used == [True, False, True, False]
    reset_limiters(users)
    assert held.try_acquire()


def test_budgets_and_what_they_share_are_reset() -> None:
    team, requests = Budget(tokens=TokenBucket("1/h", 100)), Limiter(TokenBucket("1/h", 5))
    first, second = Budget(requests=requests, tokens=TokenBucket("1/h", 50)), KeyedBudget(lambda key: Budget(calls="1/h"), shared=team)

    async def use() -> list[float]:
        async with first.reserve(requests=5, tokens=50), second.reserve("key", tokens=100):
            return [first.available("requests"), first.available("tokens"), team.available("tokens")]

    assert run(use()) == [0, 0, 0]
    first.pause(60)
    reset_limiters(first, second)
    assert [first.available("requests"), first.available("tokens"), team.available("tokens")] == [5, 50, 100]
    assert (first.statistics().granted, len(second), run(use())) == (0, 0, [0, 0, 0])


def test_requests_that_wait_in_an_open_loop_move_up() -> None:
    """As where an application runs in one loop for all tests."""
    limiter = Limiter(TokenBucket("1/h", 2))
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        tasks = [runner.get_loop().create_task(limiter.acquire()) for _ in range(4)]
        for granted in ([True, True, False, False], [True] * 4):
            runner.run(asyncio.sleep(0.001))
            assert [task.done() for task in tasks] == granted
            reset_limiters(limiter)


def test_a_place_that_a_dead_test_held_is_free() -> None:
    """Its loop was closed with a task inside, which somebody still knows. In a loop that is open, whoever is inside keeps the place."""
    limiter = KeyedLimiter(lambda key: Limiter("1/h", max_concurrency=1), shared=Limiter("1/h", max_concurrency=1))

    async def inside() -> bool:
        async with limiter("key"):
            return await asyncio.sleep(3600, True)

    for close in (False, True):
        loop = VirtualLoop()
        loop.set_exception_handler(lambda loop, context: None)  # which would complain that a task is pending
        task = loop.create_task(inside())
        loop.run_until_complete(asyncio.sleep(1))
        if close:
            loop.close()
        reset_limiters(limiter)
        if close:
            assert run(inside())
            del task
        else:
            other = loop.create_task(inside())
            loop.run_until_complete(asyncio.sleep(1))
            assert not any((task.done(), other.done()))
            loop.run_until_complete(asyncio.gather(task, other))
            loop.close()


def test_limits_that_cannot_be_reset_say_so() -> None:
    """One of a loop that runs in another thread, one in a store, a strategy without the method. Nothing is reset for a wrong argument."""

    class WithoutReset(TokenBucket):
        reset = Scheduler.reset  # type: ignore[assignment]

    used, ready, over = Limiter("1/h"), threading.Event(), threading.Event()

    async def serve() -> None:
        await used.acquire()
        ready.set()
        await asyncio.get_running_loop().run_in_executor(None, over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        for limit in (used, RedisLimiter("redis://localhost:1", "name", "1/s"), Limiter(WithoutReset("1/s", 1))):
            with pytest.raises(RuntimeError, match=r"reset\(\)|create it with scope='process'"):
                reset_limiters(limit)
    finally:
        over.set()
        thread.join()
    limiter = Limiter("1/h")
    limiter.try_acquire()
    wrong: dict[str, Any] = {"not list": [limiter], "not dict": {"a": limiter}, "not str": "10/s", "the class Limiter": Limiter}
    for hint, other in wrong.items():
        with pytest.raises(TypeError, match=hint):
            reset_limiters(limiter, other)
    assert not limiter.try_acquire()
