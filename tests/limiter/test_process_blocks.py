"""Synchronous code: `with limiter`, `with limiter.of(5)`, and plain functions that are decorated."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import trio
from helpers.driving import LONG
from helpers.process import made
from helpers.threads import LoopThread, call_in_thread, in_thread, waiting

import aiorate
from aiorate.testing import ManualClock

BLOCKS: dict[str, Callable[[aiorate.Limiter], Any]] = {"limiter": lambda limiter: limiter, "of": lambda limiter: limiter.of(1)}
EACH_BLOCK = pytest.mark.parametrize("block", BLOCKS)


def entered(block: Any) -> float:
    """Enter and leave; returns the target."""
    with block as waited:
        assert isinstance(waited, float)
        return waited


def bucket(clock: ManualClock | None = None, burst: int = 10, **options: Any) -> aiorate.Limiter:
    return aiorate.Limiter(aiorate.TokenBucket("10/s", burst=burst), scope="process", clock=clock, **options)


# Blocks.


@EACH_BLOCK
def test_the_target_is_the_seconds_waited(block: str) -> None:
    """As with `async with`."""
    clock = ManualClock()
    limiter = bucket(clock, burst=1)

    assert 0.0 == entered(BLOCKS[block](limiter))
    later = in_thread(lambda: entered(BLOCKS[block](limiter)))
    waiting(limiter, 1)
    clock.advance(0.1)
    assert 0.1 == later.result(LONG)


def test_a_block_may_take_several_permits() -> None:
    """All at once, before the block begins."""
    limiter = bucket(ManualClock())
    with limiter.of(7):
        assert 3 == limiter.statistics().available

    assert 3 == limiter.statistics().available


def test_a_block_in_a_thread_stands_in_the_line_of_loops() -> None:
    """One line, in order of arrival."""
    clock = ManualClock()
    limiter = made(clock)
    with LoopThread() as thread:
        first = thread.start(limiter.acquire)
        second = in_thread(lambda: entered(limiter))
        waiting(limiter, 2)
        third = thread.start(limiter.__aenter__)
        clock.advance(0.1)
        clock.advance(0.1)
        clock.advance(0.1)

        assert [0.1, 0.2, 0.3] == pytest.approx([each.result(LONG) for each in (first, second, third)])


@EACH_BLOCK
def test_the_place_is_left_with_the_block(block: str) -> None:
    """Also if the block ends with an error."""
    limiter = bucket(ManualClock(), max_concurrency=1)

    def fail() -> None:
        with BLOCKS[block](limiter):
            assert "1 of 1 places" in repr(limiter)
            _ = 1 / 0

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            fail()

    assert "0 of 1 places" in repr(limiter)


def test_a_place_may_be_left_in_another_thread() -> None:
    """The next request for it waits in yet another one."""
    limiter = bucket(ManualClock(), max_concurrency=1)
    limiter.__enter__()
    late = in_thread(limiter.__enter__)
    waiting(limiter, 1)
    call_in_thread(lambda: limiter.__exit__(None, None, None))

    assert 0.0 == late.result(LONG)
    limiter._leave()
    assert "0 of 1 places" in repr(limiter)


def test_loops_and_threads_share_the_places() -> None:
    """Never more than two inside, and in the end none."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("100000/s", burst=1000), scope="process", max_concurrency=2)
    inside, most, lock = [0], [0], threading.Lock()

    def step(by: int) -> None:
        with lock:
            inside[0] += by
            most[0] = max(most[0], inside[0])

    def work() -> None:
        for _ in range(50):
            with limiter:
                step(1)
                step(-1)

    async def task() -> None:
        for _ in range(50):
            async with limiter:
                step(1)
                await asyncio.sleep(0)
                step(-1)

    async def main() -> None:
        await asyncio.gather(task(), task())

    threads = [in_thread(work) for _ in range(4)] + [in_thread(lambda: asyncio.run(main())) for _ in range(2)]
    for thread in threads:
        thread.result(LONG)

    assert 2 == most[0]
    assert "0 of 2 places" in repr(limiter)
    assert 400 == limiter.statistics().granted


def test_waiting_for_a_place_counts_from_the_request() -> None:
    """The wait for the permit that follows is the same wait."""
    clock = ManualClock()
    limiter = bucket(clock, burst=1, max_concurrency=1)
    limiter.__enter__()
    late = in_thread(lambda: entered(limiter))
    waiting(limiter, 1)
    clock.advance(0.05)
    limiter._leave()
    waiting(limiter, 1)
    clock.advance(0.05)
    assert 0.1 == pytest.approx(late.result(LONG))

    assert 0.1 == pytest.approx(limiter.statistics().waited_total)


def test_a_wait_for_a_place_alone_counts_too() -> None:
    """Even if the permit needs no wait."""
    clock = ManualClock()
    limiter = bucket(clock, max_concurrency=1)
    limiter.__enter__()
    late = in_thread(lambda: entered(limiter))
    waiting(limiter, 1)
    clock.advance(5)
    limiter._leave()

    assert 5.0 == late.result(LONG)
    assert 5.0 == limiter.statistics().waited_max


def test_entering_the_only_place_twice_is_an_error() -> None:
    """The thread would wait for itself for ever."""
    limiter = bucket(ManualClock(), max_concurrency=1)
    with limiter:
        with pytest.raises(RuntimeError, match="this thread is already inside"):
            limiter.__enter__()
        other = in_thread(lambda: entered(limiter))
        waiting(limiter, 1)
    other.result(LONG)

    assert 0.0 == entered(limiter)


def test_a_full_line_frees_the_place() -> None:
    """A thread that has a place but may not wait for a permit leaves the place."""
    limiter = made(ManualClock(), max_concurrency=1, max_waiting=0)
    for _ in range(2):
        with pytest.raises(aiorate.LineFull):
            limiter.__enter__()

    assert "0 of 1 places" in repr(limiter)


def test_a_closed_limiter_refuses_a_block() -> None:
    """Those that wait, and those that come later."""
    limiter = made(rate="1/h")
    late = in_thread(lambda: entered(limiter))
    waiting(limiter, 1)
    asyncio.run(limiter.aclose())

    for call in (lambda: late.result(LONG), lambda: entered(limiter), lambda: entered(limiter.of(1))):
        with pytest.raises(aiorate.LimiterClosed):
            call()


# Decorated functions.


def test_a_plain_function_acquires_before_each_call() -> None:
    """Arguments, result, name, signature and documentation pass through."""
    limiter = bucket(ManualClock(), burst=3)

    @limiter
    def fetch(name: str, *, size: int = 1) -> str:
        """Fetch it."""
        return f"{name}{size}"

    assert ["a0", "a1"] == [fetch("a", size=size) for size in range(2)]
    assert 2 == limiter.statistics().granted
    assert ("fetch", "Fetch it.") == (fetch.__name__, fetch.__doc__)
    assert ["name", "size"] == list(inspect.signature(fetch).parameters)
    assert not inspect.iscoroutinefunction(fetch)


def test_a_plain_function_may_cost_more() -> None:
    """And has its place while it runs."""
    limiter = bucket(ManualClock(), max_concurrency=1)

    @limiter.of(3)
    def expensive() -> str:
        return repr(limiter)

    assert "1 of 1 places" in expensive()
    assert "0 of 1 places" in repr(limiter)
    assert 7 == limiter.statistics().available


def test_a_plain_generator_pays_before_its_first_step() -> None:
    """Once, however many items it yields; and whatever is sent or thrown reaches it."""
    limiter = bucket(ManualClock(), max_concurrency=1)
    log: list[object] = []

    @limiter
    def echo(said: str) -> Generator[str, str, str]:
        try:
            while said != "end":
                try:
                    said = yield said
                except KeyError:
                    said = "thrown"
            return "returned"
        finally:
            log.append("closed")

    assert inspect.isgeneratorfunction(echo)
    generator = echo("hello")
    assert 0 == limiter.statistics().granted
    assert "hello" == next(generator)
    assert "sent" == generator.send("sent")
    assert "thrown" == generator.throw(KeyError())
    with pytest.raises(StopIteration, match="returned"):
        generator.send("end")
    assert ["closed"] == log
    assert 1 == limiter.statistics().granted

    another: Iterator[str] = echo("again")
    for _ in another:
        break
    assert "1 of 1 places" in repr(limiter)
    another.close()  # type: ignore[attr-defined]
    assert "0 of 1 places" in repr(limiter)


def test_methods_are_limited_together() -> None:
    """All instances share the limiter, since the decorator is applied once, in the class."""
    limiter = bucket(ManualClock())

    class Client:
        @limiter
        def get(self, number: int) -> int:
            return number

        @staticmethod
        @limiter
        def make() -> int:
            return 2

    assert (1, 2) == (Client().get(1), Client.make())
    assert 2 == limiter.statistics().granted


# Misuse.


@pytest.mark.parametrize("limiter", [aiorate.Limiter("1/s"), aiorate.Limiter("1/s", max_concurrency=1)])
def test_the_scope_of_a_loop_has_no_blocks(limiter: aiorate.Limiter) -> None:
    """The error says what to write, and nothing is spent."""
    for block in (limiter, limiter.of(1)):
        with pytest.raises(RuntimeError, match=r"async with limiter.*scope='process'"):
            block.__enter__()

    assert 0 == limiter.statistics().granted


@pytest.mark.parametrize("run", ["asyncio", "trio"])
def test_in_a_thread_whose_loop_runs_a_block_is_an_error(run: str) -> None:
    """It would block the loop. The error is raised even if a permit is available, and nothing is spent."""
    limiter, places = bucket(ManualClock()), bucket(ManualClock(), max_concurrency=1)

    @limiter
    def plain() -> None: ...

    @limiter
    def steps() -> Iterator[int]:
        yield 1

    async def main() -> None:
        for call in (limiter.__enter__, limiter.of(2).__enter__, places.__enter__, plain, lambda: next(steps())):
            with pytest.raises(RuntimeError, match=r"would block the event loop.*async with"):
                call()

    if run == "trio":
        trio.run(main)
    else:
        asyncio.run(main())
    assert (0, 0) == (limiter.statistics().granted, places.statistics().granted)
    assert "0 of 1 places" in repr(places)


def test_more_than_can_be_granted_is_refused_at_once() -> None:
    """The error names what is allowed."""
    limiter = bucket(ManualClock(), burst=3)
    with pytest.raises(ValueError, match="3"), limiter.of(4):
        pass
    assert 3 == limiter.statistics().available
