"""Changing a limiter while requests wait: rate, pauses, refunds, charges, the verbs of a spec, closing and opening again."""

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


# The verbs of a spec.


def ratio(name: str) -> float:
    """The burst_ratio in force, for a spec that changes nothing."""
    return 1.5 if name in ("TokenPool-burst", "BurstRatio") else 1


async def test_applying_the_spec_in_force_changes_nothing() -> None:
    """start and configure are idempotent: a controller may send its settings every second."""
    for name in sorted(EACH.keys() - {"AllOf"}):
        for verb in ("start", "configure"):
            crowd, left_alone = crowd_of(EACH[name]()), crowd_of(EACH[name]())
            spec = aiorate.RateSpec(crowd.limiter.rate, ratio(name), verb)
            for each in (crowd, left_alone):
                await each.queue(range(12))

            for _ in range(25):
                crowd.limiter.apply(spec)
                await crowd.clock.run(0.03)
            await crowd.clock.run(10)
            await left_alone.clock.run(10.75)

            assert crowd.granted == left_alone.granted, (name, verb)


async def test_stop_grants_nothing_until_start() -> None:
    crowd = crowd_of("10/s")
    await crowd.queue(range(4))

    crowd.limiter.apply("10,1,stop")
    crowd.limiter.apply("10,1,stop")
    await crowd.clock.run(5)
    assert in_ms(crowd) == [0]
    assert crowd.limiter.statistics().next_at == crowd.limiter.statistics().paused_until == float("inf")
    assert crowd.clock.timers == 0
    crowd.limiter.apply("10,1,start")
    await crowd.clock.run(1)

    assert in_ms(crowd) == [0, 5100, 5200, 5300]


async def test_stops_and_pauses_end_each_by_their_own_call() -> None:
    """A server asked for the pause, which start must not end; and resume() must not start a stopped limiter."""
    rows = [(lambda each: each.apply("10,1,start"), 2100), (lambda each: each.resume(), 5100)]
    for end, served in rows:
        crowd = crowd_of("10/s")
        await crowd.queue("AB")
        crowd.limiter.pause(2)
        crowd.limiter.apply("10,1,stop")
        await crowd.clock.run(1)

        end(crowd.limiter)
        await crowd.clock.run(4)
        crowd.limiter.apply("10,1,start")
        await crowd.clock.run(1)

        assert in_ms(crowd) == [0, served]


async def test_restart_drops_the_backlog() -> None:
    """After ten idle seconds a restart forgets what was missed, and a start keeps it."""
    for name in ("TokenPool", "TicksAccumulator", "BurstRatio"):
        lags = {}
        for verb in ("start", "restart"):
            crowd = crowd_of(EACH[name]())
            assert crowd.limiter.try_acquire()
            await crowd.clock.run(10)
            crowd.limiter.apply(aiorate.RateSpec(crowd.limiter.rate, ratio(name), verb))
            lags[verb] = crowd.limiter.lag

        assert lags["start"] > 9, name
        assert lags["restart"] == 0, name


async def test_configure_changes_rate_and_ratio_and_starts_nothing() -> None:
    crowd = crowd_of("10/s")
    crowd.limiter.apply("10,1,stop")

    crowd.limiter.apply("20,1.5,configure")
    assert not crowd.limiter.try_acquire()
    crowd.limiter.apply("20,1.5,start")

    assert crowd.limiter.try_acquire()
    assert isinstance(crowd.limiter.scheduler, aiorate.TokenPool)
    assert (crowd.limiter.scheduler.burst_ratio, crowd.limiter.rate) == (1.5, aiorate.Rate.parse("20/s"))


async def test_all_of_refuses_a_rate_and_names_its_members() -> None:
    crowd = crowd_of(EACH["AllOf"]())

    with pytest.raises(RuntimeError, match="members"):
        crowd.limiter.set_rate("5/s")
    with pytest.raises(RuntimeError, match="members"):
        crowd.limiter.apply("5,1,start")

    assert crowd.limiter.rate == aiorate.Rate.parse("20/3s")


# Closing.


async def test_closing_fails_the_line_and_leaves_nothing_behind() -> None:
    """LimiterClosed for each waiter, at once; no task and no timer stays."""
    for name, make in EACH.items():
        crowd = crowd_of(make())
        await crowd.queue(range(30))
        granted = len(crowd.granted)
        crowd.limiter.pause(100)

        await crowd.limiter.aclose()
        await turns(3)

        assert {type(crowd.tasks[who].exception()) for who in range(granted, 30)} == {aiorate.LimiterClosed}, name
        assert (crowd.clock.timers, others()) == (0, set()), name
        for refused in (crowd.limiter.acquire(), crowd.limiter.of(1).__aenter__()):
            with pytest.raises(aiorate.LimiterClosed, match="start"):
                await refused
        with pytest.raises(aiorate.LimiterClosed):
            crowd.limiter.try_acquire()
        assert crowd.limiter.delay() == float("inf")


async def test_a_reopened_limiter_keeps_its_budget() -> None:
    """alisaifee/limits#26: restartable helpers that could not be restarted. Nor does closing give a fresh burst."""
    for name, make in EACH.items():
        crowd, never_closed = crowd_of(make()), crowd_of(make())
        for each in (crowd, never_closed):
            while each.limiter.try_acquire():
                pass

        for _ in range(3):
            await crowd.limiter.aclose()
            await crowd.limiter.aclose()
            crowd.limiter.apply(aiorate.RateSpec(crowd.limiter.rate, ratio(name), "start"))
        for each in (crowd, never_closed):
            await each.queue(range(5))
            await each.clock.run(5)

        assert crowd.granted == never_closed.granted, name


async def test_closing_and_cancelling_at_once_ends_every_task() -> None:
    """Either may come first, and nothing hangs."""
    for name in ("TokenPool", "TokenBucket-paced"):
        for first in ("close", "cancel"):
            crowd = crowd_of(EACH[name]())
            await crowd.queue(range(70))
            if first == "cancel":
                for task in crowd.tasks.values():
                    task.cancel()
            closing = asyncio.ensure_future(crowd.limiter.aclose())
            await turns(1)
            if first == "close":
                for task in crowd.tasks.values():
                    task.cancel()
            await turns(12)

            assert closing.done()
            assert all(task.done() for task in crowd.tasks.values())
            assert (crowd.clock.timers, others()) == (0, set())


async def test_a_granted_task_may_close_its_limiter() -> None:
    """aclose() waits for the driver, not for its own caller."""
    crowd = crowd_of("10/s")

    async def last() -> None:
        await crowd.limiter.acquire()
        await crowd.limiter.aclose()

    crowd.ask("first")
    closing = asyncio.ensure_future(last())
    await turns(1)
    await crowd.queue("AB")
    await crowd.clock.run(1)

    assert closing.done()
    assert {type(crowd.tasks[who].exception()) for who in "AB"} == {aiorate.LimiterClosed}


async def test_retries_do_not_keep_closing_from_ending() -> None:
    """acquire() again in an except clause finds the limiter closed."""
    crowd = crowd_of("10/s")
    refused = []

    async def stubborn() -> None:
        for _ in range(3):
            try:
                await crowd.limiter.acquire()
            except aiorate.LimiterClosed:
                refused.append(True)

    await crowd.limiter.acquire()
    task = asyncio.ensure_future(stubborn())
    await turns(3)
    await crowd.limiter.aclose()
    await task

    assert refused == [True, True, True]
