"""Places of `max_concurrency`: no timer while one is held, and no task that waits for itself."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from helpers.driving import LONG, SECOND, one_loop, turns

from aiorate import Limiter, TokenBucket
from aiorate.testing import ManualClock


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_no_time_passes_while_a_thread_holds_a_place() -> None:
    """A waiter for a place set a timer for the year 2162, and virtual time jumped there."""
    loop, limiter = asyncio.get_running_loop(), Limiter("1000/s", max_concurrency=1)
    done = threading.Event()

    async def hold() -> None:
        async with limiter:
            await loop.run_in_executor(None, done.wait, LONG)

    async def enter() -> None:
        async with limiter:
            pass

    tasks = [asyncio.ensure_future(hold()), asyncio.ensure_future(enter())]
    threading.Timer(0.05, done.set).start()
    await asyncio.wait(tasks)
    assert loop.time() < 1


def test_no_time_passes_under_trio_while_a_place_is_held() -> None:
    """A thread holds it; trio's clock jumped by five days."""

    async def main() -> None:
        limiter = Limiter("1000/s", max_concurrency=1)
        done = threading.Event()

        async def enter() -> None:
            async with limiter:
                pass

        async with trio.open_nursery() as nursery, limiter:
            nursery.start_soon(enter)
            await trio.testing.wait_all_tasks_blocked()
            threading.Timer(0.05, done.set).start()
            await trio.to_thread.run_sync(done.wait, LONG)

    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(main, clock=clock)
    assert clock.current_time() < 1


@pytest.mark.asyncio
async def test_a_line_for_places_sets_no_timer() -> None:
    """On a clock moved by hand too, in both scopes; and leaving makes room at once."""
    for scope in ("loop", "process"):
        clock = ManualClock()
        limiter = Limiter("1000/s", max_concurrency=1, clock=clock, scope=scope)  # type: ignore[arg-type]
        await limiter._enter(1)
        task = asyncio.ensure_future(limiter._enter(1))
        await turns(3)
        assert 0 == clock.timers
        limiter._leave()
        await clock.run(0.01)
        assert task.done()
        assert clock.now() == SECOND // 100
        limiter._leave()


@pytest.mark.parametrize("run", [asyncio.run, trio.run])
@pytest.mark.parametrize("scope", ["loop", "process"])
def test_task_that_would_wait_for_itself_gets_an_error(run: Callable[..., Any], scope: Any) -> None:
    """As with anyio's CapacityLimiter. It hung before, and so did every task behind it."""
    limiter = Limiter("1000/s", max_concurrency=1, scope=scope)

    async def main() -> None:
        async with limiter:
            await limiter.acquire()
            with pytest.raises(RuntimeError, match="would wait for itself"):
                async with limiter:
                    pass
            with pytest.raises(RuntimeError, match="would wait for itself"):
                await limited()
        async with limiter:
            pass
        await limited()

    @limiter
    async def limited() -> None:
        pass

    run(main) if run is trio.run else run(main())


@one_loop
@pytest.mark.parametrize("scope", ["loop", "process"])
async def test_place_held_by_another_task_is_waited_for(scope: Any) -> None:
    """Only the task inside would wait for ever; with two places, another task may leave one."""
    one, two = (Limiter("1000/s", max_concurrency=places, scope=scope) for places in (1, 2))
    order = []

    async def visit(name: str) -> None:
        async with one:
            order.append(name)
            await asyncio.sleep(0)

    async with one:
        visits = [asyncio.ensure_future(visit(name)) for name in "ab"]
        await asyncio.sleep(0)
    await asyncio.wait_for(visit("c"), 10)
    await asyncio.gather(*visits)
    async with two, two:
        assert ["a", "b", "c"] == order


@one_loop
async def test_task_collected_inside_leaves_its_place() -> None:
    """The holder is known by a weak reference, so that a place without a holder is free."""
    limiter = Limiter(TokenBucket("1/s", burst=2), max_concurrency=1, clock=ManualClock())

    async def inside() -> None:
        async with limiter:
            await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)  # "Task was destroyed but it is pending!"
    task = asyncio.ensure_future(inside())
    await asyncio.sleep(0)
    del task
    gc.collect()

    async with limiter:
        pass
