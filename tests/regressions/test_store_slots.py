"""Slots booked from a store: eager tasks, late loops, and durations that no store can count."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import pytest
from helpers.loops import eager_loop, needs_eager
from helpers.stores import RealServer, TimedClient

import aiorate
from aiorate.http import Feedback
from aiorate.redis import RedisLimiter
from aiorate.schedulers.slot_scheduler import SlotScheduler
from aiorate.testing import VirtualLoop

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def store() -> Any:
    with RealServer() as server:
        yield server


def run_eagerly(main: Coroutine[Any, Any, Any]) -> Any:
    """Run it in virtual time, in a loop that starts tasks at once, for at most a virtual minute."""
    with asyncio.Runner(loop_factory=lambda: eager_loop(VirtualLoop)) as runner:
        return runner.run(asyncio.wait_for(main, 60))


def names() -> Any:
    """Yield names that no other test has used."""
    number = 0
    while True:
        number += 1
        yield f"store-slots-{number}"


NAMES = names()


@needs_eager
@pytest.mark.parametrize("lease", [0, 0.05])
@pytest.mark.parametrize("count", [1, 100])
def test_redis_limiter_grants_under_eager_tasks(store: RealServer, count: int, lease: float) -> None:
    """No request was ever granted, because the store task looked at the line before the request was in it."""

    async def main() -> None:
        limiter = RedisLimiter(TimedClient(store), next(NAMES), "1000/s", lease=lease)
        await asyncio.gather(*[limiter.acquire() for _ in range(count)])
        assert count == limiter.statistics().granted
        await limiter.aclose()

    run_eagerly(main())


@needs_eager
@pytest.mark.parametrize("lease", [0, 0.05])
def test_eager_redis_limiter_grants_after_an_idle_time(store: RealServer, lease: float) -> None:
    """The store task ends after an idle second, and the next request starts another one."""

    async def main() -> None:
        limiter = RedisLimiter(TimedClient(store), next(NAMES), "1000/s", lease=lease)
        for _ in range(3):
            await limiter.acquire()
            await asyncio.sleep(5)
        assert 3 == limiter.statistics().granted
        await limiter.aclose()

    run_eagerly(main())


@needs_eager
def test_eager_keyed_limiters_over_redis_all_grant(store: RealServer) -> None:
    """One store task serves all keys, so one overlooked request is enough to stop them all."""

    async def main() -> None:
        client, prefix = TimedClient(store), next(NAMES)
        keyed = aiorate.KeyedLimiter(lambda key: RedisLimiter(client, f"{prefix}:{key}", "1000/s"), shared="1000/s")
        await asyncio.gather(*[keyed.acquire(key) for key in range(20) for _ in range(3)])
        await keyed.aclose()

    run_eagerly(main())


async def late_loop(store: RealServer, rate: str, stall: float, seconds: float, **options: Any) -> tuple[RedisLimiter, list[float]]:
    """Let ten tasks acquire repeatedly in a loop that stalls for ``stall`` seconds at a time."""
    loop: Any = asyncio.get_running_loop()
    limiter = RedisLimiter(TimedClient(store), next(NAMES), rate, **options)
    granted: list[float] = []

    async def worker() -> None:
        while True:
            await limiter.acquire()
            granted.append(loop.time())

    async def block() -> None:
        while True:
            loop._jump(stall)  # time passes, and nothing runs
            await asyncio.sleep(0.001)

    tasks = [asyncio.create_task(worker()) for _ in range(10)] + [asyncio.create_task(block())]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await limiter.aclose()
    return limiter, granted


@pytest.mark.parametrize(("rate", "stall"), [("2/s", 0.03), ("2/s", 0.1), ("10/s", 0.03), ("1/min", 2.0)])
@pytest.mark.parametrize("burst", [1, 3])
def test_late_loop_loses_no_slots_of_a_slow_rate(store: RealServer, rate: str, stall: float, burst: int) -> None:
    """At 2/s a loop 30 ms late delivered a quarter, because a slot lapsed 5 ms after it was due."""
    per_second = aiorate.Rate.parse(rate).per_second
    seconds = 40 / per_second
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        limiter, granted = runner.run(late_loop(store, rate, stall, seconds, burst=burst))

    assert 0.9 * 40 <= len(granted) <= 41 + burst
    for window in (0.1, 1.0, 5.0):
        most = max(sum(begin <= each < begin + window for each in granted) for begin in granted)
        assert most <= (limiter.bound(window) or 0)


def test_slot_lapses_half_an_interval_after_it_is_due() -> None:
    """It must not lapse later, or two slots in a row could be used at one instant."""
    rates = [aiorate.Rate.parse("2/s")]
    scheduler = SlotScheduler(rates, [1], 5_000_000)
    scheduler.book([0], 2, 0, [SECOND], 1)

    assert 0 == scheduler.take(1, SECOND // 4)
    assert 1 == scheduler.ready(1, SECOND * 3 // 4)
    assert 0 == scheduler.ready(1, SECOND * 3 // 4 + 1)
    assert [1, 2, 3] == [scheduler.bound(window) for window in (1, SECOND // 4, SECOND * 3 // 4)]


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (lambda limiter: limiter.charge(10**15), r"charge\(1000000000000000\): at 1/s .* At most 10000000000 can be charged"),
        (lambda limiter: limiter.pause(10**13), r"pause\(10000000000000\): .* at most 10000000000 seconds"),
        (lambda limiter: limiter.pause(timedelta.max), r"pause\(86399999999999\): .* at most"),
        (lambda limiter: limiter.set_rate(aiorate.Rate(1, 10**12)), r"set_rate\(\): .* Give a faster rate"),
    ],
)
def test_duration_that_no_store_can_count_is_refused(store: RealServer, refused: Any, says: str) -> None:
    """One bad number poisoned the key of all processes for 3170 years, and nothing mended it."""

    async def main() -> None:
        limiter = RedisLimiter(TimedClient(store), next(NAMES), "1/s")
        with pytest.raises(ValueError, match=says):
            refused(limiter)
        assert (0, None) == (limiter.statistics().charged, limiter.statistics().paused_until)
        assert 0 == await limiter.acquire()
        await limiter.aclose()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_burst_that_no_store_can_count_is_refused() -> None:
    """A burst of 40 000 at one a year takes longer to refill than the store can count."""
    with pytest.raises(ValueError, match=r"at 1/365day a burst of 40000 takes longer than 317 years .* a burst of at most 317\."):
        RedisLimiter("redis://localhost", "x", "1/365d", burst=40_000)
    with pytest.raises(ValueError, match="Give a faster rate"):
        RedisLimiter("redis://localhost", "x", ["10/s", aiorate.Rate(1, 10**12)])
    RedisLimiter("redis://localhost", "x", "1/365d", burst=317)


def test_many_charges_are_clamped_by_the_store(store: RealServer) -> None:
    """Each charge is valid, but their sum is not. The key stays readable."""

    async def main() -> None:
        limiter = RedisLimiter(TimedClient(store), next(NAMES), "1/s", grace=0)
        for _ in range(5):
            for _ in range(50):
                limiter.charge(10**10)
            await asyncio.sleep(0.01)
        limiter.pause(10**10)
        with pytest.raises(ValueError, match="at most 10000000000 seconds"):
            limiter.observe(Feedback(429, pause=1e13))
        await asyncio.sleep(0.01)
        numbers = [float(word) for word in store.send("GET", limiter.key).split(" ")[1:]]

        assert max(numbers[1:]) <= 1e16
        assert "shared" == limiter.statistics().state
        assert limiter.statistics().refused == 0
        await limiter.aclose()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_resume_mends_a_key_that_cannot_be_read(store: RealServer) -> None:
    """Any process may replace a nonsensical value of aiorate's with one call, without a new name."""

    async def main() -> None:
        limiter = RedisLimiter(TimedClient(store), next(NAMES), "10/s")
        await limiter.acquire()
        words = store.send("GET", limiter.key).split(" ")
        store.send("SET", limiter.key, " ".join([*words[:-1], "1e300"]))
        with pytest.raises(aiorate.EngineUnavailable, match="WRONGTYPE"):
            await limiter.acquire()
        limiter.resume()
        await asyncio.sleep(0.01)
        assert await limiter.acquire() <= 0.2
        await limiter.aclose()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
