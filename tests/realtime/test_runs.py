"""One limiter, many loops: made without one, used in several in turn, refused in two at a time."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from helpers.driving import LONG, SteppedClock, turns
from helpers.loops import FACTORIES
from helpers.strategies import EACH

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
    """Return what ``count`` tasks wait."""
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(count)]
    await clock.run(10)
    return [task.result() for task in tasks]


@both
def test_waiters_left_behind_by_a_run_do_not_affect_the_next(kind: str) -> None:
    """asyncio.run() cancels what is left; the line is empty then, and the permits are there."""
    clock = ManualClock()
    limiter = aiorate.Limiter(BOTH[kind](), clock=clock)

    left: list[asyncio.Task[float]] = []

    async def leave() -> None:
        left.extend(asyncio.ensure_future(limiter.acquire()) for _ in range(100))
        await turns(3)

    for _ in range(3):
        asyncio.run(leave())
        assert (limiter.statistics().waiting, clock.timers) == (0, 0)

    assert limiter.delay() == 0.1
    assert asyncio.run(waits_of(limiter, clock, 2)) == [0.1, 0.2]


@both
def test_waiters_of_a_closed_loop_are_dropped(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without asyncio.run() nothing cancels them: they must get no grant, inside or outside of a loop.

    From CPython 3.13 on, a Condition whose waiter is destroyed wakes another one, on the closed loop, and says so.
    """
    said: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: said.append(str(unraisable.exc_value)))
    clock = SteppedClock()
    limiter = aiorate.Limiter(BOTH[kind](), clock=clock)
    loop = asyncio.new_event_loop()

    async def leave() -> list[asyncio.Task[float]]:
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(3)]
        await turns(3)
        return tasks

    tasks = loop.run_until_complete(leave())
    loop.set_exception_handler(lambda loop, context: None)  # the filler's task is destroyed with the loop
    loop.close()
    clock.forget()
    clock.advance(0.1)

    assert limiter.try_acquire() is True
    assert limiter.statistics().waiting == 0
    assert asyncio.run(waits_of(limiter, clock, 1)) == [0.1]
    assert limiter.statistics().granted == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del tasks
        gc.collect()
    assert limiter.statistics().waiting == 0
    assert set(said) <= {"Event loop is closed"}


@both
def test_waiters_of_a_stopped_loop_learn_that_the_limiter_moved(kind: str) -> None:
    """When the loop runs again later, its waiters get an error instead of waiting for ever."""
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
    """Run it in a loop of virtual time."""
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


@both
def test_limiter_used_before_a_loop_works_in_virtual_time(kind: str) -> None:
    """A permit taken at import time, by the machine's clock, must not put a virtual loop's schedule years ahead."""
    limiter = aiorate.Limiter(BOTH[kind]())
    assert limiter.try_acquire()

    waited = run_virtually(limiter.acquire())

    assert waited <= 0.1


@both
def test_a_pause_ends_when_it_should_across_loops(kind: str) -> None:
    """paused_until is a reading of a clock, and the clock changed."""
    limiter = aiorate.Limiter(BOTH[kind]())

    async def pause() -> None:
        await asyncio.sleep(10)
        limiter.pause(60)

    run_virtually(pause())

    assert run_virtually(limiter.acquire()) == 60.0


@pytest.mark.parametrize("name", EACH)
def test_idle_limiters_hold_no_task_or_timer_and_are_collected(name: str) -> None:
    """dotnet/aspnetcore#66434, dotnet/runtime#95611: an idle limiter does nothing, and can be collected."""

    async def main() -> None:
        clock = ManualClock()
        limiters = [aiorate.Limiter(EACH[name](), clock=clock) for _ in range(100)]
        tasks = [asyncio.ensure_future(each.acquire()) for each in limiters for _ in range(2)]
        await clock.run(10)
        assert all(task.done() for task in tasks)
        assert (clock.timers, asyncio.all_tasks()) == (0, {asyncio.current_task()})
        ghosts = [weakref.ref(each) for each in limiters]
        del limiters, tasks
        gc.collect()
        assert {ghost() for ghost in ghosts} == {None}

    asyncio.run(main())


def test_ten_thousand_idle_limiters_leave_the_loop_alone() -> None:
    """None of them has a task or a handle, on the loop's own clock."""
    timers: list[float] = []

    class Watched(asyncio.SelectorEventLoop):
        def call_at(self, when: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
            timers.append(when)
            return super().call_at(when, *arguments, **options)

    async def main() -> int:
        limiters = [aiorate.Limiter("1000/s") for _ in range(10_000)]
        for each in limiters:
            await each.acquire()
        return len(asyncio.all_tasks())

    with asyncio.Runner(loop_factory=Watched) as runner:
        assert runner.run(main()) == 1
    assert timers == []


def test_two_limiters_share_nothing() -> None:
    """ccxt/ccxt#9880: state kept on a class made two instances one."""
    clock = ManualClock()
    one, two = aiorate.Limiter("10/s", clock=clock), aiorate.Limiter("10/s", clock=clock)

    assert [one.try_acquire(), one.try_acquire(), two.try_acquire()] == [True, False, True]


@both
def test_waiter_cancelled_as_its_loop_stops_is_gone_in_the_next(kind: str) -> None:
    """It leaves a line that the limiter has dropped: no place is counted twice, and its own loop sees it cancelled."""
    limiter = aiorate.Limiter(BOTH[kind](), clock=ManualClock())
    old = asyncio.new_event_loop()

    async def leave() -> list[asyncio.Task[float]]:
        while limiter.try_acquire():
            pass
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(2)]
        await turns(3)
        for task in tasks:
            task.cancel()
        return tasks

    async def use() -> list[int]:
        waiting = [asyncio.ensure_future(limiter.acquire()) for _ in range(3)]
        await turns(3)
        before = limiter.statistics().waiting
        closed.get_coro().close()  # type: ignore[union-attr]
        after = limiter.statistics().waiting
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return [before, after, limiter.statistics().waiting]

    closed, cancelled = old.run_until_complete(leave())
    assert asyncio.run(use()) == [3, 3, 0]
    outcome = old.run_until_complete(asyncio.gather(cancelled, return_exceptions=True))
    old.run_until_complete(asyncio.wait([closed]))
    old.close()

    assert [type(each) for each in outcome] == [asyncio.CancelledError]
    assert limiter.statistics().waiting == 0


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
@both
def test_loop_moved_to_another_thread_is_still_the_only_one(kind: str, factory: Any) -> None:
    """Synchronous wrappers start a loop here and run it elsewhere: a second loop in this thread is refused, and spends nothing."""
    limiter = aiorate.Limiter(BOTH[kind]())
    loop = factory()
    loop.run_until_complete(limiter.acquire())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(LONG)

    outcomes: list[object] = []
    for intrude in (lambda: asyncio.run(limiter.acquire()), limiter.try_acquire):
        with pytest.raises(RuntimeError, match="in use by another running event loop"):
            outcomes.append(intrude())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()

    assert outcomes == []
    assert limiter.statistics().granted == 1
