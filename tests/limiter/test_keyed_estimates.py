"""delay() and max_wait of a key, whose requests wait in its own line and then in the shared one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, one_loop, turns

import aiorate


@one_loop
@pytest.mark.parametrize("waiters", [3, 100])
async def test_delay_of_a_key_counts_both_lines(waiters: int) -> None:
    """A newcomer is behind all requests of the same key, and those are behind requests of other keys."""
    clock = SteppedClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock), shared=shared)
    assert keyed.try_acquire("a")
    crowd = Crowd(keyed["a"], clock)
    await crowd.queue(range(waiters))

    assert waiters + 1 == keyed["a"].delay()
    with pytest.raises(aiorate.WaitTooLong):
        await keyed.acquire("a", max_wait=waiters + 0.5)
    assert 0.1 == keyed["b"].delay()
    last = crowd.ask("last", max_wait=waiters + 1)
    await clock.run(waiters + 1)

    assert [(place + 1) * SECOND for place in range(waiters)] == [crowd.granted[place] for place in range(waiters)]
    assert waiters + 1 == last.result()
    await keyed.aclose()


@one_loop
async def test_delay_of_a_key_counts_a_hundred_other_keys() -> None:
    """Each of them has one request in the shared line."""
    clock = SteppedClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter[Any](lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock), shared=shared)
    tasks = [asyncio.ensure_future(keyed.acquire(key)) for key in range(101)]
    await turns(3)

    assert 10.1 == keyed["new"].delay()
    assert 10.1 == keyed[1].delay()
    await clock.run(10)
    assert [key / 10 for key in range(101)] == [pytest.approx(task.result()) for task in tasks]
    await keyed.aclose()


@one_loop
async def test_delay_is_infinite_while_either_limit_is_stopped() -> None:
    """A closed limit counts as stopped; the end of neither is known."""
    clock = SteppedClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock), shared=shared)
    assert keyed.try_acquire("a")
    crowd = Crowd(keyed["a"], clock)
    await crowd.queue(range(2))
    assert 3 == keyed["a"].delay()

    shared.apply("10,1,stop")
    assert float("inf") == keyed["a"].delay() == keyed["b"].delay()
    shared.apply("10,1,start")
    assert 3 == keyed["a"].delay()
    keyed["a"].apply("1,1,stop")
    assert [float("inf"), 0.1] == [keyed["a"].delay(), keyed["b"].delay()]
    keyed["a"].apply("1,1,start")
    await shared.aclose()
    assert float("inf") == keyed["b"].delay()
    await keyed.aclose()


@one_loop
async def test_delay_leaves_out_requests_above_a_new_shared_limit() -> None:
    """Such a request fails when it is first in line, and those behind it do not wait for it."""
    clock = SteppedClock()
    shared = aiorate.Limiter(aiorate.SlidingWindow("4/s"), clock=clock)
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=4), clock=clock), shared=shared)
    assert keyed.try_acquire("a", 4)
    crowd = Crowd(keyed["a"], clock)
    crowd.ask("large", 4)
    crowd.ask("small", 1)
    await turns(3)
    assert 6 == keyed["a"].delay()

    shared.set_rate("2/s")

    assert 2 == keyed["a"].delay()
    await clock.run(5)
    with pytest.raises(ValueError, match="2 is the most at once of the limit that is shared"):
        crowd.tasks["large"].result()
    assert crowd.tasks["small"].done()
    await keyed.aclose()
