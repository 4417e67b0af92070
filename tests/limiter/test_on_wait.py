"""on_wait and watch(): told once of each request that waited, after its grant, in the task or thread that waited."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from helpers.driving import LONG, turns

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
    limiter = one_a_second(name="api", on_wait=told.append)

    seconds = await asyncio.gather(*(limiter.acquire() for _ in range(3)))

    assert [0.0, 1.0, 2.0] == seconds
    assert [Waited(1.0, 1, "api"), Waited(2.0, 1, "api")] == told


async def test_every_way_to_ask_is_told(told: list[Waited]) -> None:
    async def block(limiter: Limiter) -> None:
        async with limiter.of(1):
            pass

    async def decorated(limiter: Limiter) -> None:
        await limiter(asyncio.sleep)(0)

    async def slots(limiter: Limiter) -> None:
        slots = limiter.slots()
        await anext(slots)
        await slots.aclose()  # type: ignore[attr-defined]

    ways = [Limiter.acquire, lambda limiter: limiter.acquire(max_wait=5), block, decorated, slots]
    rows = [(way, options) for way in ways for options in ({}, {"max_concurrency": 2}, {"max_waiting": 5})]
    for way, options in [*rows, (block, {"scope": "process"})]:
        told.clear()
        limiter = one_a_second(on_wait=told.append, **options)
        assert await limiter.acquire() == 0.0

        await way(limiter)

        assert [(each.permits, each.seconds > 0) for each in told] == [(1, True)], (way, options)


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


async def test_on_wait_must_be_a_plain_function() -> None:
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
    limiter = Limiter(TokenBucket("1/s", burst=4), max_concurrency=1, on_wait=told.append)

    async def work(seconds: float) -> None:
        async with limiter:
            await asyncio.sleep(seconds)

    await asyncio.gather(work(0.0), work(0.0))
    assert told == []  # one waited for no time at all
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
    assert str(told[0]) == "limiter 'llm': waited 0.5 s for {'requests': 1, 'tokens': 50} (limited by tokens)"


# Cancellations, threads, trio and a second loop.


@pytest.mark.parametrize("shared", [False, True])
async def test_told_is_exactly_what_callers_waited(shared: bool, told: list[Waited]) -> None:
    """Many requests, a third of them cancelled at some instant: told are the waits of those that went on, each once."""
    dice, waited = random.Random(7), list[float]()
    alone = Limiter(TokenBucket("20/s", burst=2), on_wait=told.append)
    teams = KeyedLimiter(lambda team: TokenBucket("15/s", burst=2), shared=Limiter(TokenBucket("20/s", burst=2)))
    users = KeyedLimiter(lambda user: TokenBucket("5/s", burst=2), shared=lambda user: teams[user % 2], on_wait=told.append)

    async def call() -> None:
        waited.append(await (users.acquire(dice.randrange(5)) if shared else alone.acquire()))

    tasks = []
    for _ in range(300):
        tasks.append(asyncio.ensure_future(call()))
        if dice.random() < 0.5:
            await asyncio.sleep(dice.choice([0, 0.05, 0.1]))
        if dice.random() < 0.3:
            dice.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert Counter(seconds for seconds in waited if seconds) == Counter(each.seconds for each in told)
    assert 30 < len(told) < len(waited) < 300


async def test_threads_are_told_where_they_wait() -> None:
    """Outside of the critical section, so that the function may wait for the limiter itself. Each way to wait is told, loops too."""
    told: Counter[int] = Counter()
    waited: Counter[int] = Counter()
    nested = threading.local()

    def note(seconds: float) -> None:
        waited[threading.get_ident()] += seconds > 0

    def on_wait(each: Waited) -> None:
        told[threading.get_ident()] += 1
        if not hasattr(nested, "begun"):
            nested.begun = True
            note(limiter.acquire_blocking())

    limiter = Limiter(TokenBucket("50/s", burst=1), scope="process", on_wait=on_wait, max_concurrency=2)

    async def acquire() -> float:
        return await limiter.acquire()

    def work() -> None:
        with limiter.of(1) as seconds:
            note(seconds)
        note(limiter.acquire_blocking(max_wait=LONG))
        note(asyncio.run(acquire()))

    await asyncio.gather(*(asyncio.to_thread(work) for _ in range(3)))

    assert told == waited
    assert sum(told.values()) > 3
    assert limiter.statistics().waiting == 0
