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

from aiorate import KeyedLimiter, Limiter, Scheduler, TokenBucket, TokenPool, WaitTooLong
from aiorate.testing import ManualClock, VirtualLoop
from aiorate.waiting.timeline import Timeline

CLEANING: dict[str, tuple[Callable[[], asyncio.AbstractEventLoop], Callable[[], Scheduler], int]] = {
    **{f"virtual-{name}": (VirtualLoop, strategy, 150) for name, strategy in EACH.items()},
    **{f"{name}-TokenPool": (factory, lambda: TokenPool("2000/s"), 20) for name, factory in FACTORIES.items()},
    **{f"{name}-TokenBucket": (factory, lambda: TokenBucket("2000/s", burst=1), 20) for name, factory in FACTORIES.items()},
}


@pytest.mark.parametrize("case", CLEANING)
def test_tasks_cleaning_up_at_shutdown_get_permits(case: str, caplog: pytest.LogCaptureFixture) -> None:
    """``asyncio.run()`` cancels the filler together with the tasks that then clean up; 90 of 150 got a RuntimeError."""
    loop, strategy, workers = CLEANING[case]
    limiter = Limiter(strategy())
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
def test_loop_closed_between_grant_and_run_logs_nothing(
    strategy: str, loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grant went to the next in line, which a closed loop cannot wake: "Exception ignored in" on stderr."""
    noise: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    clock, native = SteppedClock(), loop()
    native.set_exception_handler(lambda _, context: None)  # the program left tasks pending
    limiter = Limiter(EACH[strategy](), clock=clock)
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


def test_waiters_of_a_loop_closed_just_now_do_not_count() -> None:
    """Within 5 ms after the last look at the loop, a request on the next loop was refused because of the dead waiters."""
    limiter = Limiter(TokenBucket("1/h", burst=10), max_waiting=1)

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
async def test_clock_moved_after_its_loop_was_closed_raises_nothing() -> None:
    """A ManualClock outlives the loop. Its timer then granted to waiters that nothing can wake: RuntimeError."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("1/s", burst=1), clock=clock)

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
    """The limiter kept the loop, and so its tasks, which kept their places under max_concurrency: the next callers waited for ever."""

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
    """The next loop's clock is 3600 s ahead: a pause of 5 s was over at once or lasted 3605 s."""
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
    """After a pause of an hour, the next look at the loop was due an hour later."""
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
    """trio's tasks were given asyncio's futures, which trio cannot await."""

    async def guest() -> float:
        limiter = Limiter("20/s")
        await limiter.acquire()
        return await limiter.acquire()

    async def host() -> float:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(guest, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=done.set_result)
        limiter = Limiter("20/s")
        await limiter.acquire()
        await limiter.acquire()
        waited: float = (await done).unwrap()
        return waited

    assert 0 < asyncio.run(host())


def test_manual_clock_lets_tasks_run_under_trio() -> None:
    """``await clock.run()`` called asyncio."""

    async def main() -> int:
        clock = ManualClock()
        limiter = Limiter(TokenBucket("10/s", burst=1), clock=clock)
        await limiter.acquire()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limiter.acquire)
            await clock.run(1)
        return limiter.statistics().granted

    assert trio.run(main) == 2
