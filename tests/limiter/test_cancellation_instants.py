"""Cancellation at every point between request and run, of one waiter or of many: the others are granted as if those had never asked."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, one_loop, others, turns
from helpers.strategies import EACH

import aiorate

pytestmark = pytest.mark.asyncio


COUNT = 200
BOTH = {"filler": lambda: aiorate.TokenPool("10/s"), "alarm": lambda: aiorate.TokenBucket("10/s", burst=2)}
LARGE = {"filler": lambda: aiorate.TokenPool("10/s", pool=SECOND), "alarm": lambda: aiorate.TokenBucket("10/s", burst=10, initial=1)}


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


@one_loop
@pytest.mark.parametrize(("seed", "spread"), [(1, 0), (2, 30 * SECOND), (3, 5 * SECOND)])
@pytest.mark.parametrize("name", EACH)
async def test_cancelled_waiters_do_not_affect_the_others(name: str, seed: int, spread: int) -> None:
    """Half of 200 waiters are cancelled: before the grant, in the same iteration, after it, several at once."""
    clock, story = SteppedClock(SECOND), Story(seed, spread)
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    fired = await play(crowd, story, set(range(COUNT)), 1)
    # A task that ran before its cancellation counts as one that stayed.
    stayed = {who for who in range(COUNT) if not crowd.tasks[who].cancelled()}
    alone_clock = SteppedClock(SECOND)
    alone = Crowd(aiorate.Limiter(EACH[name](), clock=alone_clock), alone_clock)
    calm = Story(seed, spread)
    calm.at, calm.turn = {}, {}
    await play(alone, calm, stayed, 1)

    seen, alone_seen = crowd.limiter.statistics(), alone.limiter.statistics()

    # An eager task that need not wait is done before it can be cancelled.
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
async def test_cancelled_large_requests_do_not_affect_the_others(name: str, permits: int) -> None:
    """All of their permits come back, not just one."""
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
async def test_cancelled_requests_of_mixed_sizes_lose_no_permit(kind: str) -> None:
    """A large request delays the small one behind it until it is cancelled, but no permit of that time is lost."""
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
async def test_cancellation_at_each_iteration_after_the_timer_is_safe(kind: str, after: int) -> None:
    """Between timer and waiter are a callback, a task, a notice and a future: after each of them the next one moves up at once."""
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
async def test_a_permit_passes_a_whole_row_of_cancelled_waiters(kind: str) -> None:
    """They are cancelled between grant and run, at one instant, across several rows of the filler."""
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


async def test_a_notice_for_a_cancelled_waiter_wakes_the_granted_one() -> None:
    """python/cpython#112202 and its neighbour: a waiter of a row leaves while another is notified, and the row stays in order."""
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


@pytest.mark.parametrize("kind", LARGE)
async def test_a_small_request_moves_up_when_the_large_one_leaves(kind: str) -> None:
    """It was due long ago, and the timer was set for the large one."""
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
async def test_two_returned_grants_never_exceed_the_capacity(scheduler: Any) -> None:
    """What was taken in between stays recorded as long as any grant may come back, not only the first."""
    clock = SteppedClock()
    limiter = aiorate.Limiter(scheduler("10/s"), clock=clock)
    while limiter.try_acquire():
        pass
    first, second = limiter.acquire(), limiter.acquire()
    for waiter in (first, second):
        waiter.send(None)  # in line; it will be granted, but never run
    clock.set(SECOND // 5)
    await turns(5)
    assert limiter.delay() == 0.1

    first.close()
    clock.set(10 * SECOND)  # the bucket has been full for long
    assert limiter.try_acquire()
    second.close()

    assert [limiter.try_acquire() for _ in range(2)] == [True, False]
