"""Cancellation in every way that asyncio has: no permit is lost or created, and no other waiter is affected."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, others, turns

import aiorate

pytestmark = pytest.mark.asyncio


class Counting:
    """A scheduler that counts the permits that it has granted."""

    granted = 0

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at: int = super().take(permits, now, since)  # type: ignore[misc]
        self.granted += permits if at <= now else 0
        return at


class CountingPool(Counting, aiorate.TokenPool):
    """Served by the filler."""


class CountingPace(Counting, aiorate.BurstCompensation):
    """Served by the alarm."""


KINDS: dict[str, Any] = {"filler": CountingPool, "alarm": CountingPace}


@pytest.fixture(params=KINDS)
def crowd(request: pytest.FixtureRequest) -> Crowd:
    """Tasks for a limiter of 10 per second whose first permit is taken."""
    clock = SteppedClock()
    limiter = aiorate.Limiter(KINDS[request.param]("10/s"), clock=clock)
    assert limiter.try_acquire()
    return Crowd(limiter, clock)


async def granted_but_not_run(crowd: Crowd) -> None:
    """Go to the instant of the next grant, until the driver has decided and before the task runs."""
    scheduler: Any = crowd.limiter.scheduler
    before = scheduler.granted
    crowd.clock.fire()
    while scheduler.granted == before:
        await turns(1)


async def test_a_timeout_gives_up_the_place_in_line(crowd: Crowd) -> None:
    """`asyncio.timeout` around acquire() is the usual way to give up; the next waiter must not pay for it."""
    reached = []

    async def impatient() -> None:
        try:
            async with asyncio.timeout(0):
                await crowd.limiter.acquire()
        except TimeoutError:
            reached.append(crowd.clock.now())

    task = asyncio.ensure_future(impatient())
    await turns(1)
    crowd.ask("next")
    await asyncio.wait([task])
    await crowd.clock.run(1)

    assert reached == [0]
    assert crowd.granted == {"next": SECOND // 10}


async def test_wait_for_gives_up_the_place_in_line(crowd: Crowd) -> None:
    """`asyncio.wait_for` runs the waiter in another task on 3.11, and cancels that."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(crowd.limiter.acquire(), 0.001)
    await crowd.queue("A")
    await crowd.clock.run(1)

    assert crowd.granted == {"A": SECOND // 10}
    assert crowd.limiter.statistics().granted == 2


async def test_a_failing_task_group_cancels_its_waiters(crowd: Crowd) -> None:
    """If one child fails, the group cancels all others in one step."""

    async def fails() -> None:
        await turns(3)
        raise KeyError("child")

    async def group() -> None:
        async with asyncio.TaskGroup() as children:
            for _ in range(100):
                children.create_task(crowd.limiter.acquire())
            children.create_task(fails())

    with pytest.raises(ExceptionGroup):
        await group()
    await crowd.queue("A")
    await crowd.clock.run(1)

    assert crowd.granted == {"A": SECOND // 10}
    assert crowd.limiter.statistics().cancelled == 100


async def test_closing_a_waiting_coroutine_by_hand_leaves_the_line(crowd: Crowd) -> None:
    """A coroutine that is no longer driven gets GeneratorExit instead of a cancellation, with no iteration of the loop to act in."""
    coroutine = crowd.limiter.acquire()
    coroutine.send(None)
    await crowd.queue("A")

    coroutine.close()
    await crowd.clock.run(1)

    assert crowd.granted == {"A": SECOND // 10}
    assert crowd.limiter.statistics().cancelled == 1
    assert others() == set()


async def test_cancelling_twice_counts_once(crowd: Crowd) -> None:
    """A second cancellation must not give back a second permit."""
    await crowd.queue("ABC")
    await granted_but_not_run(crowd)

    for _ in range(3):
        crowd.tasks["A"].cancel()
    await crowd.clock.run(1)

    assert crowd.granted == {"B": SECOND // 10, "C": 2 * SECOND // 10}
    assert crowd.limiter.statistics().granted == 3


async def test_a_granted_waiter_may_cancel_the_next_one(crowd: Crowd) -> None:
    """The cancellation comes in the same iteration as the grant of its sender."""
    tasks: list[asyncio.Task[Any]] = []

    async def killer() -> None:
        await crowd.limiter.acquire()
        tasks[0].cancel()

    killing = asyncio.ensure_future(killer())
    await turns(2)
    tasks.append(crowd.ask("victim"))
    await crowd.queue("A")
    await crowd.clock.run(1)

    assert killing.done()
    assert crowd.granted == {"A": 2 * SECOND // 10}


async def test_a_cancelled_waiter_may_ask_again_and_is_last_in_line(crowd: Crowd) -> None:
    """A retry in an except clause runs while the line is being updated."""

    async def again() -> None:
        try:
            await crowd.limiter.acquire()
        except asyncio.CancelledError:
            crowd.ask("again")

    task = asyncio.ensure_future(again())
    await turns(2)
    await crowd.queue("AB")

    task.cancel()
    await crowd.clock.run(1)

    assert crowd.granted == {"A": SECOND // 10, "B": 2 * SECOND // 10, "again": 3 * SECOND // 10}


async def test_a_done_callback_may_ask_and_cancel(crowd: Crowd) -> None:
    """Callbacks run between tasks; try_acquire() and cancel() see a consistent line there."""
    seen: list[bool] = []

    def callback(_: asyncio.Future[float]) -> None:
        seen.append(crowd.limiter.try_acquire())
        crowd.tasks["B"].cancel()

    crowd.ask("A").add_done_callback(callback)
    await crowd.queue("BC")
    await crowd.clock.run(1)

    assert seen == [False]
    assert crowd.granted == {"A": SECOND // 10, "C": 2 * SECOND // 10}


async def test_cancelling_the_last_waiter_ends_driver_and_timer(crowd: Crowd) -> None:
    """A filler whose only waiter has gone must end instead of sleeping on."""
    await crowd.queue("A")
    assert crowd.clock.timers == 1

    crowd.tasks["A"].cancel()
    await turns(5)

    assert (crowd.clock.timers, others()) == (0, set())


async def test_a_request_made_while_the_driver_ends_is_served(crowd: Crowd) -> None:
    """The last waiter leaves and the next one arrives within the same few iterations: a driver must be there at each of them."""
    for pause in range(6):
        before = crowd.clock.now()
        await crowd.queue(["last"])
        crowd.tasks["last"].cancel()
        await turns(pause)
        crowd.ask(pause)
        await crowd.clock.run(0.2)

        assert crowd.granted[pause] - before <= SECOND // 10


async def test_cancelled_waiters_behind_a_long_wait_are_collected(crowd: Crowd) -> None:
    """sindresorhus/p-throttle#11, sindresorhus/p-queue#235: their tickets and tasks must not pile up behind it."""
    crowd.limiter.pause(1000)
    await crowd.queue(["patient"])

    for _ in range(50):
        tasks = [asyncio.ensure_future(crowd.limiter.acquire()) for _ in range(40)]
        await turns(2)
        for task in tasks:
            task.cancel()
        await turns(4)
    ghosts = [weakref.ref(task) for task in tasks]
    del tasks, task
    gc.collect()

    assert [ghost() for ghost in ghosts] == [None] * 40
    crowd.tasks["patient"].cancel()
    await turns(3)


async def test_a_cancellation_during_a_pause_or_stop_leaves_no_trace(crowd: Crowd) -> None:
    """The limiter's time stands still, but its line changes."""
    await crowd.queue("ABC")
    crowd.limiter.pause(5)
    crowd.limiter.apply("10,1,stop")

    crowd.tasks["A"].cancel()
    await crowd.clock.run(10)
    crowd.limiter.apply("10,1,start")
    await crowd.clock.run(1)

    assert crowd.granted == {"B": 10 * SECOND + SECOND // 10, "C": 10 * SECOND + 2 * SECOND // 10}


async def test_a_grant_cancelled_during_a_pause_gives_its_permit_back(crowd: Crowd) -> None:
    """The next waiter cannot be granted during the pause: the permit goes back to the scheduler, and is there when the pause ends."""
    await crowd.queue("AB")
    await granted_but_not_run(crowd)

    crowd.limiter.pause(1)
    crowd.tasks["A"].cancel()
    await crowd.clock.run(2)

    assert list(crowd.granted) == ["B"]
    assert crowd.granted["B"] in (SECOND // 10 + SECOND, 2 * SECOND // 10)
    assert crowd.limiter.statistics().granted == 2
