"""One limiter, many loops: used in several in turn, refused in two at a time; and its kernel timers, which no loop leaves behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from helpers.driving import LONG, descriptors, made_to_wait, turns
from helpers.loops import FACTORIES
from helpers.platforms import needs_kernel_timers

import aiorate
from aiorate.testing import ManualClock, VirtualLoop

BOTH: dict[str, Callable[[], aiorate.Scheduler]] = {
    "filler": lambda: aiorate.TokenPool("10/s"),
    "alarm": lambda: aiorate.TokenBucket("10/s", burst=1),
}
both = pytest.mark.parametrize("kind", BOTH)


@both
def test_the_budget_lives_on_from_one_loop_to_the_next(kind: str) -> None:
    """mjpieters/aiolimiter#292: "Event loop is closed" on the second asyncio.run(). A new loop brings no fresh burst either."""
    clock = ManualClock()
    limiter = aiorate.Limiter(BOTH[kind](), clock=clock)

    async def main() -> float:
        task = asyncio.ensure_future(limiter.acquire())
        await clock.run(0.3)
        return task.result()

    waits = []
    for factory in (*FACTORIES.values(), asyncio.SelectorEventLoop):
        with asyncio.Runner(loop_factory=factory) as runner:
            waits.append(runner.run(main()))

    assert waits == [0.0] * len(waits)
    assert asyncio.run(waits_of(limiter, clock, 5)) == [0.0, *([0.0] if kind == "filler" else []), 0.1, 0.2, 0.3, 0.4][:5]


async def waits_of(limiter: aiorate.Limiter, clock: ManualClock, count: int) -> list[float]:
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(count)]
    await clock.run(10)
    return [task.result() for task in tasks]


@both
def test_waiters_of_a_stopped_loop_learn_that_the_limiter_moved(kind: str) -> None:
    limiter = aiorate.Limiter(BOTH[kind](), clock=(clock := ManualClock()))
    old = asyncio.new_event_loop()

    async def leave() -> list[asyncio.Task[float]]:
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(70)]
        await turns(3)
        return tasks

    async def come_back() -> list[Any]:
        return await asyncio.wait_for(asyncio.gather(*tasks[1:], return_exceptions=True), LONG)

    tasks = old.run_until_complete(leave())
    assert asyncio.run(waits_of(limiter, clock, 3)) == [0.1, 0.2, 0.3]
    left = old.run_until_complete(come_back())
    still = asyncio.all_tasks(old)
    old.close()

    assert {type(error) for error in left} == {RuntimeError}
    assert "moved to another event loop" in str(left[0])
    assert still == set()
    assert asyncio.run(waits_of(limiter, clock, 1)) == [0.0]


@both
def test_a_second_running_loop_is_refused(kind: str) -> None:
    """Two loops at a time would need locks that a single loop does not have; the error says what to do instead."""
    limiter = aiorate.Limiter(BOTH[kind]())
    caught: list[BaseException] = []

    async def inner() -> None:
        await limiter.acquire()

    def elsewhere() -> None:
        for attempt in (lambda: asyncio.run(inner()), limiter.try_acquire, limiter.statistics, lambda: limiter.pause(1)):
            try:
                attempt()
            except RuntimeError as error:
                caught.append(error)

    async def outer() -> float:
        await limiter.acquire()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.001)
        return await limiter.acquire()

    waited = asyncio.run(outer())

    assert len(caught) == 4
    assert all("scope='process'" in str(error) for error in caught)
    assert 0 <= waited < LONG


def run_virtually(main: Any) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


@both
def test_time_goes_on_from_virtual_loops_to_real_ones_and_back(kind: str) -> None:
    """Each virtual loop begins at 0 and real ones anywhere: the schedule must jump neither back nor ahead.

    Real time also passes between two loops, so the first waiter of the next may wait less.
    """
    limiter = aiorate.Limiter(BOTH[kind]())

    async def two() -> list[float]:
        return [await limiter.acquire(), await limiter.acquire()]

    first, second, real, last = run_virtually(two()), run_virtually(two()), asyncio.run(two()), run_virtually(two())

    assert first == [0.0, 0.1]
    for waits in (second, last):
        assert max(waits) <= 0.1
    assert max(real) < LONG


# Kernel timers.

LOOPS = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)


def paced(rate: str = "500/s") -> aiorate.Limiter:
    return aiorate.Limiter(aiorate.TokenBucket(rate, burst=1), precise=True)


def precise_run(limiter: aiorate.Limiter, factory: Callable[[], Any]) -> weakref.ref[asyncio.AbstractEventLoop]:
    """Run a loop in which a task has to wait, and return a weak reference to that loop."""
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(made_to_wait(limiter))
        return weakref.ref(runner.get_loop())


@needs_kernel_timers
@LOOPS
def test_limiter_used_in_several_runs_keeps_one_descriptor(factory: Callable[[], Any]) -> None:
    limiter = paced()

    loops = [precise_run(limiter, factory) for _ in range(5)]

    assert descriptors() <= 1
    gc.collect()
    assert [loop() for loop in loops[:4]] == [None] * 4
    del limiter
    assert descriptors() == 0
