"""Under trio: busy callers, one run after another, two loops at a time, forks, and runs that break off."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from helpers.driving import SECOND
from helpers.platforms import needs_fork
from helpers.under_trio import run, settled

import aiorate
from aiorate.testing import VirtualLoop

# The loop runs its other tasks.


async def _block(limiter: aiorate.Limiter) -> None:
    async with limiter:
        pass


async def _tries(limiter: aiorate.Limiter) -> None:
    for _ in range(100):
        limiter.try_acquire()
    await limiter.acquire(max_wait=1000)


def test_a_busy_caller_lets_other_tasks_run() -> None:
    """Without a checkpoint now and then, no deadline would ever end this loop. In real time."""

    async def ask(limiter: aiorate.Limiter, way: Callable[[aiorate.Limiter], Awaitable[object]]) -> None:
        while True:
            await way(limiter)

    async def main(scheduler: aiorate.Scheduler, way: Any, callers: int) -> tuple[bool, int, bool]:
        before = trio.lowlevel.current_statistics().tasks_living
        limiter = aiorate.Limiter(scheduler)
        with trio.move_on_after(0.02) as scope:
            async with trio.open_nursery() as nursery:
                for _ in range(callers):
                    nursery.start_soon(ask, limiter, way)
        await settled()  # the task of a timer that is cancelled ends an iteration later
        same = trio.lowlevel.current_statistics().tasks_living == before
        return scope.cancelled_caught, limiter.statistics().waiting, same

    for way in (aiorate.Limiter.acquire, _block, _tries):
        for callers in (1, 20):
            for scheduler in (
                aiorate.TokenPool("1000000000/s", burst_ratio=2),
                aiorate.TokenBucket("1000000/s", burst=1000),
                aiorate.BurstRatio("2000000/s", ratio=2),
                aiorate.AllOf(aiorate.TokenBucket("1000000/s", burst=10), aiorate.SlidingWindow("1000000/s")),
            ):
                assert trio.run(main, scheduler, way, callers) == (True, 0, True), (scheduler, way, callers)


def test_cancelled_while_it_yields_a_grant_is_undone() -> None:
    """A task may be cancelled at the checkpoint after a grant."""

    async def main() -> None:
        limiter = aiorate.Limiter(aiorate.TokenBucket("1/day", burst=1_000_000))
        granted = 0
        for _ in range(3):
            with trio.CancelScope() as scope:
                scope.cancel()
                while True:
                    await limiter.acquire()
                    granted += 1
            assert scope.cancelled_caught
        assert (granted, 3) == (limiter.statistics().granted, limiter.statistics().cancelled)

    trio.run(main)


# One loop after the other, and two at a time.


def once(kind: str, main: Callable[[], Awaitable[Any]]) -> Any:
    """Run ``main`` in a loop of that kind."""
    if kind == "asyncio":
        return asyncio.run(main())  # type: ignore[arg-type]
    if kind == "virtual":
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main())  # type: ignore[arg-type]
    return run(main) if kind == "mock" else trio.run(main)


def test_the_budget_outlives_the_loops() -> None:
    """Each run has a clock with another origin: only time that passed in a run is credited."""
    kinds = "asyncio trio asyncio trio", "trio trio mock trio", "virtual mock virtual trio", "none trio none asyncio", "trio none none trio"
    strategies: list[tuple[int, Callable[[], aiorate.Scheduler]]] = [
        (3, lambda: aiorate.TokenBucket("4/day", burst=3, initial=3)),
        (3, lambda: aiorate.SlidingWindow("3/day")),
        (1, lambda: aiorate.TokenPool("1/day", pool=3 * 86_400 * SECOND)),
        (3, lambda: aiorate.AllOf(aiorate.TokenBucket("4/day", burst=3), aiorate.SlidingWindow("3/day"))),
    ]
    for row in kinds:
        for most, make in strategies:
            limiter = aiorate.Limiter(make())
            taken = []

            async def take(limiter: aiorate.Limiter = limiter, taken: list[bool] = taken) -> None:
                taken.append(limiter.try_acquire())

            for kind in row.split():
                if kind == "none":
                    taken.append(limiter.try_acquire())
                else:
                    once(kind, take)
            assert [True] * most + [False] * (4 - most) == taken, (row, most)


def test_time_goes_on_from_one_run_to_the_next() -> None:
    """A mock clock stands still between two runs, whatever it read at the end of the first and reads at the beginning of the second."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))

    async def two() -> tuple[float, float]:
        limiter.delay()
        await trio.sleep(0.03)
        return await limiter.acquire(), await limiter.acquire()

    assert (0.0, 0.1) == run(two)
    assert 0.1 == limiter.delay()
    assert (0.07, 0.1) == run(two)
    limiter.pause(1)
    assert (1.07, 0.1) == run(two)


def test_waiters_of_an_ended_run_leave() -> None:
    """A trio run ends with all its tasks; a closed asyncio loop may leave some for ever."""
    limiter = aiorate.Limiter("1/day")
    loop = asyncio.new_event_loop()

    async def leave_one() -> asyncio.Task[float]:
        limiter.try_acquire()
        task = asyncio.ensure_future(limiter.acquire())
        await asyncio.sleep(0)
        return task

    async def look() -> int:
        trio.lowlevel.spawn_system_task(limiter.acquire)
        trio.lowlevel.spawn_system_task(limiter.acquire)
        await settled()
        return limiter.statistics().waiting

    task = loop.run_until_complete(leave_one())
    assert 2 == trio.run(look)  # the loop stands still, and its waiter fails when the loop goes on
    with pytest.raises(RuntimeError, match="moved to another event loop"):
        loop.run_until_complete(task)
    loop.close()
    assert 0 == limiter.statistics().waiting
    assert 2 == trio.run(look)


def test_a_second_running_loop_is_an_error() -> None:
    """Two threads would decide at once; the second gets an error at once, whichever loop was first, and however busy that is."""
    for first in ("trio", "asyncio"):
        limiter, other = aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=1000)), aiorate.Limiter(1e9)
        begun, over = threading.Event(), threading.Event()

        async def hold(
            limiter: aiorate.Limiter = limiter,
            other: aiorate.Limiter = other,
            begun: threading.Event = begun,
            over: threading.Event = over,
        ) -> None:
            await limiter.acquire()
            while not over.is_set():
                assert other.try_acquire()
                await other.acquire()
                begun.set()
                await anyio.sleep(0.001)

        thread = threading.Thread(target=anyio.run, args=(hold,), kwargs={"backend": first})
        thread.start()
        begun.wait()
        try:
            for kind in ("asyncio", "trio"):
                with pytest.raises(RuntimeError, match="another running event loop"):
                    anyio.run(limiter.acquire, backend=kind)
            with pytest.raises(RuntimeError, match="another running event loop"):
                limiter.try_acquire()
        finally:
            over.set()
            thread.join()
        trio.run(limiter.acquire)
        asyncio.run(limiter.acquire())


@needs_fork
def test_a_child_process_goes_on_with_the_budget() -> None:
    """It has neither the run nor the waiters of its parent, and may start another run."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("2/day", burst=2))

    async def attempt() -> bool:
        return limiter.try_acquire()

    def child() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are threads
            pid = os.fork()
        if pid:
            return os.waitpid(pid, 0)[1]
        answers = []
        with suppress(BaseException):
            warnings.simplefilter("ignore")  # that both runs handle the same signals
            answers.append(limiter.statistics().waiting)
            answers += [trio.run(attempt), trio.run(attempt), asyncio.run(attempt())]
        os._exit(0 if answers == [0, True, False, False] else 1)

    async def main() -> int:
        limiter.try_acquire()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limiter.acquire, 2)
            await settled()
            status = await trio.to_thread.run_sync(child)
            assert (1, 1) == (limiter.statistics().granted, limiter.statistics().waiting)
            nursery.cancel_scope.cancel()
        return status

    assert 0 == trio.run(main)


def script(source: str) -> str:
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_run_that_broke_off_does_not_keep_the_limiter() -> None:
    """An error inside trio ends the run and leaves its tasks where they were; they never run again."""
    printed = script("""
import asyncio, trio, trio.testing, aiorate
from functools import partial
from aiorate.testing import ManualClock
clock = ManualClock()
limiter, by_hand = aiorate.Limiter("20/s"), aiorate.Limiter("20/s", clock=clock)
kept = []
async def breaks():
    async with trio.open_nursery() as nursery:
        kept.append(nursery)
        for _ in range(3):
            nursery.start_soon(partial(limiter.acquire, max_wait=100))
            nursery.start_soon(partial(by_hand.acquire, max_wait=100))
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.001):
            await trio.lowlevel.wait_task_rescheduled(lambda raise_cancel: 1 / 0)
async def in_trio():
    limiter.pause(3600)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limiter.acquire)
        await trio.testing.wait_all_tasks_blocked()
        waiting = limiter.statistics().waiting
        limiter.resume()
    return waiting
async def in_asyncio():
    limiter.pause(3600)
    async with asyncio.TaskGroup() as group:
        group.create_task(limiter.acquire())
        await asyncio.sleep(0)
        waiting = limiter.statistics().waiting
        limiter.resume()
    return waiting
try:
    trio.run(breaks)
except trio.TrioInternalError:
    print("broke off")
print(by_hand.statistics().waiting, clock.timers)
print(trio.run(in_trio), asyncio.run(in_asyncio()), limiter.statistics().waiting)
""")

    assert "broke off\n0 0\n1 1 0\n" == printed


def test_asyncio_needs_neither_trio_nor_anyio() -> None:
    """Programs on asyncio import neither, so they cost no time and no memory."""
    printed = script("""
import asyncio, sys, aiorate
async def main():
    for scheduler in (aiorate.TokenPool("1000/s"), aiorate.TokenBucket("1000/s", burst=1)):
        limiter = aiorate.Limiter(scheduler)
        limiter.try_acquire()
        async with limiter, limiter.of(1):
            pass
        limiter.statistics(), limiter.delay()
        await limiter.aclose()
asyncio.run(main())
print(sorted({"trio", "anyio", "sniffio"} & set(sys.modules)))
""")

    assert "[]\n" == printed
