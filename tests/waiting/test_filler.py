"""The filler: a task that exists while requests wait, and whose end, however it comes, leaves none of them waiting for ever."""

from __future__ import annotations

import asyncio
import random

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, alive, others, turns

import aiorate
from aiorate.testing import ManualClock
from aiorate.waiting.asyncio.filler import FillerTicket

pytestmark = pytest.mark.asyncio


@pytest.fixture
def crowd() -> Crowd:
    """A pool of 10 per second without its first permit."""
    clock = SteppedClock()
    limiter = aiorate.Limiter("10/s", clock=clock, name="api")
    assert limiter.try_acquire()
    return Crowd(limiter, clock)


def filler_task() -> asyncio.Task[None]:
    """The task of the only filler."""
    [task] = [task for task in asyncio.all_tasks() if task.get_name().startswith("aiorate-filler")]
    return task


async def test_the_task_is_named_and_lives_while_a_request_waits(crowd: Crowd) -> None:
    """A name in a task dump says which limiter it belongs to; an idle limiter has no task."""
    assert others() == set()

    await crowd.queue("AB")
    assert filler_task().get_name() == "aiorate-filler:api"
    await crowd.clock.run(1)

    assert others() == set()


async def test_one_task_serves_thousands(crowd: Crowd) -> None:
    """Not a task for each."""
    await crowd.queue(range(1000))

    assert len(others() - set(crowd.tasks.values())) == 1
    await crowd.limiter.aclose()
    await asyncio.wait(crowd.tasks.values())
    assert {type(task.exception()) for task in crowd.tasks.values()} == {aiorate.LimiterClosed}


@pytest.mark.parametrize("before", range(4))
async def test_cancelled_from_outside_it_is_replaced(crowd: Crowd, before: int) -> None:
    """Some code cancels every task that it finds, before the first step of this one or later: waiters never notice."""
    crowd.ask("A")
    crowd.ask("B")
    await turns(1 + before)

    filler_task().cancel()
    await turns(5)
    filler_task().cancel()
    await crowd.clock.run(1)

    assert crowd.granted == {"A": SECOND // 10, "B": 2 * SECOND // 10}
    assert (crowd.clock.timers, others()) == (0, set())


async def test_a_grant_stands_if_the_filler_is_cancelled_before_notice(crowd: Crowd) -> None:
    """The cancellation comes between the grant and the notice; the ticket holds the grant."""
    await crowd.queue("AB")
    crowd.clock.fire()
    filler_task().cancel()
    await turns(8)

    assert crowd.granted == {"A": SECOND // 10}
    await crowd.clock.run(1)
    assert crowd.granted == {"A": SECOND // 10, "B": 2 * SECOND // 10}


class Broken(ManualClock):
    """A clock that can be told to fail."""

    error: BaseException | None = None

    def now(self) -> int:
        if self.error is not None:
            raise self.error
        return super().now()


@pytest.mark.parametrize("scheduler", [aiorate.TokenPool, lambda rate: aiorate.TokenBucket(rate, burst=1)])
async def test_a_clock_error_fails_the_waiters_not_the_limiter(scheduler: type[aiorate.TokenPool]) -> None:
    """An error during a decision is raised in all waiters; the next request finds the limiter in order."""
    clock = Broken()
    crowd = Crowd(aiorate.Limiter(scheduler("10/s"), clock=clock), clock)
    await crowd.queue("ABC")

    clock.error = OSError("no time")
    clock.set(SECOND // 10)
    await turns(8)
    assert [str(crowd.tasks[who].exception()) for who in "BC"] == ["no time", "no time"]
    with pytest.raises(OSError, match="no time"):
        await crowd.limiter.acquire()
    clock.error = None
    await crowd.queue("D")
    await clock.run(1)

    assert crowd.granted["D"] <= 2 * SECOND // 10
    assert others() == set()


class Failing(aiorate.TokenPool):
    """A scheduler that sometimes fails."""

    broken = False

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if self.broken:
            raise ZeroDivisionError("defect")
        return super().take(permits, now, since)


async def test_a_scheduler_error_fails_the_waiters_not_the_limiter() -> None:
    """An exception in the driver is raised in the waiters, and none of them hangs."""
    clock, scheduler = ManualClock(), Failing("10/s")
    crowd = Crowd(aiorate.Limiter(scheduler, clock=clock), clock)
    await crowd.queue(range(100))

    scheduler.broken = True
    await clock.run(0.1)
    scheduler.broken = False
    failed = [type(crowd.tasks[who].exception()) for who in range(1, 100)]
    await crowd.queue(["D"])
    await clock.run(1)

    assert failed == [ZeroDivisionError] * 99
    assert "D" in crowd.granted
    assert others() == set()


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


async def test_a_row_without_waiters_is_not_kept() -> None:
    """The next waiter begins a new row; nothing piles up over ten thousand rounds of one waiter."""
    clock = ManualClock()
    limiter = aiorate.Limiter("1000000/s", clock=clock)

    for _ in range(100):
        limiter.charge(10_000)
        task = asyncio.ensure_future(limiter.acquire())
        await clock.run(0.02)
        assert task.done()

    assert others() == set()
    assert alive(asyncio.Condition, FillerTicket) == 0


async def test_its_context_is_not_that_of_the_first_waiter() -> None:
    """A context variable of the first request must not live as long as the task."""
    from contextvars import ContextVar

    request: ContextVar[str] = ContextVar("request", default="nobody's")
    seen = []

    class Watched(aiorate.TokenPool):
        def take(self, permits: int, now: int, since: int | None = None) -> int:
            seen.append(request.get())
            return super().take(permits, now, since)

    clock = ManualClock()
    limiter = aiorate.Limiter(Watched("10/s"), clock=clock)
    request.set("mine")
    assert await limiter.acquire() == 0.0

    task = asyncio.ensure_future(limiter.acquire())
    await clock.run(1)

    assert task.result() == 0.1
    assert (seen[0], seen[-1]) == ("mine", "nobody's")
