"""Cancellation in every way that asyncio has, at every point from request to run: the others never notice."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, others, turns
from helpers.strategies import EACH

import aiorate
from aiorate import Limiter, TokenBucket, TokenPool

pytestmark = pytest.mark.asyncio


class Counting:
    """A scheduler that counts the permits that it has granted."""

    granted = 0

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at: int = super().take(permits, now, since)  # type: ignore[misc]
        self.granted += permits if at <= now else 0
        return at


class CountingPool(Counting, TokenPool):
    """Served by the filler."""


class CountingPace(Counting, aiorate.BurstCompensation):
    """Served by the alarm."""


BOTH: dict[str, Any] = {"filler": lambda: TokenPool("10/s"), "alarm": lambda: TokenBucket("10/s", burst=2)}


@pytest.fixture(params=[CountingPool, CountingPace])
def crowd(request: pytest.FixtureRequest) -> Crowd:
    """Tasks for a limiter of 10 per second whose first permit is taken."""
    clock = SteppedClock()
    limiter = Limiter(request.param("10/s"), clock=clock)
    assert limiter.try_acquire()
    return Crowd(limiter, clock)


def drained(scheduler: aiorate.Scheduler) -> Crowd:
    """Tasks for a limiter on a clock at 0 that has no permit left."""
    clock = SteppedClock()
    limiter = Limiter(scheduler, clock=clock)
    while limiter.try_acquire():
        pass
    return Crowd(limiter, clock)


async def granted_but_not_run(crowd: Crowd) -> None:
    """Go to the instant of the next grant, until the driver has decided and before the task runs."""
    scheduler: Any = crowd.limiter.scheduler
    before = scheduler.granted
    crowd.clock.fire()
    while scheduler.granted == before:
        await turns(1)


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
    await crowd.queue("ABC")
    await granted_but_not_run(crowd)

    for _ in range(3):
        crowd.tasks["A"].cancel()
    await crowd.clock.run(1)

    assert crowd.granted == {"B": SECOND // 10, "C": 2 * SECOND // 10}
    assert crowd.limiter.statistics().granted == 3


async def test_a_cancelled_waiter_may_ask_again_and_is_last_in_line(crowd: Crowd) -> None:
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


async def test_cancelled_waiters_are_collected(crowd: Crowd) -> None:
    """sindresorhus/p-throttle#11, sindresorhus/p-queue#235: their tasks must not pile up behind a long wait."""
    crowd.limiter.pause(1000)
    await crowd.queue(["patient"])
    kept = []

    for _ in range(5):
        tasks = [asyncio.ensure_future(crowd.limiter.acquire()) for _ in range(40)]
        ghosts = [weakref.ref(task) for task in tasks]
        await turns(2)
        for task in tasks:
            task.cancel()
        await turns(4)
        del tasks, task
        gc.collect()
        kept.append(sum(ghost() is not None for ghost in ghosts))

    assert kept == [0] * 5
    crowd.tasks["patient"].cancel()
    await turns(3)


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


# At every point, of one waiter or of many.


COUNT = 60


class Story:
    """Instants of requests and of cancellations, or for some, iterations of the loop after a timer while first in line."""

    def __init__(self, seed: int, spread: int) -> None:
        dice = random.Random(seed)
        self.arrivals = [SECOND, *sorted(SECOND + dice.randrange(spread + 1) for _ in range(COUNT - 1))]
        # The first request is never cancelled, since a schedule begins with it.
        self.gone = set(dice.sample(range(1, COUNT), COUNT // 2))
        self.at: dict[int, list[int]] = {}
        self.turn: dict[int, int] = {}
        for who in self.gone:
            if dice.random() < 0.6:
                self.turn[who] = dice.randrange(5)
            else:
                instant = self.arrivals[who] + dice.choice(
                    (0, dice.randrange(SECOND), dice.randrange(20 * SECOND), dice.randrange(90) * SECOND // 10)
                )
                self.at.setdefault(instant, []).append(who)


async def play(crowd: Crowd, story: Story, cast: set[int], permits: int) -> int:
    """Make the requests in ``cast`` as the story says; return how often timers fired."""
    clock, fired = crowd.clock, 0
    steps = sorted({*story.arrivals, *story.at})
    while steps or clock.timers:
        instant = clock.next_timer
        if instant is not None and (not steps or instant <= steps[0]):
            clock.fire()
            fired += 1
        else:
            clock.set(steps.pop(0))
            for who in (who for who in cast if story.arrivals[who] == clock.now()):
                crowd.ask(who, permits)
            for who in story.at.get(clock.now(), ()):
                if who in cast:
                    crowd.tasks[who].cancel()
        for turn in range(12):
            for who in crowd.pending[:3]:
                if story.turn.get(who) == turn and who in cast:
                    crowd.tasks[who].cancel()
            await turns(1)
    return fired


@pytest.mark.parametrize("name", EACH)
async def test_cancelled_waiters_do_not_affect_the_others(name: str) -> None:
    """Half of them are cancelled: before the grant, in the same iteration, after it, several at once."""
    rows = [(1, 0, 1), (2, COUNT * SECOND // 10, 1)]
    if name in ("TokenPool", "TokenPool-burst", "TokenBucket", "TicksAccumulator", "CalendarWindow", "AllOf"):
        rows += [(3, COUNT * SECOND // 10, 3)]
    for seed, spread, permits in rows:
        story, calm = Story(seed, spread), Story(seed, spread)
        calm.at, calm.turn = {}, {}
        crowd, alone = (Crowd(Limiter(EACH[name](), clock=clock), clock) for clock in (SteppedClock(SECOND), SteppedClock(SECOND)))
        fired = await play(crowd, story, set(range(COUNT)), permits)
        # A task that ran before its cancellation counts as one that stayed.
        stayed = {who for who in range(COUNT) if not crowd.tasks[who].cancelled()}
        await play(alone, calm, stayed, permits)
        seen, alone_seen = crowd.limiter.statistics(), alone.limiter.statistics()

        # An eager task that need not wait is done before it can be cancelled.
        assert len(stayed) < COUNT * 0.9 or asyncio.get_running_loop().get_task_factory() is not None
        assert crowd.granted == alone.granted, (seed, permits)
        assert set(crowd.granted) == stayed
        assert (seen.granted, seen.waiting) == (permits * len(stayed), 0)
        assert (seen.waited_total, seen.waited_max) == (alone_seen.waited_total, alone_seen.waited_max)
        assert fired <= 2 * COUNT
        assert (crowd.clock.timers, others()) == (0, set())


@pytest.mark.parametrize("kind", BOTH)
async def test_a_permit_passes_a_whole_row_of_cancelled_waiters(kind: str) -> None:
    crowd = drained(BOTH[kind]())
    await crowd.queue(range(200))

    crowd.clock.fire()
    await turns(1 if kind == "filler" else 0)
    for who in range(150):
        crowd.tasks[who].cancel()
    await turns(12)

    assert crowd.granted == {150: SECOND // 10}
    await crowd.clock.run(10)
    assert list(crowd.granted.items()) == [(150 + k, (k + 1) * SECOND // 10) for k in range(50)]
