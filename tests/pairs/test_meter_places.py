"""The open meter where its scheduler is copied or subclassed, its numbers are large, or its loop changes."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from helpers.driving import SECOND, turns
from helpers.forks import program
from helpers.meters import Machine, at_once
from helpers.platforms import needs_fork

import aiorate
from aiorate.rate import Rate

MS = SECOND // 1000
KINDS: dict[str, Callable[[], aiorate.Scheduler]] = {
    "bucket": lambda: aiorate.TokenBucket("10/s", burst=20),
    "pool": lambda: aiorate.TokenPool("10/s", pool=2 * SECOND),
    "ticks": lambda: aiorate.TicksAccumulator("10/s", start=0),
}
COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda scheduler: pickle.loads(pickle.dumps(scheduler))]


async def opened(limiter: aiorate.Limiter) -> aiorate.Limiter:
    """The limiter after five permits, some of them from the meter."""
    for _ in range(5):
        assert await at_once(limiter)
    assert 0 < limiter._dispatcher.meter.grabs
    return limiter


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("duplicate", COPIES)
async def test_a_copy_is_independent_of_an_open_meter(duplicate: Callable[[Any], Any], kind: str, machine: Machine) -> None:
    """It holds what its original held, and is shut."""
    machine.instant = 3 * SECOND
    limiter = aiorate.Limiter(KINDS[kind]())
    assert limiter.try_acquire()
    machine.instant += 2 * SECOND
    await turns(3)
    await opened(limiter)

    twin = duplicate(limiter.scheduler)
    now = machine.instant
    assert twin.stock(now) == limiter.scheduler.stock(now)
    assert 0 == twin.meter.until == twin.meter.try_until
    left = twin.stock(now)
    while twin.take(1, now) <= now:
        left -= 1

    assert 0 == left
    assert sum(limiter.try_acquire() for _ in range(100)) > 10


@pytest.mark.asyncio
@pytest.mark.parametrize("overrides", [True, False])
@pytest.mark.parametrize("kind", [aiorate.TokenBucket, aiorate.TokenPool])
async def test_the_take_of_a_subclass_is_called_for_every_permit(kind: type[Any], overrides: bool, machine: Machine) -> None:
    """A subclass without one has the meter of its base."""
    asked: list[int] = []

    class Mine(kind):  # type: ignore[misc]
        if overrides:

            def take(self, permits: int, now: int, since: int | None = None) -> int:
                asked.append(permits)
                result: int = super().take(permits, now, since)
                return result

    limiter = aiorate.Limiter(Mine("1000/s", **({"burst": 20} if kind is aiorate.TokenBucket else {"pool": 20 * MS})))
    assert limiter.try_acquire()
    machine.instant += SECOND
    await turns(3)

    await opened(limiter)

    assert (len(asked) >= 6) is overrides


@pytest.mark.asyncio
@pytest.mark.usefixtures("each_meter")
@pytest.mark.parametrize(
    ("make", "charge"),
    [
        (lambda: aiorate.TokenBucket(Rate(10**9), burst=10**40), 10**60),
        (lambda: aiorate.TokenBucket(Rate(10**300), burst=10**40), 10**30),
        (lambda: aiorate.TokenBucket("10/s", burst=5), 10**60),
        (lambda: aiorate.TicksAccumulator("10/s", start=-(10**50)), 10**60),
        (lambda: aiorate.TokenPool("10/s", pool=10**45, start=-(10**50)), 10**60),
    ],
)
async def test_what_128_bits_do_not_hold_is_left_to_the_scheduler(
    make: Callable[[], aiorate.Scheduler], charge: int, machine: Machine
) -> None:
    limiter, model = aiorate.Limiter(make()), make()
    for permits in (0, charge):
        if permits:
            limiter.charge(permits)
            model.charge(permits, machine.instant)
        for _ in range(5):
            assert (model.take(1, machine.instant) <= machine.instant) is await at_once(limiter)

    limiter.reset()
    assert limiter.try_acquire()


@pytest.mark.asyncio
async def test_a_shared_limit_that_is_joined_later_shuts_the_meter(machine: Machine) -> None:
    limiter = await opened(aiorate.Limiter(aiorate.TokenBucket("10/s", burst=20)))
    shared = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=3))
    keyed = aiorate.KeyedLimiter[str](lambda key: limiter, shared=shared)["key"]

    assert [True, True, True, False] == [keyed.try_acquire() for _ in range(4)]
    assert (8, 3) == (limiter.statistics().granted, shared.statistics().granted)


@pytest.mark.asyncio
async def test_max_waiting_0_takes_a_permit_that_lies_ready(machine: Machine) -> None:
    """With ``max_waiting=0``, permits come from the meter until none is left."""
    limiter = await opened(aiorate.Limiter(aiorate.TokenBucket("10/s", burst=7), max_waiting=0))
    assert [True, True] == [await at_once(limiter), await at_once(limiter)]

    with pytest.raises(aiorate.LineFull):
        await limiter.acquire()


def test_runs_of_several_loops_share_one_budget() -> None:
    """Each run opens the meter, and the next one goes on where it ended."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=30))

    async def take() -> int:
        return sum([await at_once(limiter) for _ in range(8)])

    assert [8, 8, 8, 6] == [asyncio.run(take()) for _ in range(4)]
    assert 30 == limiter.statistics().granted


@needs_fork
def test_a_child_goes_on_with_the_budget_of_its_parent() -> None:
    """It is forked while the meter is open, and runs another loop; its parent notices nothing."""
    printed = program(
        """
limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=30))


async def take(count):
    granted = 0
    for _ in range(count):
        try:
            granted += await limiter.acquire(max_wait=0) == 0
        except aiorate.WaitTooLong:
            pass
    return granted


def child():
    # A loop that runs was forked too, and asyncio must not think that it runs here.
    asyncio.events._set_running_loop(None)
    print(asyncio.run(take(50)), limiter.statistics().granted)


async def main():
    print(sum([await limiter.acquire() == 0 for _ in range(8)]))
    in_child(child)
    print(await take(50), limiter.statistics().granted)


asyncio.run(main())
"""
    )

    assert "8\n22 30\n22 30\n" == printed


def test_a_second_running_loop_soon_gets_its_error() -> None:
    """Within 5 ms, the time for which callers need not ask who calls."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=10**6))
    errors: list[str] = []

    async def intrude() -> None:
        end = asyncio.get_running_loop().time() + 60
        try:
            while asyncio.get_running_loop().time() < end:
                await limiter.acquire()
        except RuntimeError as error:
            errors.append(str(error))

    async def own() -> None:
        assert [True] * 5 == [await at_once(limiter) for _ in range(5)]
        thread = threading.Thread(target=asyncio.run, args=(intrude(),))
        thread.start()
        await asyncio.to_thread(thread.join)

    asyncio.run(own())

    assert 1 == len(errors)
    assert "in use by another running event loop" in errors[0]


@pytest.mark.asyncio
async def test_a_limiter_with_an_open_meter_is_freed_at_once(machine: Machine) -> None:
    """It leaves no task, no timer and no cycle."""
    limiter = await opened(aiorate.Limiter(aiorate.TokenBucket("10/s", burst=20)))
    gone = weakref.ref(limiter._dispatcher)
    gc.disable()
    try:
        del limiter
        assert gone() is None
    finally:
        gc.enable()
    assert 1 == len(asyncio.all_tasks())
