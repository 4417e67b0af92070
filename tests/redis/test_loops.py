"""RedisLimiter in one event loop after the other, in a loop that will not do, and in a child process."""

from __future__ import annotations

import asyncio
import gc
import os
from functools import partial
from itertools import product
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import pytest
import trio
from helpers.driving import LONG, others, until
from helpers.forks import program
from helpers.loops import FACTORIES
from helpers.platforms import needs_fork
from helpers.stores import RealServer, TimedClient, now

from aiorate.redis import RedisBudget, RedisLimiter
from aiorate.testing import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable


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
            os._exit(limiter.try_acquire())
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
