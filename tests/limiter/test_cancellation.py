"""Cancelled at every possible point, in every way that asyncio has: nothing is lost, nothing is created, and nobody else notices."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, one_loop, others, turns
from helpers.strategies import EACH

import aiorate

pytestmark = pytest.mark.asyncio

COUNT = 200
BOTH = {"filler": lambda: aiorate.TokenPool("10/s"), "alarm": lambda: aiorate.TokenBucket("10/s", burst=2)}


class Story:
    """Who asks when, and who is cancelled when: at an instant, or so many turns after a timer fired while at the head of the line."""

    def __init__(self, seed: int, spread: int) -> None:
        dice = random.Random(seed)
        self.arrivals = [SECOND, *sorted(SECOND + dice.randrange(spread + 1) for _ in range(COUNT - 1))]
        # The first one stays: a schedule begins when it is first asked.
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
    """Have the cast play the story; returns how often timers fired."""
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


@one_loop
@pytest.mark.parametrize(("seed", "spread"), [(1, 0), (2, 30 * SECOND), (3, 5 * SECOND)])
@pytest.mark.parametrize("name", EACH)
async def test_those_who_stay_never_notice_those_who_leave(name: str, seed: int, spread: int) -> None:
    """Of 200 waiters a random half is cancelled: before the grant, in the loop step of the grant, after it, several at once."""
    clock, story = SteppedClock(SECOND), Story(seed, spread)
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    fired = await play(crowd, story, set(range(COUNT)), 1)
    # Whoever was granted and had run before its turn to be cancelled came is one of those who stayed.
    stayed = {who for who in range(COUNT) if not crowd.tasks[who].cancelled()}
    alone_clock = SteppedClock(SECOND)
    alone = Crowd(aiorate.Limiter(EACH[name](), clock=alone_clock), alone_clock)
    calm = Story(seed, spread)
    calm.at, calm.turn = {}, {}
    await play(alone, calm, stayed, 1)

    seen, alone_seen = crowd.limiter.statistics(), alone.limiter.statistics()

    # An eager task that need not wait is done before anybody can cancel it.
    assert len(stayed) < COUNT - 15 or asyncio.get_running_loop().get_task_factory() is not None
    assert crowd.granted == alone.granted
    assert set(crowd.granted) == stayed
    assert (seen.granted, seen.waiting) == (len(stayed), 0)
    assert (seen.waited_total, seen.waited_max) == (alone_seen.waited_total, alone_seen.waited_max)
    assert fired <= 2 * COUNT
    assert (clock.timers, others()) == (0, set())


@one_loop
@pytest.mark.parametrize("permits", [2, 3])
@pytest.mark.parametrize("name", ["TokenPool", "TokenPool-burst", "TokenBucket", "TicksAccumulator", "CalendarWindow", "AllOf"])
async def test_those_who_stay_never_notice_larger_requests_that_leave(name: str, permits: int) -> None:
    """What is handed on is the whole request, not one permit of it."""
    clock, story = SteppedClock(SECOND), Story(permits, 20 * SECOND)
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    await play(crowd, story, set(range(COUNT)), permits)
    stayed = {who for who in range(COUNT) if not crowd.tasks[who].cancelled()}
    alone_clock = SteppedClock(SECOND)
    alone = Crowd(aiorate.Limiter(EACH[name](), clock=alone_clock), alone_clock)
    calm = Story(permits, 20 * SECOND)
    calm.at, calm.turn = {}, {}
    await play(alone, calm, stayed, permits)

    assert crowd.granted == alone.granted
    assert crowd.limiter.statistics().granted == permits * len(stayed)


@one_loop
@pytest.mark.parametrize("kind", BOTH)
async def test_mixed_sizes_that_leave_delay_nobody_for_longer_than_they_stood_there(kind: str) -> None:
    """A large request that gives up has held up the small one behind it, but no permit of its time is lost to those who follow."""
    dice = random.Random(4)
    clock = SteppedClock(SECOND)
    crowd = Crowd(aiorate.Limiter(BOTH[kind](), clock=clock), clock)
    sizes = [1, *(dice.choice((1, 2)) for _ in range(99))]
    for who, size in enumerate(sizes):
        crowd.ask(who, size)
    await turns(3)
    gone = set(dice.sample(range(1, 100), 50))
    for who in sorted(gone, key=lambda _: dice.random()):
        await clock.run(0.15)
        crowd.tasks[who].cancel()
    await clock.run(60)
    stayed = [who for who in range(100) if not crowd.tasks[who].cancelled()]

    total = sum(sizes[who] for who in stayed)

    assert sorted(crowd.granted) == stayed
    assert crowd.limiter.statistics().granted == total
    assert others() == set()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("after", range(6))
async def test_each_turn_of_the_loop_after_the_timer_is_safe_to_be_cancelled_in(kind: str, after: int) -> None:
    """Between the timer and the waiter lie a poke, a task, a notice and a future: at each of them the next one moves up at once."""
    clock = SteppedClock()
    crowd = Crowd(aiorate.Limiter(BOTH[kind](), clock=clock), clock)
    assert crowd.limiter.try_acquire(2 if kind == "alarm" else 1)
    await crowd.queue("ABC")

    crowd.clock.fire()
    await turns(after)
    crowd.tasks["A"].cancel()
    await clock.run(0.3)

    if crowd.tasks["A"].cancelled():
        assert crowd.granted == {"B": SECOND // 10, "C": 2 * SECOND // 10}
    else:
        assert crowd.granted == {"A": SECOND // 10, "B": 2 * SECOND // 10, "C": 3 * SECOND // 10}


@pytest.mark.parametrize("kind", BOTH)
async def test_a_whole_row_cancelled_between_grant_and_run_leaves_the_permit_to_the_last(kind: str) -> None:
    """The permit is handed on from one who leaves to the next who leaves, across rows, within one instant."""
    clock = SteppedClock()
    crowd = Crowd(aiorate.Limiter(BOTH[kind](), clock=clock), clock)
    crowd.limiter.try_acquire(2 if kind == "alarm" else 1)
    await crowd.queue(range(200))

    crowd.clock.fire()
    await turns(1 if kind == "filler" else 0)
    for who in range(150):
        crowd.tasks[who].cancel()
    await turns(12)

    assert crowd.granted == {150: SECOND // 10}
    await clock.run(10)
    assert list(crowd.granted.items()) == [(150 + k, (k + 1) * SECOND // 10) for k in range(50)]


async def test_a_notice_meant_for_one_who_left_wakes_the_one_who_was_granted() -> None:
    """python/cpython#112202 and the trap beside it: one of a row leaves while another is notified; each row is in order again."""
    clock = SteppedClock()
    crowd = Crowd(aiorate.Limiter("10/s", clock=clock), clock)
    crowd.limiter.try_acquire()
    await crowd.queue(range(130))
    dice = random.Random(5)

    for _ in range(129):
        crowd.clock.fire()
        await turns(dice.randrange(3))
        for who in dice.sample(crowd.pending[:66], min(2, len(crowd.pending))):
            crowd.tasks[who].cancel()
        await turns(12)
    stayed = [who for who in range(130) if not crowd.tasks[who].cancelled()]

    assert list(crowd.granted) == stayed
    assert [at // (SECOND // 10) for at in crowd.granted.values()] == list(range(1, len(stayed) + 1))
    assert others() == set()


# All the ways that asyncio has to take a waiter away: each gives back what it must, once.


class Counting:
    """A scheduler that counts the permits it has granted."""

    granted = 0

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at: int = super().take(permits, now, since)  # type: ignore[misc]
        self.granted += permits if at <= now else 0
        return at


class CountingPool(Counting, aiorate.TokenPool):
    """The filler's."""


class CountingPace(Counting, aiorate.BurstCompensation):
    """The alarm's."""


KINDS: dict[str, Any] = {"filler": CountingPool, "alarm": CountingPace}


@pytest.fixture(params=KINDS)
def crowd(request: pytest.FixtureRequest) -> Crowd:
    """A limiter of 10 per second whose first permit is gone."""
    clock = SteppedClock()
    limiter = aiorate.Limiter(KINDS[request.param]("10/s"), clock=clock)
    assert limiter.try_acquire()
    return Crowd(limiter, clock)


async def granted_but_not_run(crowd: Crowd) -> None:
    """Go to the instant of the next grant, and only as far as the driver's decision."""
    scheduler: Any = crowd.limiter.scheduler
    before = scheduler.granted
    crowd.clock.fire()
    while scheduler.granted == before:
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


LARGE = {"filler": lambda: aiorate.TokenPool("10/s", pool=SECOND), "alarm": lambda: aiorate.TokenBucket("10/s", burst=10, initial=1)}


@pytest.mark.parametrize("kind", LARGE)
async def test_when_a_large_request_leaves_the_small_one_behind_it_moves_up_at_once(kind: str) -> None:
    """It was due long ago, and only stood behind: its timer was set for the one that left."""
    clock = SteppedClock()
    crowd = Crowd(aiorate.Limiter(LARGE[kind](), clock=clock), clock)
    assert crowd.limiter.try_acquire()
    crowd.ask("large", 10)
    crowd.ask("small", 1)
    await clock.run(0.5)
    assert crowd.granted == {}

    crowd.tasks["large"].cancel()
    await turns(12)

    assert crowd.granted == {"small": SECOND // 2}


@pytest.mark.parametrize("scheduler", [aiorate.TokenPool, lambda rate: aiorate.TokenBucket(rate, burst=2)])
async def test_of_two_grants_that_come_back_the_second_is_not_credited_beyond_full_either(scheduler: Any) -> None:
    """What was taken in the meantime is on record as long as any grant may still come back, not only the first."""
    clock = SteppedClock()
    limiter = aiorate.Limiter(scheduler("10/s"), clock=clock)
    while limiter.try_acquire():
        pass
    first, second = limiter.acquire(), limiter.acquire()
    for waiter in (first, second):
        waiter.send(None)  # in line, and granted when the clock says so, but not run
    clock.set(SECOND // 5)
    await turns(5)
    assert limiter.delay() == 0.1

    first.close()
    clock.set(10 * SECOND)  # full long since
    assert limiter.try_acquire()
    second.close()

    assert [limiter.try_acquire() for _ in range(2)] == [True, False]


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
