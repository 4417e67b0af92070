"""Synchronous code: `with limiter`, decorated functions, and places across threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing
from helpers.driving import LONG
from helpers.threads import LoopThread, call_in_thread, in_thread, made, waiting

import aiorate
from aiorate import Limiter, TokenBucket
from aiorate.testing import ManualClock


def bucket(clock: ManualClock | None = None, burst: int = 10, **options: Any) -> Limiter:
    return Limiter(TokenBucket("10/s", burst=burst), scope="process", clock=clock, **options)


def entered(block: Any) -> float:
    with block as waited:
        assert isinstance(waited, float)
        return waited


def test_a_block_waits_in_the_line_of_all_loops() -> None:
    """In order of arrival, for one permit or several; the target is the seconds waited."""
    clock = ManualClock()
    limiter = bucket(clock, burst=3)
    assert 0.0 == entered(limiter.of(3))
    with LoopThread() as thread:
        asked = [thread.start(limiter.acquire), in_thread(lambda: entered(limiter.of(2)))]
        waiting(limiter, 2)
        asked += [thread.start(limiter.__aenter__), in_thread(lambda: entered(limiter))]
        waiting(limiter, 4)
        for _ in range(5):
            clock.advance(0.1)

        assert [0.1, 0.3, 0.4, 0.5] == pytest.approx(sorted(each.result(LONG) for each in asked))
    with pytest.raises(ValueError, match="3"), limiter.of(4):
        pass


def test_loops_and_threads_share_the_places() -> None:
    limiter = Limiter(TokenBucket("100000/s", burst=1000), scope="process", max_concurrency=2)
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(50):
            with limiter:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    async def task() -> None:
        for _ in range(50):
            async with limiter:
                inside.append(1)
                most.append(len(inside))
                await asyncio.sleep(0)
                inside.pop()

    async def main() -> None:
        await asyncio.gather(task(), task())

    for thread in [in_thread(work) for _ in range(4)] + [in_thread(lambda: asyncio.run(main())) for _ in range(2)]:
        thread.result(LONG)

    assert (True, 400) == (max(most) <= 2, limiter.statistics().granted)
    assert "0 of 2 places" in repr(limiter)


def test_a_place_is_left_with_the_block() -> None:
    """Also after an error, and by another thread than the one that entered; a refused entry frees its place too."""
    limiter = bucket(ManualClock(), max_concurrency=1)
    for block in (limiter, limiter.of(1), limiter):
        with suppress(ZeroDivisionError), block:
            assert "1 of 1 places" in repr(limiter)
            _ = 1 / 0
    limiter.__enter__()
    late = in_thread(limiter.__enter__)
    waiting(limiter, 1)
    call_in_thread(lambda: limiter.__exit__(None, None, None))
    assert 0.0 == late.result(LONG)
    limiter.__exit__(None, None, None)
    assert "0 of 1 places" in repr(limiter)

    full = made(ManualClock(), max_concurrency=1, max_waiting=0)
    for _ in range(2):
        with pytest.raises(aiorate.LineFull):
            full.__enter__()
        with pytest.raises(aiorate.LineFull):
            asyncio.run(full.__aenter__())
    full.reset()
    assert 0.0 == entered(full)


def test_plain_functions_and_generators_pay_before_they_begin() -> None:
    """Arguments, results, name and signature pass through, and whatever is sent; a generator has its place until it is closed."""
    limiter = bucket(ManualClock(), max_concurrency=1)

    @limiter.of(3)
    def fetch(name: str, *, size: int = 1) -> str:
        return f"{name}{size} {limiter!r}"

    @limiter
    def echo(said: str) -> Generator[str, str, str]:
        while said != "end":
            said = yield said
        return "returned"

    assert fetch("a", size=2).startswith("a2")
    assert "1 of 1 places" in fetch("a")
    assert ("fetch", ["name", "size"]) == (fetch.__name__, list(inspect.signature(fetch).parameters))
    assert inspect.isgeneratorfunction(echo)
    generator = echo("hello")
    assert 6 == limiter.statistics().granted
    assert ("hello", "sent") == (next(generator), generator.send("sent"))
    assert (7, True) == (limiter.statistics().granted, "1 of 1 places" in repr(limiter))
    with pytest.raises(StopIteration, match="returned"):
        generator.send("end")
    assert "0 of 1 places" in repr(limiter)
    closed = echo("again")
    next(closed)
    closed.close()
    assert "0 of 1 places" in repr(limiter)


def test_a_block_is_an_error_where_it_would_block_a_loop() -> None:
    """In a thread whose loop runs, even if a permit is available, and with a limiter of one loop. Nothing is spent."""
    limiter, places, alone = bucket(ManualClock()), bucket(ManualClock(), max_concurrency=1), Limiter("1/s")

    @limiter
    def plain() -> None: ...

    @limiter
    def steps() -> Iterator[int]:
        yield 1

    async def main() -> None:
        for call in (limiter.__enter__, limiter.of(2).__enter__, places.__enter__, plain, lambda: next(steps())):
            with pytest.raises(RuntimeError, match="async with"):
                call()

    trio.run(main)
    asyncio.run(main())
    for block in (alone, alone.of(1)):
        with pytest.raises(RuntimeError, match="process"):
            block.__enter__()
    assert [0, 0, 0] == [each.statistics().granted for each in (limiter, places, alone)]
    assert "0 of 1 places" in repr(places)
