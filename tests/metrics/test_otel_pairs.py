"""instrument() on real loops, under trio, and with metrics that another thread collects, as exporters do."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import trio
from helpers.driving import LONG
from trio.testing import MockClock

from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket


def check(sdk: Any, requests: int, waited: int) -> None:
    assert requests == sdk.sum("aiorate.permits")
    assert waited == sdk.sum("aiorate.wait.duration") == len(sdk.spans)


def test_under_trio(sdk: Any) -> None:
    """The caller's context is that of its task there as well."""
    limiter = Limiter(TokenBucket("1/s", burst=1))
    sdk.instrument(limiter)
    tracer = sdk.tracers.get_tracer("test")

    async def call(name: str) -> None:
        with tracer.start_as_current_span(name):
            await limiter.acquire()

    async def main() -> None:
        await limiter.acquire()
        async with trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                nursery.start_soon(call, name)

    trio.run(main, clock=MockClock(autojump_threshold=0))

    spans = sdk.spans
    names = {span.context.span_id: span.name for span in spans if span.context is not None}
    assert {"a", "b", "c"} == {names[span.parent.span_id] for span in spans if span.parent is not None}
    assert 4 == sdk.sum("aiorate.permits")


def test_threads_that_block(sdk: Any) -> None:
    """Each span in the context of its thread."""
    limiter = Limiter(TokenBucket("200/s", burst=1), scope="process")
    sdk.instrument(limiter)
    waited: list[float] = []
    threads = [threading.Thread(target=lambda: waited.append(limiter.acquire_blocking())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)

    assert limiter.statistics().granted == 8  # a decision, which notes that the last thread went on, and keeps the limiter no longer
    check(sdk, 8, sum(seconds > 0 for seconds in waited))


@pytest.mark.parametrize("scope", ["loop", "process"])
def test_another_thread_collects_while_the_loop_runs(sdk: Any, scope: Any) -> None:
    """As a periodic exporter does: no error, no count that falls, and in the end all of it. Keys come and go meanwhile."""
    keyed = KeyedLimiter(lambda key: Limiter(TokenBucket("1000000/s", burst=5), scope=scope), max_keys=20, scope=scope, name="keys")
    limiter = Limiter(TokenBucket("100000/s", burst=1), scope=scope)
    budget = Budget(tokens=TokenBucket("1000000/s", 10), scope=scope)
    sdk.instrument(keyed, limiter, budget)
    seen, over = [0], threading.Event()

    def collect() -> None:
        while not over.wait(0.001):  # while it reads, no key is evicted
            seen.append(sdk.sum("aiorate.permits"))

    async def main() -> None:
        for number in range(3_000):
            await keyed.acquire(number % 97)
            await limiter.acquire()
            async with budget.reserve(tokens=2):
                pass
            if number % 100 == 0:
                limiter.reset()
                await asyncio.sleep(0)

    collector = threading.Thread(target=collect)
    collector.start()
    asyncio.run(main())
    over.set()
    collector.join(LONG)

    assert seen == sorted(seen)
    assert 3_000 * 4 == sdk.sum("aiorate.permits")
    assert keyed.evict() > 0
    assert 3_000 * 4 == sdk.sum("aiorate.permits")
