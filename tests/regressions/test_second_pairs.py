"""Defects that the tables of `tests/pairs` found, each by itself."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from helpers.driving import turns

from aiorate import KeyedLimiter, Limiter, TokenBucket
from aiorate.testing import VirtualLoop


@pytest.mark.parametrize("shared", [None, "10/s"])
def test_a_key_that_was_never_used_begins_by_the_clock_of_its_loop(shared: str | None) -> None:
    """The second key had the first one looked at by the machine's clock: in virtual time it waited as long as the machine was up."""

    async def main() -> float:
        await asyncio.sleep(1)
        keyed = KeyedLimiter(lambda key: TokenBucket("10/s", 2), shared=shared)
        first, _ = keyed["a"], keyed["b"]
        return await first.acquire()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert 0.0 == runner.run(main())


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("kind", ["plain", "keyed", "shared"])
def test_a_closed_loop_is_let_go(kind: str, precise: bool) -> None:
    """With the loop stayed its tasks, and these kept their places under max_concurrency: the next callers waited for ever."""

    def made(key: str = "a") -> Limiter:
        return Limiter(TokenBucket("10/s", 1), max_concurrency=1, precise=precise)

    keyed = KeyedLimiter(made, shared="10/s" if kind == "shared" else None)
    limiter = made() if kind == "plain" else keyed["a"]

    async def stay() -> None:
        async with limiter:
            await asyncio.sleep(60)

    async def wait() -> None:
        async with asyncio.timeout(60):
            await limiter.acquire()

    async def leave_some() -> None:
        tasks = [asyncio.create_task(work) for work in (stay(), wait(), wait())]
        await turns(3)
        assert [False, False, False] == [task.done() for task in tasks]

    runner = asyncio.Runner(loop_factory=VirtualLoop)
    runner.run(leave_some())
    loop = runner.get_loop()
    loop.set_exception_handler(lambda loop, context: None)
    loop.close()
    gone = weakref.ref(loop)
    asyncio.set_event_loop(None)
    del runner, loop

    async def go_on() -> None:
        waiting = asyncio.create_task(stay())
        await turns(3)
        gc.collect()
        assert gone() is None
        await asyncio.sleep(0.2)
        assert 0 == limiter.statistics().waiting
        waiting.cancel()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(go_on())
