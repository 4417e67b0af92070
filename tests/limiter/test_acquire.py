"""acquire(), try_acquire() and delay(): order, no barging, estimates, and requests that are refused at once."""

from __future__ import annotations

import asyncio
import copy
import pickle
import random
from typing import Any

import pytest
from helpers.driving import SECOND, crowd_of, one_loop, turns
from helpers.strategies import EACH

import aiorate
from aiorate.testing import ManualClock

pytestmark = one_loop


@pytest.mark.parametrize("name", EACH)
async def test_grants_come_in_order_of_arrival(name: str) -> None:
    """boinkor-net/governor and others let late arrivals pass; here requests are granted in order of arrival."""
    crowd = crowd_of(EACH[name]())

    await crowd.queue(range(50))
    await crowd.clock.run(30)

    assert list(crowd.granted) == list(range(50))
    assert list(crowd.granted.values()) == sorted(crowd.granted.values())


@pytest.mark.parametrize("name", EACH)
async def test_newcomers_never_pass_the_line(name: str) -> None:
    """Neither acquire() nor try_acquire() passes it, at any instant, not even that of a grant."""
    crowd = crowd_of(EACH[name]())
    await crowd.queue(range(30))

    tried = []
    while crowd.limiter.statistics().waiting:
        tried.append(crowd.limiter.try_acquire())
        crowd.clock.fire()
        if crowd.limiter.statistics().waiting:
            tried.append(crowd.limiter.try_acquire())
        await turns(12)

    assert not any(tried)
    assert list(crowd.granted) == list(range(30))


async def test_a_large_request_is_not_starved_by_small_ones() -> None:
    """aiolimiter wakes any request that fits; here the large one keeps its place, and the small ones behind it wait."""
    crowd = crowd_of(aiorate.TokenBucket("10/s", burst=5))
    await crowd.queue(["small"], permits=5)
    await crowd.queue(["large"], permits=5)
    await crowd.queue(range(20))

    await crowd.clock.run(3)

    assert crowd.granted["large"] == SECOND // 2
    assert [crowd.granted[k] for k in range(20)] == [SECOND // 2 + (k + 1) * SECOND // 10 for k in range(20)]


async def test_acquire_returns_the_seconds_waited() -> None:
    """It returns 0.0 for a permit that is granted at once."""
    crowd = crowd_of("10/s")

    first, second = crowd.ask("first"), crowd.ask("second")
    await crowd.clock.run(1)

    assert (first.result(), second.result()) == (0.0, 0.1)


@pytest.mark.parametrize("name", EACH)
async def test_delay_is_the_wait_and_changes_nothing(name: str) -> None:
    """For any line and any history, delay() equals the wait of the next request, to the nanosecond."""
    crowd, dice = crowd_of(EACH[name]()), random.Random(6)
    wrong = []

    for who in range(60):
        await crowd.clock.run(dice.choice((0, 0, 0.05, 0.31)))
        before = crowd.limiter.statistics()
        announced = crowd.limiter.delay()
        assert crowd.limiter.delay() == announced
        assert crowd.limiter.statistics() == before
        task = crowd.ask(who)
        await turns(12)
        wrong.append((task, announced))
    await crowd.clock.run(60)

    assert [(task.result(), announced) for task, announced in wrong if task.result() != announced] == []


@pytest.mark.parametrize("permits", [1, 2, 7])
async def test_delay_counts_the_permits_of_each_request(permits: int) -> None:
    """It counts those of the requests in line, and of the one that it is asked about."""
    crowd = crowd_of(aiorate.TokenBucket("10/s", burst=7))
    await crowd.queue("ABC", permits=7)

    announced = crowd.limiter.delay(permits)
    task = crowd.ask("last", permits)
    await crowd.clock.run(10)

    assert announced == task.result() == (14 + permits) / 10


async def test_delay_follows_requests_that_join_and_leave() -> None:
    """An estimate is kept for the next call, and corrected when a request leaves the middle of the line."""
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

    assert announced == task.result() == 0.88
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
    """An exception of a worker process is pickled on its way back, with `wait` and `max_wait`."""
    error = aiorate.WaitTooLong("too long", 5.0, 1.0)

    twin = pickle.loads(pickle.dumps(error))

    assert (type(twin), str(twin), twin.wait, twin.max_wait) == (aiorate.WaitTooLong, "too long", 5.0, 1.0)


async def test_max_wait_zero_succeeds_with_capacity() -> None:
    """vutran1710/PyrateLimiter 4.3: a timeout of 0 always failed."""
    crowd = crowd_of("10/s")

    assert await crowd.limiter.acquire(max_wait=0) == 0.0
    with pytest.raises(aiorate.WaitTooLong):
        await crowd.limiter.acquire(max_wait=0)


async def test_max_wait_while_stopped_fails_at_once() -> None:
    """The end of a stop is unknown, so any max_wait is too short."""
    crowd = crowd_of("10/s")
    crowd.limiter.apply("10,1,stop")

    with pytest.raises(aiorate.WaitTooLong) as caught:
        await crowd.limiter.acquire(max_wait=1e300)

    assert caught.value.wait == crowd.limiter.delay() == float("inf")


async def test_the_line_holds_at_most_max_waiting() -> None:
    """Back-pressure: a third request in a line of two is refused, until one leaves."""
    crowd = crowd_of("10/s", max_waiting=2)
    await crowd.queue(["running", "A", "B"])

    with pytest.raises(aiorate.LineFull, match=r"the line is full \(max_waiting=2\)"):
        await crowd.limiter.acquire()
    crowd.tasks["A"].cancel()
    await turns(3)
    crowd.ask("C")
    await crowd.clock.run(1)

    assert list(crowd.granted) == ["running", "B", "C"]
    assert crowd.limiter.statistics().refused == 1


async def test_max_waiting_zero_refuses_every_wait() -> None:
    """It grants a request that needs no wait."""
    crowd = crowd_of("10/s", max_waiting=0)

    assert await crowd.limiter.acquire() == 0.0
    with pytest.raises(aiorate.LineFull):
        await crowd.limiter.acquire()


async def test_try_acquire_never_waits() -> None:
    """It spends nothing where it returns False."""
    crowd = crowd_of(aiorate.TokenBucket("10/s", burst=3))

    tries = [crowd.limiter.try_acquire(2), crowd.limiter.try_acquire(2), crowd.limiter.try_acquire(1), crowd.limiter.try_acquire()]

    assert tries == [True, False, True, False]
    assert (crowd.limiter.statistics().granted, crowd.limiter.statistics().refused) == (3, 2)


async def test_async_with_returns_the_wait_and_of_asks_for_more() -> None:
    """The target of `as` is the seconds waited; leaving the block gives nothing back."""
    crowd = crowd_of(aiorate.TokenBucket("10/s", burst=5))

    async with crowd.limiter as waited:
        pass
    async with crowd.limiter.of(4) as of_waited:
        pass

    assert (waited, of_waited) == (0.0, 0.0)
    assert crowd.limiter.delay() == 0.1


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


async def test_waited_max_is_the_longest_wait_not_the_last() -> None:
    """One request waits for half a second, and a later one for a tenth."""
    crowd = crowd_of("10/s")
    await crowd.queue(range(6))
    await crowd.clock.run(0.5)
    crowd.ask("last")
    await crowd.clock.run(1)

    seen = crowd.limiter.statistics()

    assert (seen.waited_max, round(seen.waited_total, 9)) == (0.5, 1.6)


async def test_statistics_after_one_of_everything() -> None:
    """Each field has the value that the steps before explain."""
    crowd = crowd_of("10/s", max_waiting=3)
    await crowd.queue("ABCD")
    assert not crowd.limiter.try_acquire()
    crowd.tasks["C"].cancel()
    await crowd.clock.run(0.1)
    crowd.limiter.refund(1)  # lets D go
    await turns(5)
    crowd.limiter.pause(2)

    seen = crowd.limiter.statistics()

    assert seen == aiorate.Statistics(
        granted=2,
        refused=1,
        cancelled=1,
        refunded=1,
        waiting=0,
        waited_total=0.2,
        waited_max=0.1,
        waited_p50=0.1,
        waited_p90=0.1,
        waited_p99=0.1,
        charged=0,
        available=0,
        skipped=0,
        rate=aiorate.Rate.parse("10/s"),
        paused_until=2.1,
        next_at=None,
        state="local",
    )
    with pytest.raises(AttributeError):
        seen.granted = 0  # type: ignore[misc]


async def test_next_at_is_the_instant_of_the_next_grant() -> None:
    """It is in seconds of the limiter's clock, so that a monitor can plot it."""
    crowd = crowd_of("10/s")
    await crowd.queue("AB")

    assert crowd.limiter.statistics().next_at == 0.1
    await crowd.clock.run(0.1)
    assert crowd.limiter.statistics().next_at is None


async def test_lag_grows_while_nobody_asks() -> None:
    """How far the limiter is behind its schedule: the wait time of a load test."""
    crowd = crowd_of(aiorate.TicksAccumulator("10/s"))
    await crowd.limiter.acquire()

    await crowd.clock.run(3.1)

    assert crowd.limiter.lag == 3.0


async def test_repr_shows_the_state() -> None:
    """Name, strategy, requests in line, and whether it is paused, stopped or closed."""
    crowd = crowd_of("10/s", name="api")
    await crowd.queue("AB")

    assert repr(crowd.limiter).startswith("<Limiter 'api' TokenPool('10/s'")
    assert "1 waiting" in repr(crowd.limiter)
    crowd.limiter.pause(1)
    assert "paused" in repr(crowd.limiter)
    crowd.limiter.apply("10,1,stop")
    assert "stopped" in repr(crowd.limiter)
    await crowd.limiter.aclose()
    assert "closed" in repr(crowd.limiter)
    await asyncio.gather(*crowd.tasks.values(), return_exceptions=True)


async def test_the_bound_allows_for_catch_up_only_where_it_applies() -> None:
    """A window ignores `since` and promises exactly n; a bucket may make up for `catch_up` seconds."""
    exact = aiorate.Limiter(aiorate.SlidingWindow("100/s"), catch_up=0.02)
    pool = aiorate.Limiter(aiorate.TokenBucket("100/s", burst=1), catch_up=0.02)
    free = aiorate.Limiter(aiorate.TicksAccumulator("100/s"))

    assert exact.bound(1) == 100
    assert pool.bound(1) == 1 + 102
    assert free.bound(1) is None


async def test_the_bound_of_all_of_is_its_tightest_member() -> None:
    """It is the least of its members' bounds."""
    both = aiorate.AllOf(aiorate.TokenBucket("100/s", burst=1), aiorate.SlidingWindow("50/s"))

    assert aiorate.Limiter(both).bound(1) == 50


@pytest.mark.shut_meter(reason="an open meter asks for the refused permit, and then the dispatcher does")
@pytest.mark.parametrize("kind", ["of an instance", "static", "of a subclass"])
async def test_any_take_of_a_scheduler_is_called(kind: str) -> None:
    """An attribute of the instance, a static method, or a method of a subclass: the limiter looks it up as Python does."""
    asked: list[tuple[int, int]] = []
    bucket = aiorate.TokenBucket("10/s", burst=1)

    def noted(permits: int, now: int, since: int | None = None) -> int:
        asked.append((permits, now))
        return bucket.take(permits, now, since)

    def method(self: object, permits: int, now: int, since: int | None = None) -> int:
        return noted(permits, now, since)

    scheduler: Any
    if kind == "of an instance":
        scheduler = type("Mine", (aiorate.TokenBucket,), {})("10/s", burst=1)
        scheduler.take = noted
    else:
        take = staticmethod(noted) if kind == "static" else method
        scheduler = type("Mine", (aiorate.TokenBucket,), {"take": take})("10/s", burst=1)
    limiter = aiorate.Limiter(scheduler, clock=ManualClock())

    assert [limiter.try_acquire(), limiter.try_acquire()] == [True, False]
    assert asked == [(1, 0), (1, 0)]


async def test_a_lookalike_of_a_scheduler_is_refused() -> None:
    """Duck typing is not enough, since the base class brings the defaults; the error names the class to derive from."""

    class Mine:
        def take(self, permits: int, now: int, since: int | None = None) -> int:
            return now

    with pytest.raises(TypeError, match=r"subclass aiorate\.Scheduler"):
        aiorate.Limiter(Mine())  # type: ignore[arg-type]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
async def test_a_limiter_refuses_to_be_copied(way: Any) -> None:
    """A copy would grant the same permits again. A copy of a precise limiter once closed a descriptor that another loop owned by then."""
    limiter = aiorate.Limiter("10/s")

    with pytest.raises(TypeError, match="Share it"):
        way(limiter)
