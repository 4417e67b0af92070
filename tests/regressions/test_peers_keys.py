"""Defects that other libraries had with very many keys. Each is named by its report, where there is one."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Callable

import pytest
from helpers.driving import SECOND, Crowd, alive, one_loop, others, turns
from helpers.strategies import EACH

from aiorate import KeyedLimiter, Limiter, SlidingWindow, TokenBucket, TokenPool
from aiorate.testing import ManualClock
from aiorate.waiting.dispatcher import Dispatcher

pytestmark = one_loop


class CountedClock(ManualClock):
    """A clock that counts its readings."""

    reads = 0

    def now(self) -> int:
        self.reads += 1
        return super().now()


def once_each(count: int) -> int:
    """Return the memory blocks left behind by ``count`` keys, each used once, after all of them have come to rest."""
    clock = ManualClock()
    keyed = KeyedLimiter(lambda key: Limiter(TokenBucket("10/s", burst=1), clock=clock), shared=Limiter("1000000/s", clock=clock))
    gc.collect()
    before = sys.getallocatedblocks()
    for key in range(count):
        assert keyed.try_acquire(key)
        clock.set(clock.now() + SECOND // 100_000)
    clock.set(clock.now() + SECOND)
    keyed.try_acquire("last")
    keyed.evict()
    gc.collect()
    assert list(keyed) in ([], ["last"])
    return sys.getallocatedblocks() - before


@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_keys_that_are_used_once_leave_nothing_behind(count: int) -> None:
    """cristipufu/aspnetcore-redis-rate-limiting#61, #157: 100 000 idle limiters a day, until the process was killed."""
    once_each(count)
    before = alive(Dispatcher)  # from other tests and the examples that they run

    # Interpreter and other threads keep some objects for a while. What a key leaves behind, it leaves each time.
    assert any(once_each(count) < 100 for _ in range(10))
    assert alive(Dispatcher) <= before


async def test_idle_keys_go_while_others_come_without_evict() -> None:
    """Only keys that still owe something are kept, however many there were."""
    clock = ManualClock()
    keyed = KeyedLimiter(lambda key: Limiter(SlidingWindow("1/s"), clock=clock))
    most = 0

    for key in range(2_000):
        assert keyed.try_acquire(key)
        clock.set(clock.now() + SECOND // 100)
        most = max(most, len(keyed))

    assert most <= 2 * 100 + 2  # 100 of them owe at any time, and each new key looks at two


@pytest.mark.parametrize("idle", [None, 5])
@pytest.mark.parametrize("shared", [None, "100/s"])
@pytest.mark.parametrize("kind", [TokenPool, TokenBucket])
async def test_a_limiter_of_idle_keys_does_nothing_at_all(
    kind: Callable[..., TokenPool | TokenBucket], shared: str | None, idle: int | None
) -> None:
    """dotnet/runtime#95611: a clean-up ran at every tick, for ever."""
    clock = CountedClock()
    keyed = KeyedLimiter(
        lambda key: Limiter(kind("10/s", 1), clock=clock), shared=None if shared is None else Limiter(shared, clock=clock), idle=idle
    )
    waiting = [asyncio.ensure_future(keyed.acquire(number % 10)) for number in range(30)]
    await clock.run(3)
    assert all(task.done() for task in waiting)

    clock.reads = 0
    await clock.run(1_000)
    await turns(100)

    assert (clock.reads, clock.timers, others(), len(keyed)) == (0, 0, set(), 10)


@pytest.mark.parametrize("name", ["TokenBucket", "TokenBucket-paced", "SlidingWindow", "CalendarWindow", "AllOf"])
async def test_key_that_owes_survives_evictions_around_it(name: str) -> None:
    """Making room for new keys reset a key that had just been used up."""
    clock = ManualClock()
    keyed = KeyedLimiter(lambda key: Limiter(EACH[name](), clock=clock), max_keys=1)
    kept = Limiter(EACH[name](), clock=clock)
    answers = []

    for number in range(400):
        clock.set(clock.now() + (number % 7) * SECOND // 50)
        keyed.try_acquire(number)
        keyed.evict()
        answers.append((kept.try_acquire(), keyed.try_acquire("busy")))

    assert all(expected is answer for expected, answer in answers)
    assert {expected for expected, _ in answers} == {True, False}


@pytest.mark.parametrize("what", ["refund", "charge", "cancelled"])
async def test_key_with_a_debt_or_a_refund_is_not_forgotten(what: str) -> None:
    """Such a key owes for something other than a grant."""
    clock = ManualClock()
    keyed = KeyedLimiter(lambda key: Limiter(TokenBucket("1/s", burst=2), clock=clock))
    keyed.try_acquire("a", 2)
    if what == "refund":
        keyed["a"].refund(1)
    elif what == "charge":
        keyed["a"].charge(1)
    else:
        task = asyncio.ensure_future(keyed.acquire("a"))
        await turns(2)
        task.cancel()
        await turns(2)
        del task
    wait = keyed["a"].delay(2)

    keyed.evict()

    assert wait == keyed["a"].delay(2) == {"refund": 1, "charge": 3, "cancelled": 2}[what]
    clock.advance(wait)
    assert (1, 0) == (keyed.evict(), keyed["a"].delay(2))


@pytest.mark.parametrize("kind", [TokenPool, TokenBucket])
async def test_waiters_that_give_up_leave_nothing_in_either_limit(
    kind: Callable[..., TokenPool | TokenBucket],
) -> None:
    """sindresorhus/p-throttle#11: what was kept for each cancelled call grew with the queue."""
    clock = ManualClock()
    shared = Limiter(kind("1/h", 1), clock=clock)
    keyed = KeyedLimiter(lambda key: Limiter(kind("1000/s", 1), clock=clock), shared=shared)
    await keyed.acquire("a")
    first = asyncio.ensure_future(keyed.acquire("first"))
    await turns(2)
    kept = []

    for wave in range(10):
        tasks = [asyncio.ensure_future(keyed.acquire(number % 5)) for number in range(50)]
        ghosts = [weakref.ref(task) for task in tasks]
        await clock.run(0.1)
        assert shared.statistics().waiting == 6  # the first of each key only
        for task in tasks if wave % 2 else reversed(tasks):
            task.cancel()
            if wave % 3 == 0:
                await turns(1)
        await turns(4)
        del tasks, task
        gc.collect()
        kept.append((sum(ghost() is not None for ghost in ghosts), shared.statistics().waiting))

    assert [(0, 1)] * 10 == kept
    first.cancel()
    await turns(3)
    assert (0, 0) == (clock.timers, shared.statistics().waiting)


@pytest.mark.parametrize("name", EACH)
async def test_free_key_is_granted_in_the_same_step_beside_a_busy_one(name: str) -> None:
    """vutran1710/PyrateLimiter, where asynchronous callers of other keys still wait; alexei-led/ccgram#171."""
    clock = ManualClock()
    keyed = KeyedLimiter(lambda key: Limiter(EACH[name](), clock=clock), shared=Limiter(TokenBucket("1000/s", 2000), clock=clock))
    busy = Crowd(keyed["busy"], clock)
    await busy.queue(range(300))
    keyed["paused"].pause(60)
    in_debt = keyed["in debt"]
    in_debt.charge(1_000)

    for key in range(20):
        asking = keyed.acquire(key)
        with pytest.raises(StopIteration) as waited:
            asking.send(None)  # without a wait, not even one turn of the loop

        assert waited.value.value == 0.0

    for task in busy.tasks.values():
        task.cancel()
    await turns(3)
