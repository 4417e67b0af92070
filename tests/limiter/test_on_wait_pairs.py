"""on_wait beside everything else: threads, loops, trio, forks, eager tasks, cancellation, pauses, a late loop, nesting."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import httpx2
import pytest
from helpers.driving import LONG, SECOND, SteppedClock, one_loop, turns
from helpers.forks import program
from helpers.loops import eager_loop, needs_eager
from helpers.platforms import needs_fork
from helpers.under_trio import run_on

import aiorate
from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, TokenBucket, Waited
from aiorate.http import hooks, limit_transport
from aiorate.testing import VirtualLoop

Ask = Callable[[], Any]


def virtually(main: Callable[[], Any]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def limiter(told: list[Waited], **options: Any) -> Ask:
    return Limiter(TokenBucket("20/s", burst=2), on_wait=told.append, **options).acquire


def pool(told: list[Waited]) -> Ask:
    return Limiter("20/s", on_wait=told.append).acquire


def places(told: list[Waited]) -> Ask:
    limiter = Limiter(TokenBucket("20/s", burst=2), max_concurrency=2, on_wait=told.append)

    async def enter() -> float:
        async with limiter as waited:
            with suppress(asyncio.CancelledError):  # it was granted
                await asyncio.sleep(0.03)
        return waited

    return enter


def levels(told: list[Waited]) -> Ask:
    top = Limiter(TokenBucket("20/s", burst=2), name="top")
    teams = KeyedLimiter(lambda team: TokenBucket("15/s", burst=2), shared=top)
    users = KeyedLimiter(lambda user: TokenBucket("5/s", burst=2), shared=lambda user: teams[user % 2], on_wait=told.append)
    return lambda: users.acquire(random.randrange(5))


def budgets(told: list[Waited]) -> Ask:
    shared = Budget(tokens=TokenBucket("20/s", 4))
    keyed = KeyedBudget(lambda key: Budget(requests=TokenBucket("10/s", 2)), shared=shared, on_wait=told.append)

    async def reserve() -> float:
        async with keyed.reserve(random.randrange(3), tokens=random.randrange(3)) as lease:
            return lease.waited

    return reserve


@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=needs_eager)])
@pytest.mark.parametrize("kind", [limiter, pool, places, levels, budgets])
def test_told_is_exactly_what_callers_waited(kind: Callable[[list[Waited]], Ask], eager: bool) -> None:
    """A thousand requests, a third of them cancelled at some instant: told are the waits of those that went on, each once."""
    random.seed(7)
    told: list[Waited] = []
    waited: list[float] = []

    async def main() -> None:
        ask = kind(told)

        async def call() -> None:
            waited.append(await ask())

        tasks = []
        for _ in range(1000):
            tasks.append(asyncio.ensure_future(call()))
            if random.random() < 0.5:
                await asyncio.sleep(random.choice([0, 0.05, 0.1]))
            if random.random() < 0.3:
                random.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with asyncio.Runner(loop_factory=(lambda: eager_loop(VirtualLoop)) if eager else VirtualLoop) as runner:
        runner.run(main())

    assert Counter(seconds for seconds in waited if seconds) == Counter(each.seconds for each in told)
    assert 100 < len(told) < len(waited) < 1000


async def _cancel(scope: anyio.CancelScope) -> None:
    scope.cancel()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("scope", ["loop", "process"])
def test_under_asyncio_and_trio(loop: str, scope: Any) -> None:
    """A request of a task that was cancelled is not told of."""
    told: list[Waited] = []
    rate = "100/s" if scope == "loop" else "5/s"  # in real time, a slow machine must not outlast a wait
    limiter = Limiter(TokenBucket(rate, burst=20, initial=1), on_wait=told.append, scope=scope)

    async def main() -> None:
        await limiter.acquire()
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(limiter.acquire)
            with anyio.CancelScope() as scope:
                group.start_soon(_cancel, scope)
                await limiter.acquire(20)

    run_on(loop, main)

    assert 2 == len(told)
    assert scope == "process" or [0.01, 0.02] == [each.seconds for each in told]


def test_threads_are_told_where_they_wait() -> None:
    """Outside of the critical section, so that the function may wait for the limiter itself. Each way to block is told."""
    told: Counter[int] = Counter()
    waited: Counter[int] = Counter()
    nested = threading.local()

    def on_wait(each: Waited) -> None:
        told[threading.get_ident()] += 1
        if not hasattr(nested, "begun"):
            nested.begun = True
            waited[threading.get_ident()] += limiter.acquire_blocking() > 0

    limiter = Limiter(TokenBucket("20/s", burst=1), scope="process", on_wait=on_wait, max_concurrency=2)

    def work() -> None:
        with limiter as seconds:
            waited[threading.get_ident()] += seconds > 0
        with limiter.of(1) as seconds:
            waited[threading.get_ident()] += seconds > 0
        waited[threading.get_ident()] += limiter.acquire_blocking(max_wait=LONG) > 0

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)

    assert told == waited
    assert sum(told.values()) > 4
    assert limiter.statistics().waiting == 0


def test_loops_of_several_threads_are_told_in_their_own() -> None:
    """One limiter for the process: each caller's thread, each once."""
    told: Counter[int] = Counter()
    waited: Counter[int] = Counter()

    def on_wait(each: Waited) -> None:
        told[threading.get_ident()] += 1

    limiter = Limiter(TokenBucket("100/s", burst=1), scope="process", on_wait=on_wait)

    async def main() -> None:
        for seconds in await asyncio.gather(*(limiter.acquire() for _ in range(20))):
            waited[threading.get_ident()] += seconds > 0

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)

    assert told == waited
    assert len(told) == 3


@needs_fork
@pytest.mark.parametrize("scope", ["loop", "process"])
def test_a_child_tells_of_its_own_requests(scope: str) -> None:
    """The parent's are told in the parent."""
    printed = program(
        """
limiter = aiorate.Limiter(aiorate.TokenBucket("20/s", burst=1), scope=scope, on_wait=lambda waited: print(place, waited.permits))
place = "parent"


async def ask(permits):
    await asyncio.gather(limiter.acquire(), limiter.acquire())


asyncio.run(ask(1))


def child():
    global place
    place = "child"
    asyncio.run(ask(1))


in_child(child)
asyncio.run(ask(1))
""",
        scope=scope,
    )

    assert {"parent 1", "child 1"} == set(printed.split("\n")[:-1])
    assert 1 <= printed.count("child 1") <= 2


def test_a_second_loop_after_the_first_is_told() -> None:
    """Requests that died with the first are not."""
    told: list[Waited] = []
    limiter = Limiter(TokenBucket("1/s", burst=1), on_wait=told.append)

    async def first() -> None:
        await limiter.acquire()
        asyncio.ensure_future(limiter.acquire())  # noqa: RUF006  # it is to die with the loop
        await asyncio.sleep(0.25)

    virtually(first)
    assert told == []

    assert 0.75 == virtually(limiter.acquire)
    assert [Waited(0.75, 1)] == told


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_the_wait_ends_with_the_grant_of_a_late_loop(clock: SteppedClock) -> None:
    """As `acquire` says: until the wake-up, late as it was."""
    told: list[Waited] = []
    limiter = Limiter(TokenBucket("10/s", burst=1), clock=clock, on_wait=told.append)
    await limiter.acquire()
    waiting = asyncio.ensure_future(limiter.acquire())
    await turns(3)

    clock.set(clock.now() + 7 * SECOND)
    await turns(5)

    assert [Waited(await waiting, 1)] == told
    assert told[0].seconds == 7.0


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_http_adapters_are_told_once_for_each_request() -> None:
    """Through hooks and through a transport."""
    told: list[Waited] = []
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200))
    keyed = KeyedLimiter(lambda key: TokenBucket("1/s", burst=1), on_wait=told.append)
    for options in ({"event_hooks": hooks(keyed)}, {"transport": limit_transport(transport, keyed)}):
        async with httpx2.AsyncClient(**({"transport": transport} | options)) as client:
            for _ in range(2):
                await client.get("https://api.example.com/items")

    assert [1.0] * 3 == [each.seconds for each in told]
    assert {"https://api.example.com:443"} == {each.key for each in told}


@one_loop
async def test_stopped_and_closed_in_a_callback(clock: SteppedClock) -> None:
    """Requests behind the one that is told of get what the callback decided."""
    limiter = Limiter(
        TokenBucket("10/s", burst=1), clock=clock, on_wait=lambda waited: closing.append(asyncio.ensure_future(limiter.aclose()))
    )
    closing: list[asyncio.Future[None]] = []
    await limiter.acquire()
    first, second = (asyncio.ensure_future(limiter.acquire()) for _ in range(2))
    await turns(3)

    clock.advance(0.1)
    await turns(5)

    assert 0.1 == await first
    with pytest.raises(aiorate.LimiterClosed):
        await second
    await asyncio.gather(*closing)


def test_a_thousand_keys_that_come_and_go_are_told() -> None:
    """Keys are evicted and made again while they wait in turn; each wait is told with its key."""
    told: list[Waited] = []

    async def main() -> list[tuple[int, float]]:
        keyed = KeyedLimiter(lambda key: TokenBucket("10/s", burst=1), max_keys=10)
        keyed.watch(told.append)

        async def ask(key: int) -> tuple[int, float]:
            return key, await keyed.acquire(key)

        waited = []
        for begin in range(0, 1000, 20):
            waited += await asyncio.gather(*(ask(key) for key in [*range(begin, begin + 20)] * 2))
            await asyncio.sleep(1)
        assert len(keyed) < 100
        return waited

    waited = virtually(main)

    assert sorted((key, seconds) for key, seconds in waited if seconds) == sorted((each.key, each.seconds) for each in told)
    assert len(told) == 1000
