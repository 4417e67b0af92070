"""Changing a limiter while requests wait: rate, pauses, refunds and charges."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import crowd_of, in_ms, one_loop, others, turns
from helpers.strategies import EACH

import aiorate

pytestmark = one_loop


# The rate.


async def test_a_new_rate_applies_to_requests_in_line() -> None:
    """Half of the first wait passes at 10/s; the other half permit takes half of the new interval."""
    for rate, instants in (("100/s", [0, 55, 65, 75]), ("2/s", [0, 300, 800, 1300])):
        crowd = crowd_of(aiorate.TokenBucket("10/s", burst=1))
        await crowd.queue(range(4))

        await crowd.clock.run(0.05)
        crowd.limiter.set_rate(rate)
        await crowd.clock.run(3)

        assert in_ms(crowd) == instants


async def test_a_waiter_may_change_the_rate_itself() -> None:
    """It does so right after its grant."""
    crowd = crowd_of("10/s")

    async def faster() -> None:
        await crowd.limiter.acquire()
        await crowd.limiter.acquire()
        crowd.limiter.set_rate("100/s")

    crowd.tasks["faster"] = asyncio.ensure_future(faster())
    await turns(2)
    await crowd.queue("AB")
    await crowd.clock.run(1)

    # The pool keeps nanoseconds across the change: had there been any, each would be worth ten times as many permits now.
    assert in_ms(crowd) == [110, 120]


async def test_requests_above_a_new_limit_fail_and_the_rest_go_on() -> None:
    """A request for 10 permits of a window that now holds 5 would wait for ever, and block the line behind it."""
    crowd = crowd_of(aiorate.SlidingWindow("10/s"))
    assert crowd.limiter.try_acquire(10)
    for name, size in (("A", 1), ("B", 10), ("C", 1)):
        crowd.ask(name, size)
    await turns(3)

    crowd.limiter.set_rate("5/s")
    announced = crowd.limiter.delay()
    await turns(3)

    assert crowd.tasks["B"].done()
    with pytest.raises(ValueError, match=r"acquire\(10\) can no longer be granted: 5 is the most"):
        crowd.tasks["B"].result()
    assert announced == 1.0
    await crowd.clock.run(3)
    assert list(crowd.granted) == ["A", "C"]


async def test_thousands_of_requests_above_a_new_limit_all_fail() -> None:
    """They fail in a loop, since recursion would reach its limit."""
    crowd = crowd_of(aiorate.SlidingWindow("10/s"))
    assert crowd.limiter.try_acquire(10)
    await crowd.queue(range(3000), permits=10)

    crowd.limiter.set_rate("5/s")
    await turns(5)

    assert {type(task.exception()) for task in crowd.tasks.values()} == {ValueError}
    assert others() == set()


# Pauses.


async def test_a_calendar_window_stays_on_the_calendar_through_a_pause() -> None:
    """The server's clock goes on during a pause: after it a new window has begun, which ends where the calendar says."""
    crowd = crowd_of(aiorate.CalendarWindow("10/s", "UTC", origin=0))
    await crowd.clock.run(0.2)
    assert crowd.limiter.try_acquire(10)
    await crowd.queue(range(12))

    crowd.limiter.pause(2)
    announced = crowd.limiter.delay()
    next_at = crowd.limiter.statistics().next_at
    await crowd.clock.run(5)

    assert announced == 2.8
    assert next_at == 2.2
    assert in_ms(crowd) == [2200] * 10 + [3000] * 2


async def test_pauses_merge_by_the_later_end() -> None:
    """python-telegram-bot/python-telegram-bot#5338: a shorter pause must not end a longer one, and a longer one extends it."""
    crowd = crowd_of("10/s")
    await crowd.queue("AB")

    crowd.limiter.pause(2)
    crowd.limiter.pause(1)
    await crowd.clock.run(1)
    crowd.limiter.pause(2)
    crowd.limiter.pause(0.5)
    assert (crowd.limiter.statistics().paused_until, crowd.limiter.delay()) == (3.0, 2.2)
    await crowd.clock.run(3)

    assert in_ms(crowd) == [0, 3100]


async def test_resume_ends_a_pause_now() -> None:
    """Its remaining time is not waited for; the time that was spent paused is still not owed."""
    crowd = crowd_of("10/s")
    await crowd.queue("ABC")

    crowd.limiter.pause(100)
    await crowd.clock.run(1)
    crowd.limiter.resume()
    await crowd.clock.run(1)

    assert in_ms(crowd) == [0, 1100, 1200]
    assert crowd.limiter.statistics().paused_until is None


async def test_an_idle_limiter_pauses_without_a_timer() -> None:
    """Nothing waits, so no timer is needed; a request that arrives during the pause waits for its end."""
    crowd = crowd_of("10/s")
    crowd.limiter.pause(2)

    assert crowd.clock.timers == 0
    assert crowd.limiter.try_acquire() is False
    assert crowd.limiter.delay() == 2.0
    assert crowd.ask("A") is not None
    await crowd.clock.run(3)
    assert in_ms(crowd) == [2000]


# Refunds and charges.


async def test_a_refund_serves_the_line_at_once() -> None:
    crowd = crowd_of(aiorate.TokenBucket("10/s", burst=3))
    assert crowd.limiter.try_acquire(3)
    await crowd.queue("ABC")

    crowd.limiter.refund(2)
    await crowd.clock.run(0.1)

    assert in_ms(crowd) == [0, 0, 100]
    assert crowd.limiter.statistics().refunded == 2


async def test_a_refund_during_a_pause_waits_for_its_end() -> None:
    crowd = crowd_of(aiorate.TokenBucket("10/s", burst=2))
    assert crowd.limiter.try_acquire(2)
    await crowd.queue("AB")
    crowd.limiter.pause(1)

    crowd.limiter.refund(1)
    await crowd.clock.run(3)

    assert in_ms(crowd) == [1000, 1100]


async def test_a_charge_delays_requests_in_line_and_later_ones() -> None:
    """A debt of n permits delays the line by as much as n more requests at its head."""
    for name, make in EACH.items():
        crowd, other = crowd_of(make()), crowd_of(make())
        assert crowd.limiter.try_acquire()
        assert other.limiter.try_acquire()

        await crowd.queue(range(10))
        crowd.limiter.charge(1)
        crowd.limiter.charge(2)
        at_first = len(crowd.granted)
        await other.queue(range(at_first))
        await other.queue(["debt", "more", "rest"])
        await other.queue(range(at_first, 10))
        assert crowd.limiter.delay() == other.limiter.delay(), name
        await crowd.clock.run(60)
        await other.clock.run(60)

        for debt in ("debt", "more", "rest"):
            del other.granted[debt]
        assert crowd.granted == other.granted, name


async def test_a_charge_may_exceed_the_bucket() -> None:
    crowd = crowd_of(aiorate.TokenBucket("10/s", burst=5))
    await crowd.clock.run(10)

    crowd.limiter.charge(25)
    assert crowd.limiter.delay() == 2.1
    assert (crowd.clock.timers, others()) == (0, set())
    crowd.ask("A")
    await crowd.clock.run(10)

    assert in_ms(crowd) == [12_100]
    assert crowd.limiter.try_acquire(5)
