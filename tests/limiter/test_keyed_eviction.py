"""Keys are evicted once a new limiter in their place would grant nothing sooner."""

from __future__ import annotations

import asyncio
import gc
from weakref import ref

import pytest
from helpers.driving import SECOND, one_loop, turns

import aiorate
from aiorate.testing import ManualClock


@one_loop
async def test_a_key_that_owes_nothing_is_evicted() -> None:
    """A full bucket equals a new one; one that is not full is kept."""
    clock = ManualClock()
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=2), clock=clock))
    for key in range(100):
        assert keyed.try_acquire(key)

    assert keyed.evict() == 0
    clock.advance(1)
    assert keyed.evict() == 100
    assert len(keyed) == 0
    assert [keyed.try_acquire(7) for _ in range(3)] == [True, True, False]


@one_loop
@pytest.mark.parametrize("why", ["rate", "pause", "debt", "line"])
async def test_a_key_that_differs_from_a_new_one_is_kept(why: str) -> None:
    """Eviction would forget a changed rate, a pause, a debt or a line."""
    clock = ManualClock()
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock))
    limiter = keyed["a"]
    waiting = None
    if why == "rate":
        limiter.set_rate("2/s")
    elif why == "pause":
        limiter.pause(1)
    elif why == "debt":
        limiter.charge(5)
    else:
        await limiter.acquire()
        waiting = asyncio.ensure_future(limiter.acquire())
        await turns(3)

    assert keyed.evict() == 0
    if waiting is not None:
        waiting.cancel()
        await turns(3)


@one_loop
@pytest.mark.parametrize("asked", ["evict", "available"])
async def test_a_pause_that_is_over_keeps_no_key(asked: str) -> None:
    """A key that a server had paused once, and that was never used again, was kept for good; so was a pause of the shared limit."""
    clock = ManualClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=5), clock=clock)
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock), shared=shared)
    if asked == "evict":
        keyed["a"].pause(60)
        clock.advance(61)

        assert 1 == keyed.evict()
    else:
        shared.pause(60)
        assert 0 == keyed["a"].statistics().available
        clock.advance(61)

        assert 1 == keyed["a"].statistics().available


@one_loop
async def test_a_held_limiter_stays_the_limiter_of_its_key() -> None:
    """Eviction may drop it from the table, but a key never has two limiters."""
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.TokenBucket("1/s", burst=1), shared="100/s")
    held = keyed["a"]
    keyed.evict()

    assert keyed["a"] is held
    gone = ref(keyed["b"])
    gc.disable()
    try:
        keyed.evict()
        assert gone() is None  # at once, since it has no reference cycle
    finally:
        gc.enable()


@one_loop
async def test_thousands_of_keys_used_once_are_evicted() -> None:
    """cristipufu/aspnetcore-redis-rate-limiting#61: idle keys were never collected, 100 000 limiters a day."""
    clock = ManualClock()
    events: list[aiorate.Event] = []
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock), on_event=events.append)
    for key in range(5_000):
        assert keyed.try_acquire(key)
        clock.set(clock.now() + SECOND // 1_000)

    assert len(keyed) < 400
    assert len(events) == 5_000 - len(keyed)
    assert {event.kind for event in events} == {"evicted"}
    assert clock.timers == 0


@one_loop
async def test_idle_keeps_a_key_for_a_while() -> None:
    """A key that is used now and then is not made again each time."""
    clock = ManualClock()
    made: list[str] = []

    def make(key: str) -> aiorate.Limiter:
        made.append(key)
        return aiorate.Limiter(aiorate.TokenBucket("100/s", burst=1), clock=clock)

    keyed = aiorate.KeyedLimiter(make, idle=10)
    keyed.try_acquire("a")
    for second in range(1, 30):
        clock.advance(1)
        keyed.try_acquire(f"other {second}")
        if second == 5:
            assert "a" in keyed
    assert "a" not in keyed
    keyed.try_acquire("a")
    assert made.count("a") == 2


@one_loop
async def test_a_key_that_was_just_used_is_not_evicted() -> None:
    """A grab counts at once, so a limiter that was just used still owes."""
    clock = ManualClock(SECOND)
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.TokenBucket("1000000/s", burst=100), clock=clock))
    assert all(keyed.try_acquire("a") for _ in range(5))

    assert 0 == keyed.evict()
    assert 5 == keyed["a"].statistics().granted
    clock.advance(0.000005)
    assert 1 == keyed.evict()


def test_a_key_with_waiters_of_a_closed_loop_is_evicted() -> None:
    """They will never be granted, and the key owes nothing."""
    clock = ManualClock()
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock))
    assert keyed.try_acquire("a")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # "Task was destroyed but it is pending!"
    task = loop.create_task(keyed.acquire("a"))
    loop.run_until_complete(turns(3))
    loop.close()
    clock.advance(1)

    assert 0 == keyed.evict()  # the task that will never run still refers to it
    assert not task.done()
    del task
    gc.collect()
    assert 1 == keyed.evict()


@pytest.mark.asyncio
async def test_on_event_of_an_evicted_key_may_evict_the_others() -> None:
    """Each key is dropped, and reported, once."""
    told: list[str] = []

    def on_event(event: aiorate.Event) -> None:
        told.append(str(event.key))
        limiters.evict()

    clock = ManualClock()
    limiters = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock), on_event=on_event)
    assert all(limiters.try_acquire(key) for key in ("ann", "bob", "cid"))
    clock.advance(1)

    assert 1 == limiters.evict()  # the callback dropped the others

    assert ["ann", "bob", "cid"] == sorted(told)
    assert len(limiters) == 0
