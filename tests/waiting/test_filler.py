"""The filler: a task that exists while requests wait, and whose end, however it comes, leaves none of them waiting for ever."""

from __future__ import annotations

import asyncio
import random

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, others, turns

import aiorate

pytestmark = pytest.mark.asyncio


def pool() -> Crowd:
    """A pool of 10 per second without its first permit."""
    clock = SteppedClock()
    limiter = aiorate.Limiter("10/s", clock=clock, name="api")
    assert limiter.try_acquire()
    return Crowd(limiter, clock)


def filler_task() -> asyncio.Task[None]:
    """The task of the only filler."""
    [task] = [task for task in asyncio.all_tasks() if task.get_name().startswith("aiorate-filler")]
    return task


async def test_the_task_is_named_and_lives_while_a_request_waits() -> None:
    """A name in a task dump says which limiter it belongs to; an idle limiter has no task."""
    crowd = pool()
    assert others() == set()

    await crowd.queue("AB")
    assert filler_task().get_name() == "aiorate-filler:api"
    await crowd.clock.run(1)

    assert others() == set()


async def test_cancelled_from_outside_it_is_replaced() -> None:
    """Some code cancels every task that it finds, before the first step of this one or later: waiters never notice."""
    for before in range(4):
        crowd = pool()
        crowd.ask("A")
        crowd.ask("B")
        await turns(1 + before)

        filler_task().cancel()
        await turns(5)
        filler_task().cancel()
        await crowd.clock.run(1)

        assert crowd.granted == {"A": SECOND // 10, "B": 2 * SECOND // 10}, before
        assert (crowd.clock.timers, others()) == (0, set()), before


async def test_a_grant_stands_if_the_filler_is_cancelled_before_notice() -> None:
    """The cancellation comes between the grant and the notice; the waiter holds the grant."""
    crowd = pool()
    await crowd.queue("AB")
    crowd.clock.fire()
    filler_task().cancel()
    await turns(8)

    assert crowd.granted == {"A": SECOND // 10}
    await crowd.clock.run(1)
    assert crowd.granted == {"A": SECOND // 10, "B": 2 * SECOND // 10}


async def test_rows_wake_exactly_the_granted_waiters() -> None:
    """1000 waiters in rows of 64; grants, cancellations and arrivals in the same steps, at random: no waiter misses its grant."""
    dice = random.Random(8)
    clock = SteppedClock()
    crowd = Crowd(aiorate.Limiter(aiorate.TokenPool("1000/s", pool=50_000_000), clock=clock), clock)
    names = iter(range(100_000))
    await crowd.queue(next(names) for _ in range(300))

    for _ in range(150):
        for _ in range(dice.randrange(8)):
            crowd.ask(next(names))
        await turns(dice.randrange(3))
        for who in dice.sample(crowd.pending, min(len(crowd.pending), dice.randrange(6))):
            crowd.tasks[who].cancel()
        crowd.clock.fire()
        await turns(dice.randrange(4))
        if dice.random() < 0.2:
            crowd.limiter.refund(dice.randrange(1, 20))
    await clock.run(20)

    instants = [crowd.granted[who] for who in sorted(crowd.granted)]
    assert all(task.done() for task in crowd.tasks.values())
    # No request is granted at an earlier instant than one before it in line. Within an iteration of the loop, tasks may run in
    # another order: from CPython 3.13 on, a Condition passes the notice of a cancelled waiter on to one that may be later in line.
    assert instants == sorted(instants)
    assert crowd.limiter.statistics().waiting == 0
    assert (clock.timers, others()) == (0, set())


class Limited(aiorate.TokenPool):
    """A custom pool that grants at once at most the permits of a second."""

    @property
    def max_permits(self) -> int:  # type: ignore[override]
        return self.rate.permits


async def test_a_waiter_that_fails_mid_row_leaves_the_others_waiting() -> None:
    """A notice wakes the longest waiter of the row, which is not the one that it is for."""
    clock = SteppedClock()
    crowd = Crowd(aiorate.Limiter(Limited("10/s"), clock=clock), clock)
    assert crowd.limiter.try_acquire()
    sizes = {"A": 1, "B": 5, "C": 1, "D": 4, "E": 1}
    for name, permits in sizes.items():
        crowd.ask(name, permits)
    await turns(5)

    crowd.limiter.set_rate("2/s")
    await turns(8)
    gone = [name for name, task in crowd.tasks.items() if task.done()]
    await clock.run(5)

    assert gone == ["B", "D"]
    assert {type(crowd.tasks[name].exception()) for name in gone} == {ValueError}
    assert list(crowd.granted) == ["A", "C", "E"]
    assert others() == set()
