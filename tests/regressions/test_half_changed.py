"""Errors, finalizers and loops that stand still in the middle of a change: nothing is left half changed."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from helpers.driving import one_loop, turns

from aiorate import KeyedLimiter, Limiter, Rate, Scheduler, TokenBucket
from aiorate.schedulers.places import Places
from aiorate.testing import ManualClock


class Plain(Scheduler):
    """One permit a second, and nothing more than a custom strategy must have."""

    def __init__(self) -> None:
        self.rate = Rate(1)
        self.next = 0

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at = self.peek(permits, now)
        if at <= now:
            self.next = now + 10**9
        return at

    def peek(self, permits: int, now: int) -> int:
        return max(self.next, now)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        raise ZeroDivisionError

    def set_rate(self, rate: Rate, now: int) -> None:
        self.rate = rate

    def lag(self, now: int) -> int:
        return 0

    def bound(self, window: int, largest: int = 1) -> int | None:
        return None


def test_a_look_at_a_loop_that_stands_still_fails_nobody() -> None:
    """The first of a key's line could not join the shared line without a running loop, and everybody got the RuntimeError."""
    clock = ManualClock()
    shared = Limiter(TokenBucket("1/s", burst=1), clock=clock)
    keyed = KeyedLimiter(lambda key: Limiter(TokenBucket("100/s", burst=1), clock=clock), shared=shared)
    loop = asyncio.new_event_loop()

    async def ask() -> asyncio.Task[float]:
        await keyed.acquire("a")
        task = asyncio.ensure_future(keyed.acquire("a"))
        await turns(2)
        return task

    task = loop.run_until_complete(ask())
    clock.advance(0.02)
    assert keyed["a"].statistics().waiting == 1
    clock.advance(0.98)

    assert loop.run_until_complete(task) == 1.0
    loop.close()


def test_a_place_granted_in_a_closed_loop_comes_back() -> None:
    """Its task had the place and never ran. Once the task was collected, the place was lost for ever."""
    limiter = Limiter("1000/s", max_concurrency=1)
    tasks: list[asyncio.Task[None]] = []

    async def wait() -> None:
        async with limiter:
            pass

    async def stay() -> None:
        async with limiter:
            tasks.append(asyncio.ensure_future(wait()))
            await turns(3)
        asyncio.get_running_loop().stop()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    tasks.append(loop.create_task(stay()))
    loop.run_forever()
    loop.close()

    async def enter() -> None:
        limiter.statistics()  # in another loop
        tasks.clear()
        gc.collect()
        async with asyncio.timeout(60):
            async with limiter:
                pass

    asyncio.run(enter())


@one_loop
async def test_a_finalizer_in_the_middle_of_grants_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collected task left its place while places were granted: one was granted twice, and the others got InvalidStateError."""
    armed = False
    take = Places.take

    def collecting(self: Places, *args: Any) -> int:
        nonlocal armed
        at = take(self, *args)
        if armed and at <= args[1]:
            armed = False
            gc.collect()
        return at

    monkeypatch.setattr(Places, "take", collecting)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    limiter = Limiter("1000000/s", max_concurrency=2)
    held = asyncio.Event()

    async def orphan() -> None:
        async with limiter:
            await asyncio.get_running_loop().create_future()

    async def hold() -> None:
        async with limiter:
            await held.wait()

    async def use() -> None:
        async with limiter:
            await turns(1)

    gc.disable()
    try:
        lost = asyncio.ensure_future(orphan())
        holder = asyncio.ensure_future(hold())
        await turns(1)
        users = [asyncio.ensure_future(use()) for _ in range(4)]
        await turns(2)
        del lost
        armed = True
        held.set()
        await asyncio.wait([*users, holder])
    finally:
        gc.enable()

    assert [None] * 4 == [user.exception() for user in users]
    assert not armed
    assert "0 of 2 places taken" in repr(limiter)


@one_loop
async def test_reset_of_a_strategy_without_it_changes_nothing() -> None:
    """The pause was over after the error, and the line slept until its old end."""
    clock = ManualClock()
    limiter = Limiter(Plain(), clock=clock)
    await limiter.acquire()
    limiter.pause(3)

    with pytest.raises(RuntimeError, match=r"Plain has no method reset\(now\)"):
        limiter.reset()

    assert limiter.statistics().paused_until == 3.0
    assert limiter.delay() == 4.0


@one_loop
async def test_an_error_of_give_back_reaches_no_other_limit() -> None:
    """The shared permit was lost, and a key's receipt was kept for ever, so that the key was never evicted."""
    clock = ManualClock()
    shared = Limiter(TokenBucket("1/min", burst=5), clock=clock)
    keyed = KeyedLimiter(lambda key: Limiter(Plain(), clock=clock), shared=shared)
    await keyed.acquire("a")
    task = asyncio.ensure_future(keyed.acquire("a"))
    await turns(2)

    clock.advance(1)
    task.cancel()
    with pytest.raises(ZeroDivisionError):
        await task

    assert shared.statistics().available == 4
    assert 0 == shared._dispatcher.counters.returnable == keyed["a"]._dispatcher.counters.returnable
