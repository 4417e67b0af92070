"""RedisLimiter in one event loop after the other, in a loop that will not do, and in a child process."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from contextlib import suppress
from functools import partial
from itertools import product
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any

import pytest
import trio
from helpers.driving import LONG, others, until
from helpers.forks import program
from helpers.loops import FACTORIES
from helpers.outages import POLICIES
from helpers.platforms import needs_fork
from helpers.stores import RealServer, TimedClient, now
from helpers.threads import KINDS, in_thread, loop_thread

from aiorate import CalendarWindow, EngineUnavailable, LimiterClosed, WaitTooLong
from aiorate._tree.deciding import decisions
from aiorate.redis import RedisBudget, RedisLimiter
from aiorate.testing import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future


def test_limits_serve_one_loop_after_the_other(store: RealServer) -> None:
    """A script that calls asyncio.run() more than once, with a URL. Under trio there is an error: its client is asyncio's."""
    limiter, budget = RedisLimiter(store.url, "x", "100/s"), RedisBudget(store.url, "y", requests="100/s", tokens="1000/s")

    async def twice() -> float:
        began = monotonic_ns()
        for _ in range(2):
            await limiter.acquire()
            async with budget.reserve(tokens=1):
                pass
        return (monotonic_ns() - began) / 1e9

    for _ in range(2):
        assert 0.005 <= asyncio.run(twice())
    assert (4, 4) == (limiter.statistics().granted, budget.statistics().granted)
    for call in (twice, limiter.acquire, partial(limiter.acquire, max_wait=1)):
        with pytest.raises(RuntimeError, match="asyncio and uvloop"):
            trio.run(call)


def test_ctrl_c_in_the_middle_of_a_call_ends_the_program(store: RealServer) -> None:
    """As anywhere else; and the next loop is served."""
    client = TimedClient(store)
    limiter = RedisLimiter(client, "x", "10/s")
    client.error = KeyboardInterrupt()  # type: ignore[assignment]  # it is raised where an answer would be
    with pytest.raises(KeyboardInterrupt), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(limiter.acquire())
    client.error = None

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert pytest.approx(0.0, abs=1e-3) == runner.run(limiter.acquire())
    gc.collect()  # asyncio logs the interrupted task now, not in a later test


def test_a_loop_closed_during_a_call_does_not_block_the_next(store: RealServer) -> None:
    """Its answer will never come, and the next loop asks again, also where the line was left as it was."""
    for factory, turns in product([*FACTORIES.values(), VirtualLoop], (1, 4)):  # before the call, and in it
        store.send("FLUSHALL")
        closed_during_a_call(store, factory, turns)


def closed_during_a_call(store: RealServer, factory: Callable[[], asyncio.AbstractEventLoop], turns: int) -> None:
    limiter = RedisLimiter(TimedClient(store, latency=0.001), "x", "10/s")
    left: list[asyncio.Task[Any]] = []

    async def leave() -> None:
        left.append(asyncio.create_task(limiter.acquire()))
        for _ in range(turns):
            await asyncio.sleep(0)
        left.extend(others())

    loop = factory()
    loop.run_until_complete(leave())
    loop.close()

    async def twice() -> float:
        began = now()
        async with asyncio.timeout(LONG):
            for _ in range(2):
                await limiter.acquire()
        took = now() - began
        assert 0 == limiter.statistics().waiting
        await limiter.aclose()
        return took

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(twice()) >= 0.09  # at the rate: the second slot is a tenth of a second after the first, which is not early
    assert not left[0].done()


@needs_fork
def test_a_child_process_takes_none_of_its_parents_slots(store: RealServer) -> None:
    async def main() -> None:
        limiter = RedisLimiter(store.url, "x", "100000/s", lease=3600, slack=3600)
        for _ in range(50):
            await limiter.acquire()
        await until(limiter.try_acquire)
        child = os.fork()
        if not child:
            with suppress(RuntimeError):  # no loop runs here
                os._exit(limiter.try_acquire())
            os._exit(0)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])  # noqa: ASYNC222  # nothing else is to run meanwhile
        assert limiter.try_acquire()
        await limiter.aclose()

    asyncio.run(main())


@needs_fork
def test_a_child_process_books_by_itself(store: RealServer) -> None:
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


# All event loops and threads of a process, with scope="process". Real time, real threads and a real server.


_before: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def other_threads() -> None:
    """Those of other tests may linger for a second."""
    _before.clear()
    _before.update(threading.enumerate())


def threads() -> list[threading.Thread]:
    """The threads that ask stores, of those that were started in this test."""
    own = {*_before, decisions._thread}
    return [thread for thread in threading.enumerate() if thread not in own and thread.name == "aiorate"]


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
        seen, running = max(seen, connections(store)), max(running, len(threads()))
        each.result(LONG)

    assert 110 == len(stamps) == quota.statistics().granted
    assert max(stamps) - began >= 109 / 500 - 0.01
    assert (1, 1) == (seen, running)


def test_threads_that_ask_now_and_then_keep_the_connection(store: RealServer, made: Callable[..., RedisLimiter]) -> None:
    limiters = [made(f"{name}", "60/s") for name in range(4)]
    before = int(store.send("CLIENT", "ID"))
    for done in [in_thread(lambda each=each: [each.acquire_blocking() for _ in range(40)]) for each in limiters]:
        done.result(LONG)

    assert int(store.send("CLIENT", "ID")) - before == 2  # that of the limiters, and the one that asks


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
    (before,) = threads()
    before.join(LONG)

    assert not before.is_alive()
    assert 0 == connections(store)
    limiter.acquire_blocking()
    assert 1 == len(threads())


@needs_fork
def test_a_child_process_has_its_own_thread_and_connection(store: RealServer) -> None:
    said = program(
        """
from aiorate._tree.deciding import decisions
from aiorate.redis import RedisLimiter

def names():
    return [thread.name for thread in threading.enumerate() if thread.name == "aiorate" and thread is not decisions._thread]

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

    assert ["['aiorate']", "[]", "['aiorate'] 21", "[]"] == said.splitlines()


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
    with pytest.raises(WaitTooLong, match=r"reserve\(\)"):
        at_once()
    asyncio.run(budget.aclose())
    assert not threads()
