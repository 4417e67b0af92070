"""acquire(), try_acquire() and delay(): order, no barging, estimates, requests that are refused at once, and the bound."""

from __future__ import annotations

import copy
import pickle

import pytest
from helpers.driving import SECOND, crowd_of, one_loop, turns
from helpers.strategies import EACH

import aiorate

pytestmark = one_loop


async def test_newcomers_never_pass_the_line() -> None:
    for name, make in EACH.items():
        crowd = crowd_of(make())
        await crowd.queue(range(15))

        tried = []
        while crowd.limiter.statistics().waiting:
            tried.append(crowd.limiter.try_acquire())
            crowd.clock.fire()
            if crowd.limiter.statistics().waiting:
                tried.append(crowd.limiter.try_acquire())
            await turns(12)

        assert not any(tried), name
        assert list(crowd.granted) == list(range(15)), name
        assert list(crowd.granted.values()) == sorted(crowd.granted.values()), name


async def test_a_large_request_is_not_starved_by_small_ones() -> None:
    """aiolimiter wakes any request that fits; here the large one keeps its place, and the small ones behind it wait."""
    crowd = crowd_of(aiorate.TokenBucket("10/s", burst=5))
    await crowd.queue(["small"], permits=5)
    await crowd.queue(["large"], permits=5)
    await crowd.queue(range(20))

    await crowd.clock.run(3)

    assert crowd.granted["large"] == SECOND // 2
    assert [crowd.granted[k] for k in range(20)] == [SECOND // 2 + (k + 1) * SECOND // 10 for k in range(20)]


async def test_delay_counts_the_permits_of_each_request() -> None:
    for permits in (1, 2, 7):
        crowd = crowd_of(aiorate.TokenBucket("10/s", burst=7))
        await crowd.queue("ABC", permits=7)

        announced = crowd.limiter.delay(permits)
        task = crowd.ask("last", permits)
        await crowd.clock.run(10)

        assert announced == task.result() == (14 + permits) / 10


async def test_delay_follows_requests_that_join_and_leave() -> None:
    crowd = crowd_of("10/s")
    await crowd.queue("ABCDE")
    announced = [crowd.limiter.delay()]
    for change in (lambda: crowd.ask("F"), lambda: crowd.tasks["C"].cancel(), lambda: crowd.tasks["D"].cancel(), lambda: crowd.ask("G", 3)):
        change()
        await turns(3)
        announced.append(crowd.limiter.delay())

    assert announced == [0.5, 0.6, 0.5, 0.4, 0.7]


async def test_delay_allows_for_catch_up() -> None:
    """The window delays the first request, so pacing books it from 20 ms before its grant; the next estimate allows for that."""
    crowd = crowd_of(aiorate.AllOf(aiorate.BurstCompensation("10/s"), aiorate.SlidingWindow("3/s")))
    assert crowd.limiter.try_acquire(2)
    await crowd.clock.run(0.2)
    assert crowd.limiter.try_acquire()
    crowd.ask("before")
    await turns(3)

    announced = crowd.limiter.delay()
    task = crowd.ask("next")
    await crowd.clock.run(5)

    assert 0.8 == announced <= task.result() == 0.88
    assert crowd.granted == {"before": SECOND, "next": SECOND + 80_000_000}


async def test_max_wait_fails_at_once_and_spends_nothing() -> None:
    """A caller that cannot afford the wait learns it now, not when max_wait is over; the estimate includes the line."""
    crowd = crowd_of("10/s")
    await crowd.queue(range(5))
    before = crowd.limiter.statistics()

    with pytest.raises(aiorate.WaitTooLong, match=r"would wait 0\.5 s, but max_wait is 0\.4 s") as caught:
        await crowd.limiter.acquire(max_wait=0.4)

    assert (caught.value.wait, caught.value.max_wait) == (0.5, 0.4)
    assert isinstance(caught.value, TimeoutError)
    assert crowd.limiter.statistics().refused == before.refused + 1
    task = crowd.ask("patient", max_wait=0.5)
    await crowd.clock.run(1)
    assert task.result() == 0.5


async def test_wait_too_long_survives_pickling() -> None:
    error = aiorate.WaitTooLong("too long", 5.0, 1.0)

    twin = pickle.loads(pickle.dumps(error))

    assert (type(twin), str(twin), twin.wait, twin.max_wait) == (aiorate.WaitTooLong, "too long", 5.0, 1.0)


async def test_no_wait_at_all_succeeds_with_capacity() -> None:
    """vutran1710/PyrateLimiter 4.3: a timeout of 0 always failed."""
    for options, max_wait, error in (({}, 0, aiorate.WaitTooLong), ({"max_waiting": 0}, None, aiorate.LineFull)):
        crowd = crowd_of("10/s", **options)

        assert await crowd.limiter.acquire(max_wait=max_wait) == 0.0
        with pytest.raises(error):
            await crowd.limiter.acquire(max_wait=max_wait)


async def test_max_wait_while_stopped_fails_at_once() -> None:
    crowd = crowd_of("10/s")
    crowd.limiter.apply("10,1,stop")

    with pytest.raises(aiorate.WaitTooLong) as caught:
        await crowd.limiter.acquire(max_wait=1e300)

    assert caught.value.wait == crowd.limiter.delay() == float("inf")


async def test_the_line_holds_at_most_max_waiting() -> None:
    for most in (2, 200):  # a long line is not counted again for each request
        crowd = crowd_of("10/s", max_waiting=most)
        await crowd.queue(range(most + 1))

        for _ in range(2):
            with pytest.raises(aiorate.LineFull, match=rf"the line is full \(max_waiting={most}\)"):
                await crowd.limiter.acquire()
        crowd.tasks[1].cancel()
        await turns(3)
        crowd.ask("last")
        await crowd.clock.run(30)

        assert list(crowd.granted) == [0, *range(2, most + 1), "last"]
        assert crowd.limiter.statistics().refused == 2


async def test_try_acquire_never_waits() -> None:
    crowd = crowd_of(aiorate.TokenBucket("10/s", burst=3))

    tries = [crowd.limiter.try_acquire(2), crowd.limiter.try_acquire(2), crowd.limiter.try_acquire(1), crowd.limiter.try_acquire()]

    assert tries == [True, False, True, False]
    assert (crowd.limiter.statistics().granted, crowd.limiter.statistics().refused) == (3, 2)


async def test_many_permits_at_one_instant_cost_one_wake_up() -> None:
    """Permits due at the same instant are granted together: 10 000 per second need not be 10 000 timers."""
    crowd = crowd_of(aiorate.SlidingWindow("1000/s"))
    await crowd.queue(range(3000))

    fired = 0
    while crowd.clock.fire():
        fired += 1
        await turns(12)

    assert len(crowd.granted) == 3000
    assert fired == 2


# Bounds.


async def test_the_bound_allows_for_catch_up_only_where_it_applies() -> None:
    """A window ignores `since` and promises exactly n; a bucket may make up for `catch_up` seconds."""
    exact = aiorate.Limiter(aiorate.SlidingWindow("100/s"), catch_up=0.02)
    pool = aiorate.Limiter(aiorate.TokenBucket("100/s", burst=1), catch_up=0.02)
    free = aiorate.Limiter(aiorate.TicksAccumulator("100/s"))

    assert exact.bound(1) == 100
    assert pool.bound(1) == 1 + 102
    assert free.bound(1) is None


async def test_a_limiter_refuses_to_be_copied() -> None:
    limiter = aiorate.Limiter("10/s")

    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="Share it"):
            way(limiter)
