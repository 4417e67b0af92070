"""RedisLimiter for all event loops and threads of a process, with ``scope="process"``. Real time, real threads and a real server."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any

import pytest
import trio
from helpers.driving import LONG
from helpers.forks import program
from helpers.outages import POLICIES
from helpers.platforms import needs_fork
from helpers.stores import RealServer
from helpers.threads import KINDS, call_in_thread, in_thread, loop_thread

from aiorate import CalendarWindow, EngineUnavailable, LimiterClosed, WaitTooLong
from aiorate.redis import RedisBudget, RedisLimiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future


_before: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def other_threads() -> None:
    """Those of other tests may linger for a second."""
    _before.clear()
    _before.update(threading.enumerate())


def threads() -> list[str]:
    """The names of the threads that aiorate started in this test."""
    return [thread.name for thread in threading.enumerate() if thread not in _before and thread.name.startswith("aiorate-")]


def connections(store: RealServer) -> int:
    """How many clients the server has, except for the one that asks."""
    return len([line for line in store.send("CLIENT", "LIST").splitlines() if line]) - 1


@pytest.fixture
def made(store: RealServer) -> Iterator[Callable[..., RedisLimiter]]:
    """Makes limiters, which are closed after the test; then nothing of them is left."""
    limiters: list[RedisLimiter] = []

    def make(name: str = "x", limit: Any = "1000/s", source: Any = None, **options: Any) -> RedisLimiter:
        limiters.append(RedisLimiter(store.url if source is None else source, name, limit, scope="process", **options))
        return limiters[-1]

    yield make
    for limiter in limiters:
        asyncio.run(limiter.aclose())
    assert not threads()


def test_threads_and_loops_of_every_kind_share_one_limit(store: RealServer, made: Callable[..., RedisLimiter]) -> None:
    limiter, quota = made("rate", "500/s"), made("quota", CalendarWindow("1000/day", "UTC"))
    stamps: list[float] = []
    began = monotonic()

    def blocking() -> None:
        for _ in range(10):
            with limiter:
                stamps.append(monotonic())
            quota.acquire_blocking()

    async def waiting() -> None:
        for _ in range(10):
            async with limiter:
                stamps.append(monotonic())
            await quota.acquire()

    done: list[Future[Any]] = [in_thread(blocking) for _ in range(8)]
    done += [in_thread(lambda: asyncio.run(waiting())) for _ in range(2)]
    done.append(in_thread(lambda: trio.run(waiting)))
    seen, running = 0, 0
    for each in done:
        seen, running = max(seen, connections(store)), max(running, threads().count("aiorate-redis"))
        each.result(LONG)

    assert 110 == len(stamps) == quota.statistics().granted
    assert max(stamps) - began >= 109 / 500 - 0.01
    assert (1, 1) == (seen, running)


def test_the_last_to_close_leaves_nothing(store: RealServer) -> None:
    for kind in KINDS:
        store.send("FLUSHALL")
        closes_in_a_loop(store, kind)


def closes_in_a_loop(store: RealServer, kind: str) -> None:
    one, other = (RedisLimiter(store.url, name, CalendarWindow("9/day", "UTC"), scope="process") for name in "ab")
    with loop_thread(kind) as thread:
        for limiter in (one, other):
            for _ in range(5):
                limiter.acquire_blocking()
        thread.start(one.aclose).result(LONG)
        assert 1 == threads().count("aiorate-redis")
        with pytest.raises(LimiterClosed):
            one.acquire_blocking()
        thread.start(other.aclose).result(LONG)

    assert not threads()
    assert 0 == connections(store)
    for name in "ab":
        again = RedisLimiter(store.url, name, CalendarWindow("9/day", "UTC"), scope="process")
        again.acquire_blocking(4, max_wait=0)
        with pytest.raises(WaitTooLong):
            again.acquire_blocking(max_wait=0)
        asyncio.run(again.aclose())


def test_the_thread_ends_when_nothing_is_asked(store: RealServer, made: Callable[..., RedisLimiter]) -> None:
    limiter = made()
    limiter.acquire_blocking()
    before = next(thread for thread in threading.enumerate() if thread.name == "aiorate-redis")
    before.join(LONG)

    assert not before.is_alive()
    assert 0 == connections(store)
    limiter.acquire_blocking()
    assert 1 == threads().count("aiorate-redis")


@needs_fork
def test_a_child_process_has_its_own_thread_and_connection(store: RealServer) -> None:
    said = program(
        """
from aiorate.redis import RedisLimiter

def names():
    return [thread.name for thread in threading.enumerate() if thread.name == "aiorate-redis"]

limiter = RedisLimiter(URL, "x", "1000/s", lease=0.1, slack=30, scope="process")
for _ in range(20):
    limiter.acquire_blocking()

def child():
    assert not names() and not limiter.try_acquire()
    limiter.acquire_blocking()
    asyncio.run(asyncio.wait_for(limiter.acquire(), 60))
    print(names())
    asyncio.run(limiter.aclose())
    print(names())

in_child(child)
limiter.acquire_blocking()
print(names(), limiter.statistics().granted)
asyncio.run(limiter.aclose())
print(names())
""",
        URL=store.url,
    )

    assert ["['aiorate-redis']", "[]", "['aiorate-redis'] 21", "[]"] == said.splitlines()


def test_changes_in_any_thread_hold_for_all(made: Callable[..., RedisLimiter]) -> None:
    one, other = made(limit="100/s"), made(limit="100/s")
    one.acquire_blocking()
    began = monotonic()
    call_in_thread(lambda: one.pause(0.3))
    while one.statistics().paused_until is not None and not other.acquire_blocking():
        assert monotonic() - began < LONG  # the store has yet to hear of it
    assert monotonic() - began >= 0.3

    began = monotonic()
    other.charge(20)
    while monotonic() - began < 0.15 and one.acquire_blocking() < 0.1:
        assert monotonic() - began < LONG
    one.acquire_blocking()
    assert monotonic() - began >= 0.15


@pytest.mark.parametrize("policy", ["raise", "wait"])
def test_an_outage_has_its_policy_in_every_thread(policy: str) -> None:
    with RealServer() as store:
        limiter = RedisLimiter(store.url, "x", "100/s", scope="process", grace=0.2, **POLICIES[policy])
        limiter.acquire_blocking()
        store.kill()
        results: list[object] = []

        def blocking() -> None:
            try:
                limiter.acquire_blocking(max_wait=2)
            except Exception as error:
                results.append(type(error))
            else:
                results.append(None)

        asked = [in_thread(blocking) for _ in range(4)]
        for each in asked:
            each.result(LONG)
        expected: dict[str, object] = {"raise": EngineUnavailable, "wait": WaitTooLong}
        assert [expected.get(policy)] * 4 == results
        assert "degraded" == limiter.statistics().state

        store.start()
        began = monotonic()
        while limiter.statistics().state != "shared" and monotonic() - began < LONG:
            blocking()
        assert "shared" == limiter.statistics().state
        asyncio.run(limiter.aclose())
    assert not threads()


def test_a_budget_of_the_process_serves_threads_and_loops(store: RealServer) -> None:
    """Through one connection, in synchronous code and in event loops at once, within both rates."""
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

    for done in [in_thread(target) for target in (in_a_thread, in_a_thread, lambda: asyncio.run(in_a_loop()))]:
        done.result(LONG)

    assert 30 == len(granted) == budget.statistics().granted
    assert max(granted) - min(granted) >= 29 / 200 * 1e9 * 0.95
    with pytest.raises(WaitTooLong, match=r"reserve\(\) would wait"):
        at_once()
    asyncio.run(budget.aclose())
    assert not threads()
