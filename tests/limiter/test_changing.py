"""Changing a limiter while requests wait: rate, pauses, refunds, charges, the verbs of a spec, closing and opening again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.driving import crowd_of, one_loop, others, turns
from helpers.feedback import granted
from helpers.strategies import EACH

import aiorate
from aiorate import CalendarWindow, TokenBucket

pytestmark = one_loop


def bucket(burst: int) -> TokenBucket:
    return TokenBucket("10/s", burst=burst)


async def test_a_change_applies_to_requests_in_line() -> None:
    """Time that was spent paused or stopped is not owed."""
    rows: list[tuple[Any, list[tuple[Any, ...]], list[float]]] = [
        # Half of the first wait passes at 10/s; the other half permit takes half of the new interval.
        (bucket(1), [(0, 4), (0.05, "set_rate", "100/s")], [0, 0.055, 0.065, 0.075]),
        (bucket(1), [(0, 4), (0.05, "set_rate", "2/s")], [0, 0.3, 0.8, 1.3]),
        # python-telegram-bot/python-telegram-bot#5338: a shorter pause must not end a longer one, and a longer one extends it.
        (bucket(1), [(0, 2), (0, "pause", 2), (0, "pause", 1), (1, "pause", 2), (0, "pause", 0.5)], [0, 3.1]),
        (bucket(1), [(0, 3), (0, "pause", 100), (1, "resume")], [0, 1.1, 1.2]),
        (bucket(3), [(0, "pause", 2), (1, 4)], [2, 2, 2, 2.1]),
        # The server's clock goes on during a pause: after it a new window has begun, which ends where the calendar says.
        (CalendarWindow("10/s", "UTC", origin=0), [(0.2, 22), (0, "pause", 2)], [0.2] * 10 + [2.2] * 10 + [3] * 2),
        (bucket(3), [(0, 6), (0, "refund", 2)], [0, 0, 0, 0, 0, 0.1]),
        (bucket(2), [(0, 4), (0, "pause", 1), (0, "refund", 1)], [0, 0, 1, 1.1]),
        # A debt that is larger than the bucket is paid at the rate.
        (bucket(5), [(0, 6), (0, "charge", 25), (0, 1)], [0] * 5 + [2.6, 2.7]),
        (bucket(1), [(0, 3), (0, "apply", "10,1,stop"), (0, "apply", "10,1,stop"), (5, "apply", "10,1,start")], [0, 5.1, 5.2]),
        # A server asked for the pause, which start must not end; and resume() does not start what was stopped, nor does configure.
        (bucket(1), [(0, 2), (0, "pause", 2), (0, "apply", "10,1,stop"), (1, "apply", "10,1,start")], [0, 2.1]),
        (bucket(1), [(0, 2), (0, "pause", 2), (0, "apply", "10,1,stop"), (1, "resume"), (4, "apply", "10,1,start")], [0, 5.1]),
        (bucket(1), [(0, 2), (0, "apply", "10,1,stop"), (1, "apply", "20,1,configure"), (1, "apply", "20,1,start")], [0, 2.05]),
    ]
    for number, (scheduler, steps, instants) in enumerate(rows):
        assert await granted(*steps, scheduler=scheduler) == instants, f"row {number}"


async def test_requests_above_a_new_limit_fail_and_the_rest_go_on() -> None:
    """A request for 10 permits of a window that now holds 5 would wait for ever, and block the line behind it."""
    crowd = crowd_of(aiorate.SlidingWindow("10/s"))
    assert crowd.limiter.try_acquire(10)
    crowd.ask("A")
    await crowd.queue(range(3000), permits=10)
    await crowd.queue("C")

    crowd.limiter.set_rate("5/s")
    announced = crowd.limiter.delay()
    await turns(3)

    with pytest.raises(ValueError, match=r"a request for 10 can no longer be granted: 5 is the most"):
        crowd.tasks[0].result()
    assert {type(crowd.tasks[who].exception()) for who in range(3000)} == {ValueError}
    assert announced == 1.0
    await crowd.clock.run(3)
    assert list(crowd.granted) == ["A", "C"]


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


async def test_configure_changes_rate_and_ratio_and_starts_nothing() -> None:
    crowd = crowd_of("10/s")
    crowd.limiter.apply("10,1,stop")

    crowd.limiter.apply("20,1.5,configure")
    assert not crowd.limiter.try_acquire()
    crowd.limiter.apply("20,1.5,start")

    assert crowd.limiter.try_acquire()
    assert isinstance(crowd.limiter.scheduler, aiorate.TokenPool)
    assert (crowd.limiter.scheduler.burst_ratio, crowd.limiter.rate) == (1.5, aiorate.Rate.parse("20/s"))


# Closing.


async def test_closing_fails_the_line_and_leaves_nothing_behind() -> None:
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
