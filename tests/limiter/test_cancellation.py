"""Cancelled at every possible point: nothing is lost, nothing is created, and nobody else notices."""

from __future__ import annotations

import random

import pytest
from helpers.driving import SECOND, Crowd, others, turns
from helpers.strategies import EACH

import aiorate
from aiorate.testing import ManualClock

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
        instant = clock._next()
        if instant is not None and (not steps or instant <= steps[0]):
            await crowd.fire()
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


@pytest.mark.parametrize(("seed", "spread"), [(1, 0), (2, 30 * SECOND), (3, 5 * SECOND)])
@pytest.mark.parametrize("name", EACH)
async def test_those_who_stay_never_notice_those_who_leave(name: str, seed: int, spread: int) -> None:
    """Of 200 waiters a random half is cancelled: before the grant, in the loop step of the grant, after it, several at once."""
    clock, story = ManualClock(SECOND), Story(seed, spread)
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    fired = await play(crowd, story, set(range(COUNT)), 1)
    # Whoever was granted and had run before its turn to be cancelled came is one of those who stayed.
    stayed = {who for who in range(COUNT) if not crowd.tasks[who].cancelled()}
    alone_clock = ManualClock(SECOND)
    alone = Crowd(aiorate.Limiter(EACH[name](), clock=alone_clock), alone_clock)
    calm = Story(seed, spread)
    calm.at, calm.turn = {}, {}
    await play(alone, calm, stayed, 1)

    seen, alone_seen = crowd.limiter.statistics(), alone.limiter.statistics()

    assert len(stayed) < COUNT - 15
    assert crowd.granted == alone.granted
    assert set(crowd.granted) == stayed
    assert (seen.granted, seen.waiting) == (len(stayed), 0)
    assert (seen.waited_total, seen.waited_max) == (alone_seen.waited_total, alone_seen.waited_max)
    assert fired <= 2 * COUNT
    assert (clock.timers, others()) == (0, set())


@pytest.mark.parametrize("permits", [2, 3])
@pytest.mark.parametrize("name", ["TokenPool", "TokenPool-burst", "TokenBucket", "TicksAccumulator", "CalendarWindow", "AllOf"])
async def test_those_who_stay_never_notice_larger_requests_that_leave(name: str, permits: int) -> None:
    """What is handed on is the whole request, not one permit of it."""
    clock, story = ManualClock(SECOND), Story(permits, 20 * SECOND)
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    await play(crowd, story, set(range(COUNT)), permits)
    stayed = {who for who in range(COUNT) if not crowd.tasks[who].cancelled()}
    alone_clock = ManualClock(SECOND)
    alone = Crowd(aiorate.Limiter(EACH[name](), clock=alone_clock), alone_clock)
    calm = Story(permits, 20 * SECOND)
    calm.at, calm.turn = {}, {}
    await play(alone, calm, stayed, permits)

    assert crowd.granted == alone.granted
    assert crowd.limiter.statistics().granted == permits * len(stayed)


@pytest.mark.parametrize("kind", BOTH)
async def test_mixed_sizes_that_leave_delay_nobody_for_longer_than_they_stood_there(kind: str) -> None:
    """A large request that gives up has held up the small one behind it, but no permit of its time is lost to those who follow."""
    dice = random.Random(4)
    clock = ManualClock(SECOND)
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
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(BOTH[kind](), clock=clock), clock)
    assert crowd.limiter.try_acquire(2 if kind == "alarm" else 1)
    await crowd.queue("ABC")

    await crowd.fire()
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
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(BOTH[kind](), clock=clock), clock)
    crowd.limiter.try_acquire(2 if kind == "alarm" else 1)
    await crowd.queue(range(200))

    await crowd.fire()
    await turns(1 if kind == "filler" else 0)
    for who in range(150):
        crowd.tasks[who].cancel()
    await turns(12)

    assert crowd.granted == {150: SECOND // 10}
    await clock.run(10)
    assert list(crowd.granted.items()) == [(150 + k, (k + 1) * SECOND // 10) for k in range(50)]


async def test_a_notice_meant_for_one_who_left_wakes_the_one_who_was_granted() -> None:
    """python/cpython#112202 and the trap beside it: one of a row leaves while another is notified; each row is in order again."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter("10/s", clock=clock), clock)
    crowd.limiter.try_acquire()
    await crowd.queue(range(130))
    dice = random.Random(5)

    for _ in range(129):
        await crowd.fire()
        await turns(dice.randrange(3))
        for who in dice.sample(crowd.pending[:66], min(2, len(crowd.pending))):
            crowd.tasks[who].cancel()
        await turns(12)
    stayed = [who for who in range(130) if not crowd.tasks[who].cancelled()]

    assert list(crowd.granted) == stayed
    assert [at // (SECOND // 10) for at in crowd.granted.values()] == list(range(1, len(stayed) + 1))
    assert others() == set()
