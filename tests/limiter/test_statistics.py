"""statistics(), lag and repr(): counts, percentiles of waits, and what is available."""

from __future__ import annotations

import asyncio
import random

import pytest
from helpers.driving import SECOND, SteppedClock, crowd_of, one_loop, turns

import aiorate
from aiorate import Limiter, TokenBucket

pytestmark = one_loop


async def test_statistics_after_one_of_everything() -> None:
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


async def test_waited_max_is_the_longest_wait_not_the_last() -> None:
    crowd = crowd_of("10/s")
    await crowd.queue(range(6))
    await crowd.clock.run(0.5)
    crowd.ask("last")
    await crowd.clock.run(1)

    seen = crowd.limiter.statistics()

    assert (seen.waited_max, round(seen.waited_total, 9)) == (0.5, 1.6)


async def test_next_at_is_the_instant_of_the_next_grant() -> None:
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


# Percentiles.


async def waits_of(lengths: list[int]) -> tuple[list[int], Limiter]:
    """Have one request after the other wait for about that many ns; how long each waited."""
    clock = SteppedClock()
    limiter = Limiter(TokenBucket("1000000000/s", burst=10**18, initial=0), clock=clock)
    assert limiter.delay() > 0  # the first reading of the clock starts the schedule
    waited = []
    for length in lengths:
        clock.advance(1)  # timers are kept apart
        assert limiter.try_acquire(limiter.statistics().available)
        task = asyncio.ensure_future(limiter.acquire(length))
        while not task.done():
            await turns(3)
            clock.fire()
        waited.append(round(task.result() * SECOND))
    return sorted(waited), limiter


async def test_percentiles_are_at_most_a_sixteenth_too_long() -> None:
    """And never too short. They are by nearest rank, for waits from a nanosecond to days; reset() forgets them."""
    dice = random.Random(4)
    draws = {
        "even": lambda: dice.randint(1, 10 * SECOND),
        "heavy": lambda: int(SECOND // 1000 * dice.paretovariate(0.5)) + 1,
        "equal": lambda: 123_456_789,
        "tiny": lambda: dice.randint(1, 40),
        "edges of steps": lambda: (dice.randint(16, 31) << dice.randint(0, 44)) + dice.randint(-1, 1),
    }
    for spread, draw in draws.items():
        for count in (1, 2, 9, 100):
            waits, limiter = await waits_of([draw() for _ in range(count)])
            seen = limiter.statistics()
            for percent, told in ((50, seen.waited_p50), (90, seen.waited_p90), (99, seen.waited_p99)):
                exact = waits[-(-count * percent // 100) - 1]
                assert exact <= round(told * SECOND) <= min(exact * 17 / 16, waits[-1]), (spread, count, percent)
            assert round(seen.waited_max * SECOND) == waits[-1]
            assert round(seen.waited_total * SECOND) == sum(waits)
            limiter.reset()
            assert limiter.statistics().waited_p99 == 0.0


async def test_percentiles_count_only_requests_that_waited(clock: SteppedClock) -> None:
    """Ten are granted at once and ten wait from 0.1 to 1 s: the median is that of the latter."""
    limiter = Limiter(TokenBucket("10/s", burst=10), clock=clock)
    before = limiter.statistics()
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(20)]
    await clock.run(5)
    counts = limiter.statistics()

    assert (before.waited_p50, before.waited_p90, before.waited_p99) == (0.0, 0.0, 0.0)
    near = pytest.approx(0.5, rel=1 / 16), pytest.approx(0.9, rel=1 / 16), 1.0
    assert (counts.waited_p50, counts.waited_p90, counts.waited_p99) == near
    assert counts.waited_total == sum(task.result() for task in tasks) == 5.5


async def test_nothing_is_available_if_a_newcomer_would_wait(clock: SteppedClock) -> None:
    """It would wait behind a line, while the limiter is paused or stopped, and once it is closed."""
    limiter = Limiter(TokenBucket("1/s", burst=5), clock=clock)

    def available() -> int:
        return limiter.statistics().available

    assert limiter.try_acquire(3)
    assert available() == 2
    task = asyncio.ensure_future(limiter.acquire(4))
    await turns(2)
    assert available() == 0
    await clock.run(7)
    assert (task.done(), available()) == (True, 5)
    limiter.pause(1)
    assert available() == 0
    clock.advance(1)
    assert available() == 5
    limiter.apply("1,1,stop")
    assert available() == 0
    limiter.apply("1,1,start")
    assert available() == 5
    await limiter.aclose()
    assert available() == 0
    assert isinstance(limiter.statistics(), aiorate.Statistics)
