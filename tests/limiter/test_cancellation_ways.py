"""All the ways asyncio has to take a waiter away: each gives back what it must, once."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, others, turns

import aiorate
from aiorate.testing import ManualClock

pytestmark = pytest.mark.asyncio

KINDS: dict[str, Any] = {"filler": lambda: aiorate.TokenPool("10/s"), "alarm": lambda: aiorate.BurstCompensation("10/s")}


@pytest.fixture(params=KINDS)
def crowd(request: pytest.FixtureRequest) -> Crowd:
    """A limiter of 10 per second whose first permit is gone."""
    clock = ManualClock()
    limiter = aiorate.Limiter(KINDS[request.param](), clock=clock)
    assert limiter.try_acquire()
    return Crowd(limiter, clock)


async def granted_but_not_run(crowd: Crowd) -> None:
    """Go to the instant of the next grant, and only as far as the driver's decision."""
    before = crowd.limiter._dispatcher.granted
    await crowd.fire()
    while crowd.limiter._dispatcher.granted == before:
        await turns(1)


async def test_a_timeout_gives_up_the_place_in_line(crowd: Crowd) -> None:
    """`asyncio.timeout` around acquire is the usual way to give up; the next one must not pay for it."""
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
    """`asyncio.wait_for` runs the waiter in a task of its own on 3.11, and cancels that."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(crowd.limiter.acquire(), 0.001)
    await crowd.queue("A")
    await crowd.clock.run(1)

    assert crowd.granted == {"A": SECOND // 10}
    assert crowd.limiter.statistics().granted == 2


async def test_a_failing_task_group_takes_its_waiters_with_it(crowd: Crowd) -> None:
    """When one child fails, the group cancels the others all in one step."""

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
    """A coroutine that nobody drives any more is closed, not cancelled: GeneratorExit, and no loop step to do anything in."""
    coroutine = crowd.limiter.acquire()
    coroutine.send(None)
    await crowd.queue("A")

    coroutine.close()
    await crowd.clock.run(1)

    assert crowd.granted == {"A": SECOND // 10}
    assert crowd.limiter.statistics().cancelled == 1
    assert others() == set()


async def test_cancelled_twice_counts_once(crowd: Crowd) -> None:
    """Impatient callers cancel again; a second cancellation must not give back a second permit."""
    await crowd.queue("ABC")
    await granted_but_not_run(crowd)

    for _ in range(3):
        crowd.tasks["A"].cancel()
    await crowd.clock.run(1)

    assert crowd.granted == {"B": SECOND // 10, "C": 2 * SECOND // 10}
    assert crowd.limiter.statistics().granted == 3


async def test_a_waiter_that_was_granted_may_cancel_the_next_one(crowd: Crowd) -> None:
    """Cancelled from within another task that has just been granted, in the very step of its grant."""
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


async def test_those_who_leave_may_ask_again_at_once_and_stand_at_the_end(crowd: Crowd) -> None:
    """A retry in an except clause runs while the line is being put in order."""

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
    """Callbacks run between loop steps; try_acquire and cancel from there see a line in order."""
    seen: list[bool] = []

    def callback(_: asyncio.Future[float]) -> None:
        seen.append(crowd.limiter.try_acquire())
        crowd.tasks["B"].cancel()

    crowd.ask("A").add_done_callback(callback)
    await crowd.queue("BC")
    await crowd.clock.run(1)

    assert seen == [False]
    assert crowd.granted == {"A": SECOND // 10, "C": 2 * SECOND // 10}


async def test_cancelling_the_last_one_ends_driver_and_timer(crowd: Crowd) -> None:
    """A filler whose only waiter went must end, not sleep on."""
    await crowd.queue("A")
    assert crowd.clock.timers == 1

    crowd.tasks["A"].cancel()
    await turns(5)

    assert (crowd.clock.timers, others()) == (0, set())


async def test_one_who_arrives_while_the_driver_ends_is_served(crowd: Crowd) -> None:
    """The last one leaves and the next arrives in the same loop steps: at each of them somebody must be there for it."""
    for pause in range(6):
        before = crowd.clock.now()
        await crowd.queue(["last"])
        crowd.tasks["last"].cancel()
        await turns(pause)
        crowd.ask(pause)
        await crowd.clock.run(0.2)

        assert crowd.granted[pause] - before <= SECOND // 10


async def test_those_who_gave_up_are_forgotten_while_the_first_waits_on(crowd: Crowd) -> None:
    """sindresorhus/p-throttle#11, sindresorhus/p-queue#235: neither tickets nor tasks of the gone may pile up behind one long wait."""
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
    assert len(crowd.limiter._dispatcher.line._queue) < 300
    crowd.tasks["patient"].cancel()
    await turns(3)


async def test_a_waiter_cancelled_during_a_pause_or_stop_leaves_no_trace(crowd: Crowd) -> None:
    """Time stands still, but people may still go."""
    await crowd.queue("ABC")
    crowd.limiter.pause(5)
    crowd.limiter.apply("10,1,stop")

    crowd.tasks["A"].cancel()
    await crowd.clock.run(10)
    crowd.limiter.apply("10,1,start")
    await crowd.clock.run(1)

    assert crowd.granted == {"B": 10 * SECOND + SECOND // 10, "C": 10 * SECOND + 2 * SECOND // 10}


async def test_granted_then_paused_then_cancelled_gives_the_permit_back(crowd: Crowd) -> None:
    """The heir may not run during a pause, so the permit goes to the scheduler and is there when the pause ends."""
    await crowd.queue("AB")
    await granted_but_not_run(crowd)

    crowd.limiter.pause(1)
    crowd.tasks["A"].cancel()
    await crowd.clock.run(2)

    assert list(crowd.granted) == ["B"]
    assert crowd.granted["B"] in (SECOND // 10 + SECOND, 2 * SECOND // 10)
    assert crowd.limiter.statistics().granted == 2
