"""Help for users' tests: a loop in virtual time, a manual clock, limits that begin as new, a simulation."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from aiorate import Budget, BurstCompensation, KeyedBudget, KeyedLimiter, Limiter, Rate, Scheduler, SlidingWindow, TokenBucket
from aiorate.adaptive import AdaptiveRate, adaptive_of
from aiorate.redis import RedisLimiter
from aiorate.testing import ManualClock, VirtualLoop, reset_limiters, simulate

SECOND = 1_000_000_000


def run(main: Any) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def test_timers_fire_in_order_at_their_instants() -> None:
    """Timers of one instant fire in the order in which they were set; a cancelled one does not."""
    clock, log = ManualClock(5), list[tuple[str, int]]()
    for name, at in (("c", 30), ("a", 10), ("b", 10), ("off", 20)):
        timer = clock.call_at(at, lambda name=name: log.append((name, clock.now())))  # type: ignore[misc]
    timer.cancel()

    clock.advance(2e-8)
    assert (log, clock.now(), clock.timers) == ([("a", 10), ("b", 10)], 25, 1)
    clock.set(40)
    assert (log[2:], clock.timers) == ([("c", 40)], 0)


@pytest.mark.asyncio
async def test_a_run_lets_tasks_run_at_their_instants() -> None:
    """On a real loop: no waiting, and each task sees the instant it was woken for."""
    clock, seen = ManualClock(), []
    limiter = Limiter("4/s", clock=clock)

    async def worker() -> None:
        for _ in range(4):
            await limiter.acquire()
            seen.append(clock.now())

    task = asyncio.ensure_future(worker())
    await clock.run(10)

    assert task.done()
    assert seen == [0, SECOND // 4, SECOND // 2, 3 * SECOND // 4]
    assert clock.now() == 10 * SECOND


def test_grants_in_virtual_time_are_exact_at_any_hour() -> None:
    """To the nanosecond: the loop's time is a float, and must not round an instant to another. A limiter needs no other clock."""

    async def main() -> None:
        loop, limiter = asyncio.get_running_loop(), Limiter(BurstCompensation("7/s"))
        await asyncio.sleep(123_456.789)
        await limiter.acquire()
        start = round(loop.time() * SECOND)
        for k in range(1, 200):
            await limiter.acquire()
            assert abs(round(loop.time() * SECOND) - start - -(-k * SECOND // 7)) <= 1

    run(main())


def test_virtual_time_advances_despite_float_rounding() -> None:
    """asyncio runs timers due within 1 ns. After 194 days that is less than the next float, so no timer would be due."""

    async def main(years: int) -> list[float]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(years * 365 * 86_400)
        limiter = Limiter(TokenBucket("1/day", burst=1))
        begin, instants = loop.time(), []
        for _ in range(40):
            await limiter.acquire()
            instants.append(round(loop.time() - begin, 3))
        return instants

    for years in (1, 30, 200):
        assert run(main(years)) == [86_400.0 * day for day in range(40)]


def test_code_that_spins_in_virtual_time_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a test of it would run for ever."""
    monkeypatch.setattr(VirtualLoop, "_MOST_TURNS", 1000)

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="something spins"):
        run(spin())


def test_closing_a_virtual_loop_waits_for_threads() -> None:
    """From CPython 3.12 on, asyncio waits 300 s for them, which would pass at once in virtual time."""

    async def main() -> None:
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.2)

    run(main())


def test_simulate_gives_the_instants_of_one_line() -> None:
    """As a limiter on a perfect loop would grant them. Wrong requests are errors."""
    bucket = TokenBucket("10/s", burst=2)
    assert simulate(bucket, [0, 0, 0, (0, 2), SECOND]) == [0, 0, SECOND // 10, 3 * SECOND // 10, SECOND]
    for scheduler, requests in (("10/s", [0]), (bucket, [5, 4]), (bucket, [(1, 2, 3)]), (bucket, [0.5])):
        with pytest.raises((TypeError, ValueError), match="simulate"):
            simulate(scheduler, requests)  # type: ignore[arg-type]


def test_grants_after_a_reset_are_those_of_a_new_limiter() -> None:
    """To the nanosecond, whatever loop it was used in before: real time between two tests does not count."""

    async def granted_at(limiter: Limiter) -> list[float]:
        return [(await limiter.acquire(), asyncio.get_running_loop().time())[1] for _ in range(10)]

    for strategy in (lambda: "2/s", lambda: TokenBucket("2/s", 3), lambda: SlidingWindow("2/s")):
        fresh, limiter = run(granted_at(Limiter(strategy()))), Limiter(strategy())
        reset_limiters(limiter)  # before it was ever used
        assert run(granted_at(limiter)) == fresh
        reset_limiters(limiter)
        asyncio.run(limiter.acquire())
        reset_limiters(limiter)
        assert run(granted_at(limiter)) == fresh


def test_a_reset_ends_debt_pause_and_counts() -> None:
    """A test must not depend on what another one did to a limiter that both use. A manual clock is kept."""
    for clock in (None, ManualClock()):
        limiter = Limiter(TokenBucket("1/h", 2), max_concurrency=1, clock=clock)
        limiter.try_acquire()
        limiter.charge(100)
        limiter.pause(3600)

        reset_limiters(limiter)

        assert [limiter.try_acquire() for _ in range(3)] == [True, True, False]
        assert (limiter.statistics().granted, limiter.statistics().charged) == (2, 0)
    assert clock is not None
    clock.advance(3600)
    assert limiter.try_acquire()


def test_requests_that_wait_in_a_dead_loop_are_forgotten() -> None:
    """Whether their loop was closed properly or just left."""
    limiter = Limiter(TokenBucket("1/h", 1))

    async def wait() -> None:
        await asyncio.wait([asyncio.ensure_future(limiter.acquire()) for _ in range(3)], timeout=1)

    def end(loop: VirtualLoop) -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    left, closed = VirtualLoop(), VirtualLoop()
    left.run_until_complete(wait())
    reset_limiters(limiter)
    closed.run_until_complete(wait())
    end(closed)
    reset_limiters(limiter)

    assert run(limiter.acquire()) == 0.0
    assert limiter.statistics().waiting == 0
    end(left)


def test_time_passes_after_a_reset_without_a_loop() -> None:
    limiter = Limiter("1000/s")
    run(limiter.acquire())
    reset_limiters(limiter)

    while limiter.statistics().granted < 3:  # ends only if time passes
        limiter.try_acquire()


def test_keys_are_forgotten_and_what_they_share_is_reset() -> None:
    """At every level. Keys in use or changed are forgotten too, and who holds the old limit of a key has a full one as well."""
    company = Limiter(TokenBucket("1/h", 2))
    teams = KeyedLimiter(lambda team: TokenBucket("1/h", 1), shared=company)
    users = KeyedLimiter(lambda user: TokenBucket("1/h", 1), shared=lambda user: teams[user[0]])
    adaptive = KeyedLimiter(lambda key: AdaptiveRate(Limiter("10/s"), "1/s", "100/s"))
    held, found = users["h1"], adaptive_of(adaptive["host"])
    users["changed"].set_rate("1/s")
    assert found is not None
    found.throttled()
    used = [users.try_acquire(user) for user in ("h1", "h2", "b1", "c1")]

    reset_limiters(users, adaptive)

    assert len(users) == len(adaptive) == 0
    assert company.statistics().available == 2
    assert (users["changed"].rate, adaptive["host"].rate) == (Rate.parse("1/h"), Rate(10))
    assert [users.try_acquire(user) for user in ("h1", "h2", "b1", "c1")] == used == [True, False, True, False]
    reset_limiters(users)
    assert held.try_acquire()


def test_budgets_and_what_they_share_are_reset() -> None:
    """In every dimension."""
    team, requests = Budget(tokens=TokenBucket("1/h", 100)), Limiter(TokenBucket("1/h", 5))
    first, second = Budget(requests=requests, tokens=TokenBucket("1/h", 50)), KeyedBudget(lambda key: Budget(calls="1/h"), shared=team)

    async def use() -> None:
        async with first.reserve(requests=5, tokens=50), second.reserve("key", tokens=100):
            pass
        first.pause(60)

    run(use())
    assert [first.available("requests"), first.available("tokens"), team.available("tokens")] == [0, 0, 0]
    reset_limiters(first, second)

    assert [first.available("requests"), first.available("tokens"), team.available("tokens")] == [5, 50, 100]
    assert (first.statistics().granted, len(second)) == (0, 0)
    run(use())


def test_requests_that_wait_in_an_open_loop_move_up() -> None:
    """As where an application runs in one loop for all tests; and a thread that waits for a limit of the process."""
    limiter, shared = Limiter(TokenBucket("1/h", 2)), Limiter(TokenBucket("1/h", 1), scope="process")

    async def ask() -> list[asyncio.Task[float]]:
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(4)]
        await asyncio.sleep(0)
        return tasks

    async def look(tasks: list[asyncio.Task[float]]) -> list[bool]:
        await asyncio.sleep(0.001)
        return [task.done() for task in tasks]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        tasks = runner.run(ask())
        assert runner.run(look(tasks)) == [True, True, False, False]
        reset_limiters(limiter)
        assert runner.run(look(tasks)) == [True] * 4

    shared.acquire_blocking()
    thread = threading.Thread(target=shared.acquire_blocking)
    thread.start()
    while not shared.statistics().waiting:
        pass
    reset_limiters(shared)
    thread.join()


def test_limits_that_cannot_be_reset_say_so() -> None:
    """One of a loop that runs in another thread, one in a store, a strategy without the method. A note says which limit it is."""

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
            with pytest.raises(RuntimeError, match=r"reset\(\)|create it with scope='process'") as caught:
                reset_limiters(limit)
            assert caught.value.__notes__[0].startswith("reset_limiters() was given <Limiter")
    finally:
        over.set()
        thread.join()


def test_anything_else_is_an_error_and_nothing_is_reset() -> None:
    limiter = Limiter("1/h")
    limiter.try_acquire()
    wrong: dict[str, Any] = {"not list: write": [limiter], "not dict": {"a": limiter}, "not str": "10/s", "the class Limiter": Limiter}
    for hint, limit in {**wrong, "not AdaptiveRate": AdaptiveRate(Limiter(1), 1, 2)}.items():
        with pytest.raises(TypeError, match=hint):
            reset_limiters(limiter, limit)
    assert not limiter.try_acquire()


def test_importing_the_tools_imports_no_test_library() -> None:
    """A program may use a ManualClock or a VirtualLoop."""
    code = "import sys, aiorate.testing; print({'pytest', 'pytest_asyncio', 'hypothesis'} & set(sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
