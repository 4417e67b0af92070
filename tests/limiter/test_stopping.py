"""The verbs of a spec (stop, start, restart, configure), closing, and opening again."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import crowd_of, in_ms, one_loop, others, turns
from helpers.strategies import EACH

import aiorate

pytestmark = one_loop


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


async def test_configure_does_not_start_a_stopped_limiter() -> None:
    crowd = crowd_of("10/s")
    crowd.limiter.apply("10,1,stop")
    crowd.limiter.apply("20,1,configure")

    assert crowd.limiter.try_acquire() is False
    assert crowd.limiter.rate == aiorate.Rate.parse("20/s")
    crowd.limiter.apply("20,1,start")
    assert crowd.limiter.try_acquire() is True


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


async def test_the_ratio_of_a_spec_reaches_the_strategy() -> None:
    crowd = crowd_of("10/s")

    crowd.limiter.apply("20,1.5,configure")

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


async def test_closing_during_a_pause_fails_the_line() -> None:
    crowd = crowd_of("10/s")
    await crowd.queue(range(5))
    crowd.limiter.pause(100)
    crowd.limiter.apply("10,1,stop")

    await crowd.limiter.aclose()
    await turns(3)

    assert [type(task.exception()) for task in crowd.tasks.values()] == [type(None), *[aiorate.LimiterClosed] * 4]


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
