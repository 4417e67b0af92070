"""RedisLimiter in one event loop after the other, in a loop that will not do, and in a child process."""

from __future__ import annotations

import asyncio
import gc
import os
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import pytest
import trio
from helpers.driving import LONG, others, until
from helpers.loops import FACTORIES
from helpers.platforms import needs_fork
from helpers.stores import RealServer, TimedClient, now

from aiorate.redis import RedisLimiter
from aiorate.redis.client import sessions
from aiorate.testing import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable


def test_one_limiter_serves_one_loop_after_the_other(store: RealServer) -> None:
    """A script that calls asyncio.run() more than once, with a URL."""
    limiter = RedisLimiter(store.url, "x", "100/s")

    async def twice() -> float:
        began = monotonic_ns()
        await limiter.acquire()
        await limiter.acquire()
        return (monotonic_ns() - began) / 1e9

    for _ in range(2):
        assert 0.005 <= asyncio.run(twice())


def test_the_task_of_a_closed_loop_is_collected_silently(store: RealServer) -> None:
    """The collector throws GeneratorExit into it at any point, while requests of the next loop wait for the same limiter."""
    limiter = RedisLimiter(TimedClient(store, latency=0.01), "x", "10/s")

    async def leave() -> None:
        tasks = [asyncio.create_task(limiter.acquire())]
        while not (asking := [task for task in others() if task.get_name() == "aiorate-redis"]):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in tasks + asking:  # nobody has to hear of it
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    async def go_on() -> float:
        waiting = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0.005)
        gc.collect()
        waited = await waiting
        await limiter.aclose()
        return waited

    gc.disable()
    try:
        loop = VirtualLoop()
        loop.run_until_complete(leave())
        loop.close()
        del loop
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            assert pytest.approx(0.02, abs=1e-3) == runner.run(go_on())
    finally:
        gc.enable()


def test_under_trio_there_is_an_error(store: RealServer) -> None:
    """Its client is asyncio's."""
    limiter = RedisLimiter(store.url, "x", "100/s")

    with pytest.raises(RuntimeError, match="asyncio and uvloop"):
        trio.run(limiter.acquire)
    with pytest.raises(RuntimeError, match="asyncio and uvloop"):
        trio.run(partial(limiter.acquire, max_wait=1))


def test_a_charge_outside_a_loop_is_told_with_the_first_request(store: RealServer) -> None:
    """A script that has used permits, or was told to wait, before it starts its loop."""
    limiter = RedisLimiter(TimedClient(store), "x", "10/s")
    limiter.charge(5)

    async def acquire() -> float:
        waited = await limiter.acquire()
        await limiter.aclose()
        return waited

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert pytest.approx(0.5, abs=1e-3) == runner.run(acquire())


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


@pytest.mark.parametrize("factory", [*FACTORIES.values(), VirtualLoop])
@pytest.mark.parametrize("end", ["before the call", "in the call"])
def test_a_loop_closed_during_a_call_does_not_block_the_next(
    store: RealServer, factory: Callable[[], asyncio.AbstractEventLoop], end: str
) -> None:
    """Its answer will never come, and the next loop asks again, also where the line was left as it was."""
    limiter = RedisLimiter(TimedClient(store, latency=0.001), "x", "10/s")
    left: list[asyncio.Task[Any]] = []

    async def leave() -> None:
        left.append(asyncio.create_task(limiter.acquire()))
        for _ in range(1 if end == "before the call" else 4):
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


def test_after_a_fork_the_slots_in_hand_are_the_parents(store: RealServer) -> None:
    """What the hook does in a child, said to this process: its slots are gone, and it asks for others."""
    client = TimedClient(store)
    limiter = RedisLimiter(client, "x", "1000/s", lease=1, horizon=1)

    async def main() -> None:
        tasks = [asyncio.create_task(limiter.acquire()) for _ in range(50)]
        await asyncio.wait(tasks)
        limiter.try_acquire()
        await asyncio.sleep(0.001)
        assert limiter.scheduler.in_hand  # type: ignore[attr-defined]
        before = client.calls
        for session in list(sessions):
            if session.key == limiter.key:
                session.forked()

        assert 0 == limiter.scheduler.in_hand  # type: ignore[attr-defined]
        await limiter.acquire()
        assert 1 == client.calls - before
        await limiter.aclose()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


@needs_fork
def test_a_child_process_takes_none_of_its_parents_slots(store: RealServer) -> None:
    """Slots in hand at a fork would be granted twice."""

    async def main() -> None:
        limiter = RedisLimiter(store.url, "x", "100000/s", lease=3600, slack=3600)
        for _ in range(50):
            await limiter.acquire()
        await asyncio.sleep(0)
        await until(lambda: limiter.scheduler.available(monotonic_ns()))
        child = os.fork()
        if not child:
            os._exit(limiter.scheduler.available(monotonic_ns()))  # type: ignore[attr-defined]
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])  # noqa: ASYNC222  # nothing else is to run meanwhile
        assert limiter.try_acquire()
        await limiter.aclose()

    asyncio.run(main())
