"""Event loops that end or are closed while callers wait, and loops that trio shares with asyncio."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import weakref
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

import pytest
import trio
from helpers.driving import SteppedClock, one_loop, turns
from helpers.loops import FACTORIES
from helpers.strategies import EACH
from helpers.transcripts import S

import aiorate
from aiorate import (
    KeyedLimiter,
    Limiter,
    TokenBucket,
    WaitTooLong,
)
from aiorate.testing import ManualClock, VirtualLoop
from aiorate.waiting.timeline import Timeline

CLEANING: dict[str, tuple[Callable[[], asyncio.AbstractEventLoop], Callable[[], aiorate.Scheduler], int]] = {
    **{f"virtual-{name}": (VirtualLoop, strategy, 150) for name, strategy in EACH.items()},
    **{f"{name}-TokenPool": (factory, lambda: aiorate.TokenPool("2000/s"), 20) for name, factory in FACTORIES.items()},
    **{f"{name}-TokenBucket": (factory, lambda: aiorate.TokenBucket("2000/s", burst=1), 20) for name, factory in FACTORIES.items()},
}


@pytest.mark.parametrize("case", CLEANING)
def test_a_permit_for_cleaning_up_is_to_be_had_while_the_loop_shuts_down(case: str, caplog: pytest.LogCaptureFixture) -> None:
    """``asyncio.run()`` cancels the filler together with those who then clean up; 90 of 150 got a RuntimeError."""
    loop, strategy, workers = CLEANING[case]
    limiter = aiorate.Limiter(strategy())
    ends: list[object] = []

    async def work() -> None:
        try:
            while True:
                await limiter.acquire()
        finally:
            try:
                ends.append(await limiter.acquire() >= 0)
            except Exception as error:
                ends.append(error)

    async def main() -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        await asyncio.sleep(0.005)
        return tasks

    with caplog.at_level(logging.DEBUG, "asyncio"), asyncio.Runner(loop_factory=loop) as runner:
        tasks = runner.run(main())
    tasks.clear()
    gc.collect()

    assert [True] * workers == ends
    assert [] == [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("loop", FACTORIES.values(), ids=FACTORIES)
@pytest.mark.parametrize("strategy", EACH)
def test_a_loop_that_is_closed_between_grant_and_run_makes_no_noise(
    strategy: str, loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was granted went to the next in line, whom a closed loop cannot wake: "Exception ignored in", on stderr."""
    noise: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    clock, native = SteppedClock(), loop()
    native.set_exception_handler(lambda _, context: None)  # that tasks are pending is the program's own fault
    limiter = aiorate.Limiter(EACH[strategy](), clock=clock)
    while limiter.try_acquire():
        pass

    async def begin() -> list[asyncio.Task[float]]:
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(3)]
        await turns(3)
        return tasks

    tasks = native.run_until_complete(begin())
    clock.fire()
    native.close()
    tasks.clear()
    gc.collect()

    assert [] == [str(each.exc_value) for each in noise]
    assert 0 == limiter.statistics().waiting
    clock.advance(3600)
    assert limiter.try_acquire()


def test_those_of_a_loop_that_was_closed_a_moment_ago_are_in_nobodys_way() -> None:
    """Within 5 ms after the last look at the loop, a request on the next one is refused for the sake of the dead."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=10), max_waiting=1)

    async def before() -> asyncio.Task[float]:
        assert limiter.try_acquire(4)
        task = asyncio.ensure_future(limiter.acquire(10))
        await asyncio.sleep(0)
        return task

    async def after() -> float:
        return await limiter.acquire(max_wait=0)

    for _ in range(5):
        first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
        first.set_exception_handler(lambda _, context: None)
        task = first.run_until_complete(before())
        first.close()
        assert 0.0 == second.run_until_complete(after())
        second.close()
        del task
        limiter.reset()


@one_loop
async def test_a_clock_that_is_moved_after_a_loop_was_closed_raises_nothing() -> None:
    """A clock by hand outlives the loop; its timer then grants to those who can no longer be woken: RuntimeError."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)

    def other_thread() -> None:
        native = asyncio.new_event_loop()
        native.set_exception_handler(lambda _, context: None)

        async def begin() -> list[asyncio.Task[float]]:
            assert limiter.try_acquire()
            tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(3)]
            await turns(3)
            return tasks

        native.run_until_complete(begin())
        native.close()

    await asyncio.to_thread(other_thread)

    clock.advance(10)


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


def test_a_pause_outlives_its_loop_by_its_own_length() -> None:
    """On the clock of the next loop, 3600 s ahead, a pause of 5 s would have been over, or have lasted 3605 s."""
    for ahead in (3_600 * S, -3_600 * S):
        timeline, readings = Timeline(None), [100 * S]
        timeline.follow(lambda readings=readings: readings[0])  # type: ignore[misc]
        timeline.pause(5 * S, lambda length: None)
        instant = timeline.now()

        timeline.follow(lambda readings=readings, ahead=ahead: readings[0] + ahead)  # type: ignore[misc]

        readings[0] += 4 * S
        assert timeline.paused
        assert timeline.now() == instant
        readings[0] += 2 * S
        assert not timeline.paused
        assert timeline.now() == instant + S


class Skipping:
    """The monotonic clock, which can be moved forward."""

    def __init__(self) -> None:
        self.ahead = 0

    def now(self) -> int:
        """The reading."""
        return monotonic_ns() + self.ahead


@pytest.mark.asyncio
async def test_the_loop_turns_after_a_long_pause_too() -> None:
    """The next look at the loop was due an hour later, after a pause of an hour."""
    clock, turned = Skipping(), []
    limiter = Limiter(TokenBucket(10**9, burst=10**9), clock=clock)
    await limiter.acquire()
    limiter.pause(3_600)
    clock.ahead += 3_500 * S
    with pytest.raises(WaitTooLong):
        await limiter.acquire(max_wait=0)
    clock.ahead += 100 * S

    asyncio.get_running_loop().call_soon(turned.append, True)
    asked = 0
    while not turned and asked < 1_000_000:
        await limiter.acquire()
        asked += 1

    assert turned


def test_trio_as_a_guest_of_asyncio_has_its_own_driver() -> None:
    """Its tasks were given futures of asyncio, which trio cannot wait for."""

    async def guest() -> float:
        limiter = aiorate.Limiter("20/s")
        await limiter.acquire()
        return await limiter.acquire()

    async def host() -> float:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(guest, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=done.set_result)
        limiter = aiorate.Limiter("20/s")
        await limiter.acquire()
        await limiter.acquire()
        waited: float = (await done).unwrap()
        return waited

    assert 0 < asyncio.run(host())


def test_a_clock_by_hand_lets_tasks_run_under_trio_too() -> None:
    """``await clock.run()`` called asyncio."""

    async def main() -> int:
        clock = ManualClock()
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock)
        await limiter.acquire()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limiter.acquire)
            await clock.run(1)
        return limiter.statistics().granted

    assert trio.run(main) == 2
