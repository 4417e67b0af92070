"""Callers that find permits ready, are refused and retry, or come by thousands let the event loop turn."""

from __future__ import annotations

import asyncio
import random
import selectors
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import product
from socket import socket
from typing import Any

import pytest
from helpers.driving import SECOND, turns

import aiorate
from aiorate.redis import RedisLimiter
from aiorate.testing import VirtualLoop

US, MS = 1_000, 1_000_000
TICK = round(time.get_clock_info("monotonic").resolution * 1e9)  # ns: 1 on Linux, 15.6 ms on Windows before Python 3.13
TURN = 10 * MS + TICK  # the longest that callers hold the loop, plus one body


FASTEST, ENOUGH = "1000000000/s", 300_000  # calls, more than any machine makes between two iterations of the loop


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
    for _ in range(ENOUGH):
        await limiter.acquire()


async def with_blocks(limiter: aiorate.Limiter) -> None:
    for _ in range(ENOUGH):
        async with limiter, limiter.of(2):
            pass


async def after_tries(limiter: aiorate.Limiter) -> None:
    for _ in range(ENOUGH):
        limiter.try_acquire()
        await limiter.acquire(2, max_wait=1)


async def by_slots(limiter: aiorate.Limiter) -> None:
    count = 0
    async for _ in limiter.slots():
        count += 1
        if count == ENOUGH:
            return


WAYS: list[Callable[[aiorate.Limiter], Awaitable[None]]] = [plainly, with_blocks, after_tries, by_slots]


@pytest.mark.asyncio
async def test_timeout_ends_a_caller_that_asks_again_and_again() -> None:
    """A caller that found a permit ready each time never suspended, so its timeout never fired."""
    for way, strategy in random.Random(1).sample(list(product(WAYS, STRATEGIES)), 14):
        limiter = aiorate.Limiter(STRATEGIES[strategy](FASTEST))

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await way(limiter)


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


@pytest.mark.asyncio
async def test_caller_cancelled_while_the_loop_turns_spends_nothing() -> None:
    """Callers are suspended for that turn after their grant; a timeout then gives the permit back."""
    most = 10_000_000
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=most))
    passed = 0

    async def ask() -> None:
        nonlocal passed
        while passed < most:
            await limiter.acquire()
            passed += 1

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ask(), 0.01)

    statistics = limiter.statistics()
    assert (passed, 1) == (statistics.granted, statistics.cancelled)
    assert limiter.try_acquire(most - passed)
    assert not limiter.try_acquire()


class Turns(selectors.DefaultSelector):
    """A selector that records what happened between two turns of the loop."""

    bodies = most_bodies = 0

    def select(self, timeout: float | None = None) -> Any:
        self.most_bodies, self.bodies = max(self.most_bodies, self.bodies), 0
        return super().select(timeout)


def work(scheduler: aiorate.Scheduler, body: int, count: int, way: str = "acquire") -> Turns:
    """Run 100 workers, with a body of ``body`` ns of processor time after each of ``count`` grants in all."""
    seen = Turns()

    def busy() -> None:
        until = time.thread_time_ns() + body
        while time.thread_time_ns() < until:
            pass

    async def main() -> None:
        limiter = aiorate.Limiter(scheduler)
        left = count

        async def asks() -> None:
            nonlocal left
            slots = limiter.slots()
            while left > 0:
                if way == "slots":
                    await anext(slots)
                elif way == "block":
                    async with limiter:
                        pass
                elif way == "max_wait":
                    await limiter.acquire(max_wait=60)
                else:
                    await limiter.acquire()
                left -= 1
                seen.bodies += 1
                busy()

        async with asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(asks())

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(seen)) as runner:
        runner.run(main())
    return seen


def test_the_loop_turns_after_a_few_bodies_with_permits_ready() -> None:
    """The first of 100 workers kept the loop for the whole run, because a permit fell due during each of its bodies."""
    ways = [(strategy, "acquire") for strategy in ("TokenPool", "TicksAccumulator", "TokenBucket", "SlidingWindow")]
    for strategy, way in [*ways, ("TokenPool", "slots"), ("BurstRatio", "block"), ("TokenPool", "max_wait")]:
        seen = work(STRATEGIES[strategy]("10000/s"), 200 * US, 200, way)

        assert seen.most_bodies <= TURN // (200 * US) + 1, (strategy, way)


@pytest.mark.asyncio
@pytest.mark.parametrize("options", [{"max_waiting": 0}, {"max_wait": 0}], ids=str)
async def test_refused_caller_that_asks_again_lets_the_loop_turn(options: dict[str, int]) -> None:
    """A refusal was raised without a turn of the loop, so a program that tried again at once never timed out."""
    line = {"max_waiting": 0} if "max_waiting" in options else {}
    ask = {"max_wait": 0} if "max_wait" in options else {}
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=1), **line)
    await limiter.acquire()

    async def try_again() -> None:
        for _ in range(300_000):
            try:
                await limiter.acquire(**ask)
            except (aiorate.WaitTooLong, aiorate.LineFull):
                continue

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await try_again()


REFUSALS = (aiorate.LineFull, aiorate.LimiterClosed, aiorate.WaitTooLong, aiorate.EngineUnavailable)


@asynccontextmanager
async def crowded(**options: Any) -> AsyncIterator[aiorate.Limiter]:
    """A limiter whose only place is taken and whose line is full."""
    limiter = aiorate.Limiter("1000000/s", max_concurrency=1, max_waiting=0, **options)
    async with limiter:
        yield limiter


@asynccontextmanager
async def closed(**options: Any) -> AsyncIterator[aiorate.Limiter]:
    """A closed limiter whose only place is taken."""
    limiter = aiorate.Limiter("1000000/s", max_concurrency=1, **options)
    async with limiter:
        await limiter.aclose()
        yield limiter


async def block(limiter: aiorate.Limiter) -> None:
    async with limiter:
        pass


async def insist(call: Callable[[], Awaitable[object]], refusals: tuple[type[Exception], ...] = REFUSALS) -> None:
    """Call again and again, as a careless retry does."""
    refused = 0
    for _ in range(ENOUGH):
        try:
            await call()
        except refusals:
            refused += 1
    assert ENOUGH == refused


@pytest.mark.asyncio
@pytest.mark.parametrize("scope", ["loop", "process"])
@pytest.mark.parametrize("limiter", [crowded, closed])
async def test_timeout_ends_a_retry_that_gets_no_place(limiter: Callable[..., Any], scope: str) -> None:
    """With ``max_concurrency``, a refusal came before any look at whether the loop turns; the timeout never fired."""
    async with limiter(scope=scope) as refusing:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await insist(lambda: block(refusing))


@pytest.mark.asyncio
async def test_timeout_ends_a_retry_on_a_closed_keyed_limiter() -> None:
    """A key that it did not have was refused before anything was awaited."""
    keyed = aiorate.KeyedLimiter[str](lambda key: "1/h")
    await keyed.aclose()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await insist(lambda: keyed.acquire("new"))


@pytest.mark.asyncio
@pytest.mark.parametrize("max_wait", [None, 0, "shared"])
async def test_timeout_ends_a_retry_while_a_store_is_out_of_reach(max_wait: Any) -> None:
    """With the policy "raise", each call fails at once, before anything is awaited."""
    with socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # never listens
        limiter = RedisLimiter(f"redis://127.0.0.1:{nobody.getsockname()[1]}", "retries", "1/h", grace=0)
        with pytest.raises(aiorate.EngineUnavailable):
            await limiter.acquire()
        keyed = aiorate.KeyedLimiter[str](lambda key: "1000000/s", shared=limiter)
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await insist(lambda: keyed.acquire("a") if max_wait == "shared" else limiter.acquire(max_wait=max_wait))
        finally:
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


async def refused_by_the_line(tasks: int) -> aiorate.Limiter:
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=1), max_waiting=1)
    await limiter.acquire()
    waiting = asyncio.ensure_future(limiter.acquire())
    await turns(2)
    answers = await asyncio.gather(*[limiter.acquire() for _ in range(tasks)], return_exceptions=True)
    assert {aiorate.LineFull} == {type(answer) for answer in answers}
    waiting.cancel()
    return limiter


async def refused_by_max_wait(tasks: int) -> aiorate.Limiter:
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=1))
    await limiter.acquire()
    answers = await asyncio.gather(*[limiter.acquire(max_wait=1) for _ in range(tasks)], return_exceptions=True)
    assert {aiorate.WaitTooLong} == {type(answer) for answer in answers}
    return limiter


async def refused_by_a_budget(tasks: int) -> aiorate.Budget:
    budget = aiorate.Budget(requests="1/h", max_waiting=0)

    async def reserve() -> None:
        async with budget.reserve():
            pass

    await reserve()
    answers = await asyncio.gather(*[reserve() for _ in range(tasks)], return_exceptions=True)
    assert {aiorate.LineFull} == {type(answer) for answer in answers}
    return budget


async def granted_at_once(tasks: int) -> aiorate.Limiter:
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=tasks))
    assert {0.0} == set(await asyncio.gather(*[limiter.acquire() for _ in range(tasks)]))
    assert tasks == limiter.statistics().granted
    assert not limiter.try_acquire()
    return limiter


HERDS = [refused_by_the_line, refused_by_max_wait, refused_by_a_budget, granted_at_once]


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
    """A later caller is never answered sooner."""
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


def test_nothing_is_left_in_the_loop_after_a_herd() -> None:
    """An idle limiter has no task, no timer and no callback."""

    async def main() -> None:
        limiters = [await herd(500) for herd in HERDS]
        await turns(5)
        before = loop.scheduled
        await turns(5)
        assert before + 5 == loop.scheduled  # this task's own
        assert 1 == len(asyncio.all_tasks())
        assert len(HERDS) == len(limiters)

    with asyncio.Runner(loop_factory=Slow) as runner:
        loop: Any = runner.get_loop()
        runner.run(main())


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


@pytest.mark.asyncio
async def test_caller_of_many_limiters_lets_the_loop_turn() -> None:
    """Each limiter watched the loop separately, and saw only its own first call; now one watch serves all."""

    async def ask_each() -> None:
        for _ in range(200_000):
            await aiorate.Limiter(aiorate.TokenBucket("1/s", burst=2)).acquire()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await ask_each()
