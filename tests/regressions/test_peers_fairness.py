"""Defects of order, starvation and herds in other libraries. Each is named by its report."""

from __future__ import annotations

import random

from helpers.driving import SECOND, Crowd, one_loop, turns

import aiorate
from aiorate.testing import ManualClock

pytestmark = one_loop


async def test_order_stays_with_newcomers_and_tries_in_between() -> None:
    """clipperhouse/rate#14, python/cpython#90155: newcomers passed the queue, and a waiter put back lost its place."""
    dice, clock = random.Random(13), ManualClock()
    crowd = Crowd(aiorate.Limiter(aiorate.TokenBucket("100/s", burst=4), clock=clock), clock)

    for who in range(500):
        crowd.ask(who, dice.choice((1, 1, 2, 4)))
        await turns(2)
        if crowd.limiter.statistics().waiting:
            assert not crowd.limiter.try_acquire()
        await clock.run(dice.choice((0, 0.01, 0.02)))
    await clock.run(20)

    assert list(crowd.granted) == list(range(500))


async def test_the_oldest_is_served_first_under_load() -> None:
    """dotnet/aspnetcore#29910: last in, first out starves the oldest for ever."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter("10/s", clock=clock), clock)

    for second in range(20):
        await crowd.queue([(second, k) for k in range(15)])
        await clock.run(1)

    assert list(crowd.granted) == sorted(crowd.granted)


async def test_a_thousand_resume_at_the_rate_after_a_pause() -> None:
    """SGrondin/bottleneck: all were released at once."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter("100/s", clock=clock), clock)
    crowd.limiter.pause(5)
    await crowd.queue(range(1000))

    await clock.run(20)

    assert list(crowd.granted.values()) == [5 * SECOND + k * SECOND // 100 for k in range(1000)]


async def test_finished_requests_never_shorten_a_pause() -> None:
    """python-telegram-bot/python-telegram-bot#5338: a success elsewhere ended the pause for all."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(aiorate.TokenBucket("10/s", burst=2), clock=clock), clock)
    crowd.limiter.pause(10)

    for _ in range(5):
        crowd.limiter.pause(0)
        crowd.limiter.refund(1)
        crowd.limiter.set_rate("20/s")
        await clock.run(1)
        assert not crowd.limiter.try_acquire()

    assert crowd.limiter.statistics().paused_until == 10.0


async def test_waiting_on_one_limiter_does_not_hold_up_another() -> None:
    """vutran1710/PyrateLimiter#304: one lock for all keys."""
    clock = ManualClock()
    busy, free = aiorate.Limiter("1/h", clock=clock), aiorate.Limiter("1/h", clock=clock)
    crowd = Crowd(busy, clock)
    await crowd.queue("AB")

    assert await free.acquire() == 0.0
    crowd.tasks["B"].cancel()
    await turns(3)
