"""Defects that others had with a limit for each key. Each is named by its report."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Callable

import pytest
from helpers.driving import SteppedClock, one_loop, turns

from aiorate import KeyedLimiter, Limiter, Scheduler, SlidingWindow, TokenBucket
from aiorate.testing import ManualClock

pytestmark = one_loop

Make = Callable[[], Scheduler]
each_strategy = pytest.mark.parametrize(
    "make", [lambda: TokenBucket("10/s", burst=3), lambda: SlidingWindow("3/s")], ids=["bucket", "window"]
)


async def test_k1_keys_that_are_used_once_are_not_kept() -> None:
    """cristipufu/aspnetcore-redis-rate-limiting#61, #157: a limiter for each address, never collected, until the process was killed."""
    clock = ManualClock()
    made: weakref.WeakSet[Limiter] = weakref.WeakSet()

    def limiter_of(key: int) -> Limiter:
        limiter = Limiter("10/s", clock=clock)
        made.add(limiter)
        return limiter

    keyed, most = KeyedLimiter(limiter_of), 0
    for key in range(5_000):
        assert keyed.try_acquire(key)
        clock.advance(0.001)
        most = max(most, len(made))

    assert most < 500  # a key owes nothing after 0.1 s, in which 100 others come
    clock.advance(0.1)
    keyed.evict()
    assert [0, 0] == [len(keyed), len(made)]  # freed at once, not when the garbage collector comes


async def test_k2_keys_that_nobody_uses_do_no_work() -> None:
    """dotnet/runtime#95611: a timer went on for ever to look at each of them."""
    clock = SteppedClock()
    keyed: KeyedLimiter[int] = KeyedLimiter(
        lambda key: Limiter(TokenBucket("1/s", burst=1), clock=clock), shared=Limiter("100/s", clock=clock)
    )
    tasks = [asyncio.ensure_future(keyed.acquire(number % 50)) for number in range(100)]

    await clock.run(10)

    assert all(task.done() for task in tasks)
    assert 50 == len(keyed)
    assert 0 == clock.timers
    assert {asyncio.current_task()} == asyncio.all_tasks()


@each_strategy
@pytest.mark.parametrize("seed", range(5))
async def test_k3_a_key_that_is_evicted_answers_as_if_it_had_been_kept(make: Make, seed: int) -> None:
    """A key that begins anew is a key that owes nothing: whoever comes and goes would get more than his limit."""
    dice, clock = random.Random(seed), ManualClock()
    keyed: KeyedLimiter[int] = KeyedLimiter(lambda key: Limiter(make(), clock=clock))
    kept = {key: Limiter(make(), clock=clock) for key in range(5)}
    evicted, answers = 0, []

    for _ in range(500):
        key, permits = dice.randrange(5), dice.randint(1, 3)
        answers.append((keyed.try_acquire(key, permits), kept[key].try_acquire(permits)))
        clock.advance(dice.choice([0, 0, 0.05, 0.1, 0.5, 1]))
        evicted += keyed.evict()

    assert [own for own, _ in answers] == [other for _, other in answers]
    assert {True, False} == {own for own, _ in answers}
    assert evicted > 100


@each_strategy
async def test_k4_who_gives_up_leaves_nothing_in_any_line(make: Make) -> None:
    """sindresorhus/p-throttle#11: each that was aborted stayed in the queue until its turn."""
    clock = ManualClock()
    keyed: KeyedLimiter[str] = KeyedLimiter(lambda key: Limiter(make(), clock=clock), shared=Limiter("1/h", clock=clock))
    assert await keyed.acquire("other") == 0
    first = asyncio.ensure_future(keyed.acquire("busy"))
    await turns(2)
    ghosts = []

    for _ in range(5):
        tasks = [asyncio.ensure_future(keyed.acquire("busy")) for _ in range(25)]
        ghosts += [weakref.ref(task) for task in tasks]
        await turns(2)
        for task in tasks:
            task.cancel()
        await turns(3)
        del tasks, task
    gc.collect()

    assert [None] * 125 == [ghost() for ghost in ghosts]
    assert 1 == keyed["busy"].statistics().waiting
    first.cancel()
    await turns(3)
    assert keyed.shared is not None
    assert 0 == keyed.shared.statistics().waiting
