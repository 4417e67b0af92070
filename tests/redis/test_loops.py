"""RedisLimiter in one event loop after the other, in a loop that will not do, and in a child process."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from time import monotonic_ns

import pytest
import trio
from helpers.driving import until
from helpers.stores import RealServer

from aiorate.redis import RedisLimiter


def test_one_limiter_serves_one_loop_after_the_other(store: RealServer) -> None:
    """A script that calls asyncio.run() more than once, with a URL."""
    limiter = RedisLimiter(store.url, "x", "100/s")

    async def twice() -> float:
        await limiter.acquire()
        return await limiter.acquire()

    for _ in range(2):
        assert 0.005 <= asyncio.run(twice())


def test_trio_is_told_that_it_will_not_do(store: RealServer) -> None:
    """Its client is asyncio's."""
    limiter = RedisLimiter(store.url, "x", "100/s")

    with pytest.raises(RuntimeError, match="asyncio and uvloop"):
        trio.run(limiter.acquire)
    with pytest.raises(RuntimeError, match="asyncio and uvloop"):
        trio.run(partial(limiter.acquire, max_wait=1))


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
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
