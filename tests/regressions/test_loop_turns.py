"""Callers that find permits ready, are refused and retry, or come by thousands let the event loop turn."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import product
from socket import socket
from typing import Any

import pytest
from helpers.driving import LONG, SECOND, turns

import aiorate
from aiorate._tree.deciding import decisions
from aiorate.redis import RedisLimiter
from aiorate.testing import VirtualLoop

FASTEST, ENOUGH = "1000000000/s", 300_000  # calls, more than any machine makes between two iterations of the loop
REFUSALS = (aiorate.LineFull, aiorate.LimiterClosed, aiorate.WaitTooLong, aiorate.EngineUnavailable)


async def cut_short(main: Callable[[], Awaitable[object]]) -> None:
    """A timeout ends it, though it has nothing to wait for."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await main()


async def insist(call: Callable[[], Awaitable[object]]) -> None:
    """Call again and again, whether it is refused or not."""
    for _ in range(ENOUGH):
        with suppress(*REFUSALS):
            await call()


# At the rate passed, another permit is always ready by the next call.
STRATEGIES: dict[str, Callable[[str], aiorate.Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TicksAccumulator": aiorate.TicksAccumulator,
    "BurstRatio": aiorate.BurstRatio,
    "SmoothBursty": aiorate.SmoothBursty,
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=1_000),
    "SlidingWindow": aiorate.SlidingWindow,
    "AllOf": lambda rate: aiorate.AllOf(aiorate.BurstRatio(rate), aiorate.TokenBucket(rate, burst=1_000)),
}


async def plainly(limiter: aiorate.Limiter) -> None:
    await limiter.acquire()


async def with_blocks(limiter: aiorate.Limiter) -> None:
    async with limiter, limiter.of(2):
        pass


async def after_tries(limiter: aiorate.Limiter) -> None:
    limiter.try_acquire()
    await limiter.acquire(2, max_wait=1)


@pytest.mark.asyncio
async def test_timeout_ends_a_caller_that_asks_again_and_again() -> None:
    """A caller that found a permit ready each time never suspended, so its timeout never fired."""
    for way, strategy in random.Random(1).sample(list(product((plainly, with_blocks, after_tries), STRATEGIES)), 12):
        limiter = aiorate.Limiter(STRATEGIES[strategy](FASTEST))
        await cut_short(lambda way=way, limiter=limiter: insist(lambda: way(limiter)))  # type: ignore[misc]

    async def by_slots() -> None:
        count = 0
        async for _ in aiorate.Limiter(FASTEST).slots():
            count += 1
            if count > ENOUGH:
                return

    await cut_short(by_slots)


@pytest.mark.asyncio
async def test_letting_the_loop_turn_refuses_and_delays_nobody() -> None:
    """Other tasks run meanwhile. Every permit is still granted at once, and counted once."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=ENOUGH))
    turned = granted = 0

    async def other() -> None:
        nonlocal turned
        while turned < 3:
            await asyncio.sleep(0)
            turned += 1

    waits = set()
    async with asyncio.TaskGroup() as group:
        group.create_task(other())
        while turned < 3 and granted < ENOUGH:
            waits.add(await limiter.acquire(max_wait=0))
            granted += 1

    assert (3, {0.0}) == (turned, waits)
    statistics = limiter.statistics()
    assert (granted, 0, 0, 0) == (statistics.granted, statistics.refused, statistics.cancelled, statistics.waiting)
    assert limiter.try_acquire(ENOUGH - granted)
    assert not limiter.try_acquire()


async def block(limiter: aiorate.Limiter) -> None:
    async with limiter:
        pass


@pytest.mark.asyncio
async def test_timeout_ends_a_retry_that_is_refused() -> None:
    """A refusal was raised without a turn of the loop: by max_wait, a full line, no place, or a limiter that is closed."""
    spent, full, crowded = (aiorate.Limiter(aiorate.TokenBucket("1/h", burst=1), **options) for options in OPTIONS)
    closed, keys = aiorate.Limiter("1/h"), aiorate.KeyedLimiter[str](lambda key: "1/h")
    await spent.acquire()
    await full.acquire()
    await closed.aclose()
    await keys.aclose()
    await asyncio.create_task(crowded.__aenter__())
    for call in (
        lambda: spent.acquire(max_wait=0),
        full.acquire,
        lambda: block(crowded),
        closed.acquire,
        lambda: keys.acquire("new"),
    ):
        await cut_short(lambda call=call: insist(call))  # type: ignore[misc]


OPTIONS: list[dict[str, Any]] = [{}, {"max_waiting": 0}, {"max_concurrency": 1, "max_waiting": 0}]


@pytest.mark.asyncio
async def test_timeout_ends_a_retry_while_a_store_is_out_of_reach() -> None:
    """With the policy "raise", each call fails at once, before anything is awaited."""
    with socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # never listens
        limiter = RedisLimiter(f"redis://127.0.0.1:{nobody.getsockname()[1]}", "retries", "1/h", grace=0)
        with pytest.raises(aiorate.EngineUnavailable):
            await limiter.acquire()
        keyed = aiorate.KeyedLimiter[str](lambda key: "1000000/s", shared=limiter)
        for call in (limiter.acquire, lambda: limiter.acquire(max_wait=0), lambda: keyed.acquire("a")):
            await cut_short(lambda call=call: insist(call))  # type: ignore[misc]
        await limiter.aclose()


class Slow(VirtualLoop):
    """Each reading of the clock takes 20 us, and nothing else takes time: so a turn of 5 ms is a number of calls."""

    STEP = 20_000  # ns
    taken = 0
    scheduled = 0

    def time(self) -> float:
        self.taken += self.STEP
        return super().time() + self.taken / SECOND

    def call_soon(self, *args: Any, **options: Any) -> asyncio.Handle:
        self.scheduled += 1
        return super().call_soon(*args, **options)


async def refused(tasks: int) -> aiorate.Limiter:
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=1))
    await limiter.acquire()
    answers = await asyncio.gather(*[limiter.acquire(max_wait=1) for _ in range(tasks)], return_exceptions=True)
    assert {aiorate.WaitTooLong} == {type(answer) for answer in answers}
    return limiter


async def granted_at_once(tasks: int) -> aiorate.Limiter:
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=tasks))
    assert {0.0} == set(await asyncio.gather(*[limiter.acquire() for _ in range(tasks)]))
    assert tasks == limiter.statistics().granted
    assert not limiter.try_acquire()
    return limiter


HERDS = [refused, granted_at_once]


@pytest.mark.parametrize("herd", HERDS, ids=lambda herd: herd.__name__)
def test_a_herd_costs_each_task_a_few_steps(herd: Callable[[int], Awaitable[object]]) -> None:
    """All tasks that found the loop starved came back in every turn: 9.2 s of CPU for 40 000 refusals, and 0.7 s for 40 000 waits."""
    tasks = 2_000

    async def main() -> int:
        await herd(tasks)
        return loop.scheduled

    with asyncio.Runner(loop_factory=Slow) as runner:
        loop: Any = runner.get_loop()
        scheduled = runner.run(main())

    assert scheduled <= 6 * tasks + 3_000


def test_a_herd_is_answered_in_order_of_arrival() -> None:
    order: list[int] = []

    async def ask(limiter: aiorate.Limiter, number: int) -> None:
        with suppress(aiorate.WaitTooLong):
            await limiter.acquire(max_wait=1)
        order.append(number)

    async def main() -> None:
        limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=1))
        await limiter.acquire()
        await asyncio.gather(*[ask(limiter, number) for number in range(2_000)])

    with asyncio.Runner(loop_factory=Slow) as runner:
        runner.run(main())

    assert list(range(2_000)) == order


def test_a_herd_in_the_main_thread_never_waits_for_decisions() -> None:
    """With scope="process", another thread decides for it: 300 tasks that came to wait held the loop for 30 ms."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with decisions.lock:
            held.set()
            assert over.wait(LONG)

    async def main() -> None:
        limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=1), scope="process")
        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(LONG)
        herd = [asyncio.ensure_future(limiter.acquire()) for _ in range(2_000)]
        await turns(3)  # while nobody can decide
        over.set()
        thread.join()
        assert limiter.statistics().waiting == 1_999
        for task in herd:
            task.cancel()
        await asyncio.wait(herd)
        assert limiter.statistics().waiting == 0

    asyncio.run(main())


def test_loop_that_ends_with_a_herd_gives_its_permits_back() -> None:
    """The limiter goes on in the next loop, where no task waits for those of the last."""
    tasks = 5_000
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=2 * tasks))
    left: list[asyncio.Task[float]] = []

    async def begin() -> None:
        left.extend(asyncio.ensure_future(limiter.acquire()) for _ in range(tasks))
        await asyncio.sleep(0)  # most are granted, and let the loop turn before they resume

    async def again() -> int:
        assert {0.0} == set(await asyncio.gather(*[limiter.acquire() for _ in range(tasks)]))
        return tasks

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(begin())
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        assert tasks == runner.run(again())
    went_on = sum(not task.cancelled() for task in left)
    assert went_on + tasks == limiter.statistics().granted
