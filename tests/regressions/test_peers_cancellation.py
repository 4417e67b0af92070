"""Lost wake-ups and lost permits in other libraries, each named by its report. The general proof is in limiter/test_cancellation.py."""

from __future__ import annotations

import asyncio
import random

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, alive, one_loop, others, turns
from helpers.strategies import EACH

import aiorate
from aiorate.testing import ManualClock
from aiorate.waiting.asyncio.filler import FillerTicket

pytestmark = one_loop


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("after", range(5))
async def test_cancelling_one_of_two_at_its_grant_wakes_the_other(name: str, after: int) -> None:
    """python/cpython#112202, agronholm/anyio#1075, agronholm/anyio#947: the other hung, or came one period late."""
    clock = SteppedClock()
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    while crowd.limiter.try_acquire():
        pass
    due = round(crowd.limiter.delay() * SECOND)
    await crowd.queue("AB")

    clock.fire()
    await turns(after)
    crowd.tasks["A"].cancel()
    await turns(12)

    assert crowd.granted["A" if "A" in crowd.granted else "B"] == due
    await clock.run(5)
    assert crowd.tasks["B"].done()


@pytest.mark.parametrize("name", EACH)
async def test_cancellations_never_wedge_a_limiter(name: str) -> None:
    """python/cpython#90155, python/cpython#93222: a flag stayed set after cancellations, and no waiter was ever woken again."""
    dice, clock = random.Random(15), ManualClock()
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)

    for round_ in range(60):
        await crowd.queue((round_, k) for k in range(5))
        for who in crowd.pending:
            if dice.random() < 0.7:
                crowd.tasks[who].cancel()
            await turns(dice.randrange(2))
        await clock.run(dice.choice((0, 0.1, 0.3)))
    await clock.run(60)

    assert all(task.done() for task in crowd.tasks.values())
    assert (clock.timers, others()) == (0, set())


async def test_cancelling_in_any_order_leaves_no_trace() -> None:
    """golang/go#69419, golang/go#56924: cancelled reservations were not fully restored."""
    dice, clock = random.Random(16), ManualClock()
    crowd = Crowd(aiorate.Limiter(aiorate.TokenBucket("10/s", burst=5), clock=clock), clock)
    assert crowd.limiter.try_acquire(5)
    for who in range(50):
        crowd.ask(who, dice.randrange(1, 6))
    await turns(3)

    for who in sorted(crowd.tasks, key=lambda _: dice.random()):
        crowd.tasks[who].cancel()
        await turns(1)
    await turns(5)

    assert crowd.limiter.statistics().granted == 5
    assert [crowd.limiter.delay(n) for n in (1, 5)] == [0.1, 0.5]


async def test_many_timeouts_leave_nothing_behind() -> None:
    """sindresorhus/p-queue#235, aio-libs/aiodocker#259: timers and listeners were kept for each caller that gave up."""
    clock = ManualClock()
    limiter = aiorate.Limiter("1/h", clock=clock)
    assert limiter.try_acquire()

    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await limiter.acquire()

    outcomes = await asyncio.gather(*(impatient() for _ in range(5000)), return_exceptions=True)
    await turns(5)

    assert {type(outcome) for outcome in outcomes} == {TimeoutError}
    del outcomes  # their tracebacks keep objects alive
    assert (clock.timers, others(), limiter.statistics().waiting) == (0, set(), 0)
    assert alive(FillerTicket) == 0
