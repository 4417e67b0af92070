"""on_wait and watch(): told once of each request that waited, after its grant, in the task or thread that waited."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from functools import partial
from typing import Any

import pytest
from helpers.driving import SECOND, SteppedClock, one_loop, turns

import aiorate
from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, TokenBucket, Waited
from aiorate.redis import RedisBudget, RedisLimiter

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


@pytest.fixture
def told() -> list[Waited]:
    return []


def one_a_second(**options: Any) -> Limiter:
    """A limiter whose first permit is there, and each further one a second later; 0.2 s for a whole process, in real time."""
    return Limiter(TokenBucket("1/s" if options.get("scope", "loop") == "loop" else "5/s", burst=1), **options)


async def test_each_request_that_waited_is_told_once(told: list[Waited]) -> None:
    """In order of grants, with the seconds that acquire() returns; the first did not wait."""
    limiter = one_a_second(name="api", on_wait=told.append)

    seconds = await asyncio.gather(*(limiter.acquire() for _ in range(3)))

    assert [0.0, 1.0, 2.0] == seconds
    assert [Waited(1.0, 1, "api"), Waited(2.0, 1, "api")] == told


async def test_waited_is_a_frozen_value(told: list[Waited]) -> None:
    waited = Waited(1.5, 2, "api", ("user", 5), "shared")

    assert waited == Waited(1.5, 2, "api", ("user", 5), "shared")
    assert not hasattr(waited, "__dict__")
    assert str(waited) == "limiter 'api', key ('user', 5): waited 1.5 s for 2 (limited by shared)"
    assert str(Waited(0.25, 1)) == "limiter: waited 0.25 s for 1"
    with pytest.raises(FrozenInstanceError):
        waited.seconds = 2.0  # type: ignore[misc]


async def test_every_way_to_ask_is_told(told: list[Waited]) -> None:
    async def block(limiter: Limiter) -> None:
        async with limiter:
            pass

    async def weighted(limiter: Limiter) -> None:
        async with limiter.of(1):
            pass

    async def decorated(limiter: Limiter) -> None:
        @limiter
        async def call() -> None: ...

        await call()

    async def slots(limiter: Limiter) -> None:
        slots = limiter.slots()
        await anext(slots)
        await slots.aclose()  # type: ignore[attr-defined]

    ways = [Limiter.acquire, lambda limiter: limiter.acquire(max_wait=5), block, weighted, decorated, slots]
    rows = [(way, options) for way in ways for options in ({}, {"max_concurrency": 2}, {"max_waiting": 5})]
    for way, options in [*rows, (block, {"scope": "process"})]:
        told.clear()
        limiter = one_a_second(on_wait=told.append, **options)
        assert await limiter.acquire() == 0.0

        await way(limiter)

        assert [each.permits for each in told] == [1], (way, options)
        assert told[0].seconds > 0


async def test_requests_that_did_not_get_permits_are_not_told(told: list[Waited]) -> None:
    """Refused, timed out, cancelled in line, cancelled after the grant, closed: none of them had its permits."""
    limiter = one_a_second(on_wait=told.append, max_waiting=3)
    await limiter.acquire()
    with pytest.raises(aiorate.WaitTooLong):
        await limiter.acquire(max_wait=0.5)
    in_time = asyncio.ensure_future(limiter.acquire(max_wait=1.5))
    cancelled = asyncio.ensure_future(limiter.acquire())
    closed = asyncio.ensure_future(limiter.acquire())
    await turns(2)
    with pytest.raises(aiorate.LineFull):
        await limiter.acquire()
    cancelled.cancel()
    limiter.pause(5)
    with pytest.raises(aiorate.WaitTooLong):
        await in_time

    await limiter.aclose()

    assert isinstance((await asyncio.gather(closed, return_exceptions=True))[0], aiorate.LimiterClosed)
    assert told == []


@one_loop
async def test_a_grant_that_a_cancellation_gives_back_is_not_told(clock: SteppedClock, told: list[Waited]) -> None:
    """The next in line gets the permit, and is told of."""
    limiter = one_a_second(on_wait=told.append, clock=clock)
    await limiter.acquire()
    first, second = (asyncio.ensure_future(limiter.acquire()) for _ in range(2))
    await turns(3)
    clock.advance(1.0)  # granted, and not run yet
    first.cancel()
    await turns(5)

    assert [Waited(1.0, 1)] == told
    assert (await second, first.cancelled()) == (1.0, True)


async def test_the_caller_is_told_before_it_goes_on(told: list[Waited]) -> None:
    """In its task, so that context variables, such as the current span, are the caller's."""
    tasks: list[object] = []
    limiter = one_a_second(on_wait=lambda waited: tasks.append(asyncio.current_task()))

    async def ask() -> None:
        await limiter.acquire()
        tasks.append("went on")

    await limiter.acquire()
    task = asyncio.ensure_future(ask())
    await task

    assert [task, "went on"] == tasks


async def test_an_error_in_on_wait_is_logged_and_harmless(caplog: pytest.LogCaptureFixture, told: list[Waited]) -> None:
    limiter = one_a_second(name="api", on_wait=lambda waited: 1 / 0)
    limiter.watch(told.append)
    await limiter.acquire()

    assert await limiter.acquire() == 1.0

    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, "on_wait failed for limiter 'api': waited 1 s for 1")
    ]
    assert [Waited(1.0, 1, "api")] == told


@one_loop
async def test_the_wait_ends_with_the_grant_of_a_late_loop(clock: SteppedClock, told: list[Waited]) -> None:
    limiter = Limiter(TokenBucket("10/s", burst=1), clock=clock, on_wait=told.append)
    await limiter.acquire()
    waiting = asyncio.ensure_future(limiter.acquire())
    await turns(3)

    clock.set(clock.now() + 7 * SECOND)
    await turns(5)

    assert [Waited(await waiting, 1)] == told == [Waited(7.0, 1)]


async def test_on_wait_may_change_and_ask_the_limiter() -> None:
    """It is called when nothing is half decided."""
    for scope in ("loop", "process"):
        seen: list[object] = []
        limiter = one_a_second(scope=scope)

        def on_wait(waited: Waited, limiter: Limiter = limiter, seen: list[object] = seen) -> None:
            seen.append(limiter.try_acquire())
            seen.append(limiter.statistics().waiting)
            limiter.set_rate("1000/s")
            limiter.apply("1000,1,stop")

        limiter.watch(on_wait)
        await limiter.acquire()
        asking = [asyncio.ensure_future(limiter.acquire()) for _ in range(2)]

        await asking[0]
        assert seen == [False, 1], scope
        assert limiter.delay() == float("inf")  # stopped
        limiter.apply("1000,1,start")
        assert await asking[1] > 0


async def test_a_callback_may_close_the_limiter() -> None:
    """Requests behind the one that is told of get what the callback decided."""
    closing: list[asyncio.Future[None]] = []
    limiter = one_a_second(on_wait=lambda waited: closing.append(asyncio.ensure_future(limiter.aclose())))
    await limiter.acquire()

    first, second = await asyncio.gather(limiter.acquire(), limiter.acquire(), return_exceptions=True)

    assert (first, type(second)) == (1.0, aiorate.LimiterClosed)
    await asyncio.gather(*closing)


# watch().


async def test_watching_ends_with_the_function_that_watch_returned(told: list[Waited]) -> None:
    """Each call counts, also of the same function; a second call of its end does nothing."""
    limiter = one_a_second(on_wait=told.append)
    first, second = limiter.watch(told.append), limiter.watch(told.append)
    await limiter.acquire()

    await limiter.acquire()
    assert len(told) == 3
    second()
    second()
    await limiter.acquire()
    assert len(told) == 5
    first()
    await limiter.acquire()

    assert len(told) == 6


async def test_a_request_that_waits_already_is_told(told: list[Waited]) -> None:
    limiter = one_a_second()
    await limiter.acquire()
    waiting = asyncio.ensure_future(limiter.acquire())
    await asyncio.sleep(0.5)

    limiter.watch(told.append)
    await waiting

    assert [Waited(1.0, 1)] == told


async def test_on_wait_must_be_a_plain_function() -> None:
    """A coroutine function would never be awaited."""

    async def unawaited(waited: Waited) -> None: ...

    class Unawaited:
        async def __call__(self, waited: Waited) -> None: ...

    url = "redis://127.0.0.1:1"  # nothing is asked of it
    places: list[Callable[[Any], object]] = [
        lambda wrong: Limiter("1/s", on_wait=wrong),
        lambda wrong: Limiter("1/s").watch(wrong),
        lambda wrong: KeyedLimiter(lambda key: "1/s", on_wait=wrong),
        lambda wrong: KeyedLimiter(lambda key: "1/s").watch(wrong),
        lambda wrong: Budget(requests="1/s", on_wait=wrong),
        lambda wrong: KeyedBudget(lambda key: Budget(requests="1/s"), on_wait=wrong),
        lambda wrong: RedisLimiter(url, "api", "1/s", on_wait=wrong),
        lambda wrong: RedisBudget(url, "api", requests="1/s", on_wait=wrong),
    ]
    for place in places:
        for wrong in (5, "print", unawaited, Unawaited(), partial(unawaited), Waited):
            with pytest.raises(TypeError, match=r"\(on_wait\) must be a plain function"):
                place(wrong)


# What a wait was for.


async def test_a_keyed_limiter_tells_the_key(told: list[Waited]) -> None:
    """Of every key, those made before and after; a limiter's own function is told as well, and first."""
    order: list[str] = []
    keyed = KeyedLimiter(lambda key: one_a_second(on_wait=lambda waited: order.append("own")), name="users")
    await keyed.acquire("ann")
    keyed.watch(lambda waited: order.append("all"))
    keyed.watch(told.append)
    await keyed.acquire("bob")

    await asyncio.gather(keyed.acquire("ann"), keyed.acquire("bob"))

    assert [Waited(1.0, 1, "users", "ann"), Waited(1.0, 1, "users", "bob")] == told
    assert ["own", "all"] * 2 == order


async def test_limits_that_are_shared_are_named(told: list[Waited]) -> None:
    top, asked = Limiter(TokenBucket("10/s", burst=10), name="provider", on_wait=told.append), list[Waited]()
    teams = KeyedLimiter(lambda team: Limiter(TokenBucket("1/min", burst=1 if team == "slow" else 9), name=team), shared=top)
    users = KeyedLimiter(
        lambda user: TokenBucket("1/s", burst=1 if user[1] == "ann" else 9), shared=lambda user: teams[user[0]], on_wait=asked.append
    )

    for user in [("fast", "ann"), ("fast", "ann")]:
        await users.acquire(user)
    await asyncio.sleep(1)
    assert top.try_acquire(10)
    for user in [("fast", "bob"), ("slow", "cid"), ("slow", "cid")]:
        await users.acquire(user)

    assert [(1.0, None), (0.1, "provider"), (0.1, "provider"), (60.0, "slow")] == [(each.seconds, each.limited_by) for each in asked]
    assert told == []  # nobody asked it directly


async def test_a_wait_for_a_place_says_so(told: list[Waited]) -> None:
    limiter = Limiter(TokenBucket("1/s", burst=2), max_concurrency=1, on_wait=told.append)

    async def work(seconds: float) -> None:
        async with limiter:
            await asyncio.sleep(seconds)

    await asyncio.gather(work(0.25), work(0.0), work(0.0))

    assert [Waited(0.25, 1, limited_by="max_concurrency"), Waited(1.0, 1)] == told


async def test_a_wait_for_the_end_of_a_pause_says_so(told: list[Waited]) -> None:
    limiter = Limiter(TokenBucket("1/s", burst=1), on_wait=told.append)
    limiter.pause(3)

    await asyncio.gather(limiter.acquire(), limiter.acquire())
    await asyncio.sleep(2)
    limiter.apply("1,1,stop")
    stopped = asyncio.ensure_future(limiter.acquire())
    await asyncio.sleep(2)
    limiter.apply("1,1,start")
    await stopped

    assert [(3.0, "pause"), (4.0, None), (2.0, "pause")] == [(waited.seconds, waited.limited_by) for waited in told]


async def test_a_budget_tells_amounts_and_dimension(told: list[Waited]) -> None:
    budget = Budget(requests=TokenBucket("10/s", 10), tokens=TokenBucket("100/s", 100), name="llm", on_wait=told.append)
    async with budget.reserve(tokens=100):
        pass

    async with budget.reserve(tokens=50) as lease:
        pass
    budget.pause(2)
    async with budget.reserve(tokens=0):
        pass

    assert ("tokens", 0.5) == (lease.limited_by, lease.waited)
    assert [
        Waited(0.5, {"requests": 1, "tokens": 50}, "llm", None, "tokens"),
        Waited(2.0, {"requests": 1, "tokens": 0}, "llm", None, "pause"),
    ] == told
