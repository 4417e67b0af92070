"""on_wait with cancellations, loops, threads and trio: told is exactly what callers waited."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from helpers.driving import LONG
from helpers.under_trio import run_on

from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, TokenBucket, Waited
from aiorate.testing import VirtualLoop


@pytest.fixture
def told() -> list[Waited]:
    return []


def virtually(main: Callable[[], Any]) -> Any:
    """Run it outside of the loop of the test."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


Ask = Callable[[], Any]


def places(on_wait: Callable[[Waited], object]) -> Ask:
    limiter = Limiter(TokenBucket("20/s", burst=2), max_concurrency=2, on_wait=on_wait)

    async def enter() -> float:
        async with limiter as waited:
            with suppress(asyncio.CancelledError):  # it was granted
                await asyncio.sleep(0.03)
        return waited

    return enter


def levels(on_wait: Callable[[Waited], object]) -> Ask:
    top = Limiter(TokenBucket("20/s", burst=2), name="top")
    teams = KeyedLimiter(lambda team: TokenBucket("15/s", burst=2), shared=top)
    users = KeyedLimiter(lambda user: TokenBucket("5/s", burst=2), shared=lambda user: teams[user % 2], on_wait=on_wait)
    return lambda: users.acquire(random.randrange(5))


def evicted(on_wait: Callable[[Waited], object]) -> Ask:
    keyed = KeyedLimiter(lambda key: TokenBucket("2/s", burst=1), max_keys=4, on_wait=on_wait)
    return lambda: keyed.acquire(random.randrange(12))


def budgets(on_wait: Callable[[Waited], object]) -> Ask:
    shared = Budget(tokens=TokenBucket("20/s", 4))
    keyed = KeyedBudget(lambda key: Budget(requests=TokenBucket("10/s", 2)), shared=shared, on_wait=on_wait)

    async def reserve() -> float:
        async with keyed.reserve(random.randrange(3), tokens=random.randrange(3)) as lease:
            return lease.waited

    return reserve


KINDS: dict[str, Callable[[Any], Ask]] = {
    "limiter": lambda on_wait: Limiter(TokenBucket("20/s", burst=2), on_wait=on_wait).acquire,
    "pool": lambda on_wait: Limiter("20/s", on_wait=on_wait).acquire,
    "places": places,
    "levels": levels,
    "evicted": evicted,
    "budgets": budgets,
}


@pytest.mark.parametrize("kind", KINDS)
def test_told_is_exactly_what_callers_waited(kind: str, told: list[Waited]) -> None:
    """Many requests, a third of them cancelled at some instant: told are the waits of those that went on, each once."""
    random.seed(7)
    waited: list[float] = []

    async def main() -> None:
        ask = KINDS[kind](told.append)

        async def call() -> None:
            waited.append(await ask())

        tasks = []
        for _ in range(300):
            tasks.append(asyncio.ensure_future(call()))
            if random.random() < 0.5:
                await asyncio.sleep(random.choice([0, 0.05, 0.1]))
            if random.random() < 0.3:
                random.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    virtually(main)

    assert Counter(seconds for seconds in waited if seconds) == Counter(each.seconds for each in told)
    assert 30 < len(told) < len(waited) < 300


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_under_asyncio_and_trio(loop: str, told: list[Waited]) -> None:
    """A request of a task that was cancelled is not told of."""
    limiter = Limiter(TokenBucket("100/s", burst=20, initial=1), on_wait=told.append)

    async def cancel(scope: anyio.CancelScope) -> None:
        scope.cancel()

    async def main() -> None:
        await limiter.acquire()
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(limiter.acquire)
            with anyio.CancelScope() as scope:
                group.start_soon(cancel, scope)
                await limiter.acquire(20)

    run_on(loop, main)

    assert [0.01, 0.02] == [each.seconds for each in told]


def test_threads_are_told_where_they_wait() -> None:
    """Outside of the critical section, so that the function may wait for the limiter itself. Each way to wait is told, loops too."""
    told: Counter[int] = Counter()
    waited: Counter[int] = Counter()
    nested = threading.local()

    def on_wait(each: Waited) -> None:
        told[threading.get_ident()] += 1
        if not hasattr(nested, "begun"):
            nested.begun = True
            waited[threading.get_ident()] += limiter.acquire_blocking() > 0

    limiter = Limiter(TokenBucket("50/s", burst=1), scope="process", on_wait=on_wait, max_concurrency=2)

    def work() -> None:
        with limiter as seconds:
            waited[threading.get_ident()] += seconds > 0
        with limiter.of(1) as seconds:
            waited[threading.get_ident()] += seconds > 0
        waited[threading.get_ident()] += limiter.acquire_blocking(max_wait=LONG) > 0
        waited[threading.get_ident()] += asyncio.run(acquire()) > 0

    async def acquire() -> float:
        return await limiter.acquire()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)

    assert told == waited
    assert sum(told.values()) > 3
    assert limiter.statistics().waiting == 0


def test_a_second_loop_after_the_first_is_told(told: list[Waited]) -> None:
    """Requests that died with the first are not."""
    limiter = Limiter(TokenBucket("1/s", burst=1), on_wait=told.append)

    async def first() -> None:
        await limiter.acquire()
        asyncio.ensure_future(limiter.acquire())  # noqa: RUF006  # it is to die with the loop
        await asyncio.sleep(0.25)

    virtually(first)
    assert told == []

    assert virtually(limiter.acquire) == 0.75
    assert [Waited(0.75, 1)] == told
