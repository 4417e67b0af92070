"""Places come back: after cancellation at any point, a refusal, the end of a loop, and a fork."""

from __future__ import annotations

import asyncio
import gc
import os
import random

import pytest
from helpers.driving import SteppedClock, one_loop, others, turns
from helpers.platforms import needs_fork
from helpers.visitors import Visitors

import aiorate
from aiorate import Limiter, TokenBucket

pytestmark = one_loop


@pytest.mark.parametrize("permits", [1, 2])
async def test_cancellation_at_every_point_loses_nothing(permits: int) -> None:
    """No place and no permit: while waiting for the place, granted it, waiting for the permit, granted that, and inside."""
    ended = set()
    for step in range(8):
        for turn in range(10):
            clock = SteppedClock()
            limiter = Limiter(TokenBucket("1/s", burst=2), clock=clock, max_concurrency=1)
            visitors = Visitors(limiter, clock)
            await visitors.queue("a", 2)
            await visitors.queue("bc", permits)
            for number in range(8):
                if number == 2:
                    visitors.over["a"].set()
                elif number > 4 and clock.next_timer is not None:
                    clock.advance(1)
                for count in range(10):
                    if (number, count) == (step, turn):
                        visitors.tasks["b"].cancel()
                    await turns(1)
            task = visitors.tasks["b"]
            ended.add((task.cancelled(), "b" in visitors.began))
            await visitors.go("b", "c")
            await clock.run(10)
            await visitors.go("b", "c")
            counts = limiter.statistics()

            assert visitors.inside == []
            assert set(visitors.began) | {"b"} == set("abc")
            assert counts.granted == 2 + permits * (len(visitors.began) - 1)
            assert (counts.waiting, counts.cancelled, counts.available) == (0, "b" not in visitors.began, 2)
            async with asyncio.timeout(60), limiter:
                pass
            assert (clock.timers, others()) == (0, set())
    assert ended == {(True, False), (True, True)}


@pytest.mark.parametrize("seed", range(20))
async def test_random_cancellations_lose_and_create_no_place(seed: int, clock: SteppedClock) -> None:
    """A hundred tasks enter and leave at random, some of them cancelled."""
    dice = random.Random(seed)
    limiter = Limiter(TokenBucket("20/s", burst=3), clock=clock, max_concurrency=dice.randint(1, 4))
    visitors = Visitors(limiter, clock)
    for number in range(100):
        visitors.come(number, dice.randint(1, 2))
        for _ in range(dice.randrange(6)):
            await turns(1)
            if dice.random() < 0.1:
                dice.choice(list(visitors.tasks.values())).cancel()
            if visitors.inside and dice.random() < 0.4:
                visitors.over[dice.choice(visitors.inside)].set()
        if dice.random() < 0.3 and clock.next_timer is not None:
            clock.fire()
    while not all(task.done() for task in visitors.tasks.values()):
        await clock.run(1)
        await visitors.go(*visitors.inside)

    counts = limiter.statistics()
    assert (counts.waiting, visitors.inside) == (0, [])
    await visitors.queue(range(1000, 1010))
    await clock.run(60)
    assert len(visitors.inside) == visitors.most
    for name in range(1000, 1010):
        visitors.tasks[name].cancel()


async def test_a_refused_request_leaves_its_place(clock: SteppedClock) -> None:
    """LineFull and LimiterClosed may come after the place was taken."""
    limiter = Limiter(TokenBucket("1/s", burst=1), clock=clock, max_concurrency=1, max_waiting=0)
    assert limiter.try_acquire()

    for _ in range(3):
        with pytest.raises(aiorate.LineFull):
            async with limiter:
                pytest.fail("no permit is available")

    clock.advance(1)
    async with limiter:
        assert limiter.statistics().refused == 3


async def test_places_of_a_closed_loop_come_back_with_its_tasks() -> None:
    """A task that will never leave is only noticed when it is collected."""
    limiter = Limiter("1000/s", max_concurrency=1)

    async def stay() -> None:
        async with limiter:
            await asyncio.Event().wait()

    def broken_off() -> None:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda loop, context: None)  # "Task was destroyed but it is pending!"
        tasks = [loop.create_task(stay()) for _ in range(2)]
        loop.run_until_complete(asyncio.sleep(0.01))
        del tasks
        loop.close()

    await asyncio.to_thread(broken_off)
    gc.collect()

    async with asyncio.timeout(60), limiter:
        pass


@needs_fork
@pytest.mark.filterwarnings("ignore:This process")
async def test_a_child_process_begins_with_all_places_free() -> None:
    """Tasks inside are the parent's, and the child would wait for them for ever."""
    limiter = Limiter("1000/s", max_concurrency=1)

    async def enter() -> None:
        async with asyncio.timeout(60), limiter:
            pass

    async with limiter:
        child = os.fork()
        if not child:
            try:
                asyncio._set_running_loop(None)  # asyncio's own
                asyncio.new_event_loop().run_until_complete(enter())
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222
