"""`reset_limiters` without pytest: what a reset is for each kind of limit."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, Rate, Scheduler, SlidingWindow, TokenBucket
from aiorate.adaptive import AdaptiveRate, adaptive_of
from aiorate.redis import RedisLimiter
from aiorate.testing import ManualClock, VirtualLoop, reset_limiters


def run(main: Any) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


async def granted_at(limiter: Limiter, count: int) -> list[float]:
    loop, instants = asyncio.get_running_loop(), []
    for _ in range(count):
        await limiter.acquire()
        instants.append(loop.time())
    return instants


@pytest.mark.parametrize("strategy", [lambda: "2/s", lambda: TokenBucket("2/s", 3), lambda: SlidingWindow("2/s")])
def test_grants_after_a_reset_are_those_of_a_new_limiter(strategy: Any) -> None:
    """To the nanosecond, whatever loop it was used in before: real time between two tests does not count."""
    fresh = run(granted_at(Limiter(strategy()), 10))
    limiter = Limiter(strategy())
    reset_limiters(limiter)  # before it was ever used

    for runner in (run, asyncio.run, run):
        if runner is run:
            assert run(granted_at(limiter, 10)) == fresh
        else:
            runner(limiter.acquire())
        reset_limiters(limiter)


def test_a_reset_ends_debt_pause_and_counts() -> None:
    """A test must not depend on what another one did to a limiter that both use."""
    limiter = Limiter(TokenBucket("1/h", 2), max_concurrency=1)

    async def use() -> None:
        await limiter.acquire()
        limiter.charge(100)
        limiter.pause(3600)

    run(use())
    reset_limiters(limiter)

    assert [limiter.try_acquire() for _ in range(3)] == [True, True, False]
    assert limiter.statistics().granted == 2
    assert limiter.statistics().charged == 0


def test_requests_that_wait_in_a_dead_loop_are_forgotten() -> None:
    """Whether their loop was closed properly or just left."""
    limiter = Limiter(TokenBucket("1/h", 1))
    left, closed = VirtualLoop(), VirtualLoop()

    async def wait() -> None:
        await asyncio.wait([asyncio.ensure_future(limiter.acquire()) for _ in range(3)], timeout=1)

    for loop in (left, closed):
        reset_limiters(limiter)
        loop.run_until_complete(wait())
        if loop is closed:
            for task in asyncio.all_tasks(closed):
                task.cancel()
            closed.run_until_complete(asyncio.sleep(0))
            closed.close()
    reset_limiters(limiter)

    assert run(limiter.acquire()) == 0.0
    assert limiter.statistics().waiting == 0
    for task in asyncio.all_tasks(left):
        task.cancel()
    left.run_until_complete(asyncio.sleep(0))
    left.close()


def test_time_passes_after_a_reset_without_a_loop() -> None:
    """A reset limiter that no loop uses goes by the real clock, as a new one does."""
    limiter = Limiter("1000/s")
    run(limiter.acquire())
    reset_limiters(limiter)

    while limiter.statistics().granted < 3:  # ends only if time passes
        limiter.try_acquire()


def test_a_manual_clock_is_kept() -> None:
    """The limiter goes on by the clock that it was given."""
    clock = ManualClock()
    limiter = Limiter("1/s", clock=clock)
    assert [limiter.try_acquire(), limiter.try_acquire()] == [True, False]

    reset_limiters(limiter)

    assert [limiter.try_acquire(), limiter.try_acquire()] == [True, False]
    clock.advance(1)
    assert limiter.try_acquire()


def test_keys_are_forgotten_and_what_they_share_is_reset() -> None:
    """A key that owes something would be kept otherwise; a limit that all keys share would stay empty."""
    made = []

    def factory(key: str) -> TokenBucket:
        made.append(key)
        return TokenBucket("1/h", 1)

    everybody = Limiter(TokenBucket("1/h", 2))
    keyed = KeyedLimiter(factory, shared=everybody)
    assert [keyed.try_acquire("a"), keyed.try_acquire("b"), keyed.try_acquire("c")] == [True, True, False]

    reset_limiters(keyed)

    assert len(keyed) == 0
    assert everybody.statistics().available == 2
    assert [keyed.try_acquire("a"), keyed.try_acquire("b"), keyed.try_acquire("c")] == [True, True, False]
    assert made == ["a", "b", "c"] * 2


def test_keys_that_are_in_use_or_changed_are_forgotten_too() -> None:
    """The factory makes them again. Who holds the old limit of a key has a full one as well."""
    keyed = KeyedLimiter(lambda key: TokenBucket("1/h", 1))
    held = keyed["held"]
    keyed["changed"].set_rate("1/s")
    adaptive = KeyedLimiter(lambda key: AdaptiveRate(Limiter("10/s"), "1/s", "100/s"))
    found = adaptive_of(adaptive["host"])
    assert found is not None

    async def use() -> None:
        await held.acquire()
        for _ in range(3):
            found.throttled()
        assert found.rate.per_second < 10
        waiting = asyncio.ensure_future(held.acquire())
        await asyncio.wait([waiting], timeout=1)  # it still waits when its loop is closed

    run(use())
    reset_limiters(keyed, adaptive)

    assert len(keyed) == len(adaptive) == 0
    assert keyed["changed"].rate == Rate.parse("1/h")
    assert adaptive["host"].rate == Rate(10)
    assert held.try_acquire()
    assert keyed.try_acquire("held")


def test_limits_that_a_function_of_the_key_names_are_reset() -> None:
    """They are reached through the keys, at every level."""
    company = Limiter(TokenBucket("1/h", 2))
    teams = KeyedLimiter(lambda team: TokenBucket("1/h", 1), shared=company)
    users = KeyedLimiter(lambda user: TokenBucket("1/h", 1), shared=lambda user: teams[user[0]])
    assert [users.try_acquire(user) for user in ("a1", "a2", "b1", "c1")] == [True, False, True, False]

    reset_limiters(users)

    assert company.statistics().available == 2
    assert [users.try_acquire(user) for user in ("a1", "a2", "b1", "c1")] == [True, False, True, False]


def test_budgets_and_what_they_share_are_reset() -> None:
    """In every dimension."""
    requests = Limiter(TokenBucket("1/h", 5))
    team = Budget(tokens=TokenBucket("1/h", 100))
    first, second = Budget(requests=requests, tokens=TokenBucket("1/h", 50)), KeyedBudget(lambda key: Budget(calls="1/h"), shared=team)

    async def use() -> None:
        async with first.reserve(requests=5, tokens=50), second.reserve("key", tokens=100):
            pass
        first.pause(60)

    run(use())
    assert [first.available("requests"), first.available("tokens"), team.available("tokens")] == [0, 0, 0]
    reset_limiters(first, second)

    assert [first.available("requests"), first.available("tokens"), team.available("tokens")] == [5, 50, 100]
    assert first.statistics().granted == 0
    assert len(second) == 0
    run(use())


def test_limits_of_the_process_are_reset_from_any_thread() -> None:
    """They need no loop, so that the thread of the tests may do it."""
    limiter = Limiter(TokenBucket("1/h", 1), scope="process")
    keyed = KeyedLimiter(lambda key: Limiter(TokenBucket("1/h", 1), scope="process"), scope="process")
    for _ in range(3):
        assert limiter.acquire_blocking() == 0.0
        assert keyed.acquire_blocking("key") == 0.0
        reset_limiters(limiter, keyed)


def test_requests_that_wait_in_an_open_loop_move_up() -> None:
    """As where an application runs in one loop for all tests: its tasks are served, from the full limit."""
    limiter, keyed = Limiter(TokenBucket("1/h", 2)), KeyedLimiter(lambda key: TokenBucket("1/h", 1))

    async def ask() -> list[asyncio.Task[float]]:
        tasks = [asyncio.ensure_future(one) for one in [*(limiter.acquire() for _ in range(4)), keyed.acquire("a"), keyed.acquire("a")]]
        await asyncio.sleep(0)
        return tasks

    async def look(tasks: list[asyncio.Task[float]]) -> list[bool]:
        await asyncio.sleep(0.001)
        return [task.done() for task in tasks]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        tasks = runner.run(ask())
        assert runner.run(look(tasks)) == [True, True, False, False, True, False]
        reset_limiters(limiter, keyed)
        assert runner.run(look(tasks)) == [True] * 6
        assert limiter.statistics().available == 0


def test_thread_that_waits_moves_up() -> None:
    """Where threads share the limit, a reset may come from any of them."""
    limiter = Limiter(TokenBucket("1/h", 1), scope="process")
    limiter.acquire_blocking()
    waited: list[float] = []
    thread = threading.Thread(target=lambda: waited.append(limiter.acquire_blocking()))
    thread.start()
    while not limiter.statistics().waiting:
        pass

    reset_limiters(limiter)
    thread.join()

    assert len(waited) == 1


def test_limiter_of_a_loop_in_another_thread_says_so() -> None:
    """As of a server that runs in a thread for all tests: its limiter needs the scope of the process."""
    limiter, ready, over = Limiter("1/h"), threading.Event(), threading.Event()

    async def serve() -> None:
        await limiter.acquire()
        ready.set()
        await asyncio.get_running_loop().run_in_executor(None, over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait()

    with pytest.raises(RuntimeError, match="create it with scope='process'") as caught:
        reset_limiters(limiter)

    over.set()
    thread.join()
    assert caught.value.__notes__[0].startswith("reset_limiters() was given <Limiter")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ([Limiter(1)], r"not list\. .*reset_limiters\(\*limits\)"),
        ({"a": Limiter(1)}, r"not dict\. .*reset_limiters\(\*limits\.values\(\)\)"),
        ("10/s", r"not str\. .*reset_limiters\(app\.limiter\)"),
        (Limiter, "not the class Limiter"),
        (None, "not NoneType"),
        (AdaptiveRate(Limiter(1), 1, 2), r"not AdaptiveRate\. Give it adaptive\.limiter, whose rate stays"),
    ],
)
def test_anything_else_is_an_error_and_nothing_is_reset(wrong: Any, hint: str) -> None:
    """The message says what to write."""
    limiter = Limiter("1/h")
    limiter.try_acquire()

    with pytest.raises(TypeError, match=hint):
        reset_limiters(limiter, wrong)

    assert not limiter.try_acquire()


class WithoutReset(TokenBucket):
    """A strategy that does not define reset()."""

    reset = Scheduler.reset  # type: ignore[assignment]


@pytest.mark.parametrize("limit", [lambda: RedisLimiter("redis://localhost:1", "name", "1/s"), lambda: Limiter(WithoutReset("1/s", 1))])
def test_limits_that_cannot_be_reset_say_so(limit: Any) -> None:
    """A store keeps what other processes remember; a strategy needs the method. A note says which limit it is."""
    with pytest.raises(RuntimeError, match=r"reset\(\): ") as caught:
        reset_limiters(limit())

    assert caught.value.__notes__[0].startswith("reset_limiters() was given <Limiter")


def test_importing_the_tools_does_not_import_pytest() -> None:
    """A program may use a ManualClock or a VirtualLoop; pytest is not among the dependencies."""
    code = "import sys, aiorate.testing; print({'pytest', 'pytest_asyncio', 'hypothesis'} & set(sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
