"""Limits in a tree: what was once wrong in it."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from helpers.driving import LONG, one_loop
from helpers.threads import call_in_thread, in_thread

from aiorate import Budget, Event, KeyedLimiter, Limiter, SlidingWindow, TokenBucket
from aiorate._loops.loop import OutcomeTicket
from aiorate._tree.deciding import Decisions, decisions
from aiorate._tree.limit import Limit
from aiorate._tree.threads import ThreadTree
from aiorate.http import read_feedback
from aiorate.testing import VirtualLoop


@pytest.mark.parametrize("place", [Limit.go_on, Decisions.post])
def test_ctrl_c_spends_nothing_wherever_it_comes(place: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """The permit and the place come back, also when the thread goes on already, or has not handed its request over yet."""
    limiter = Limiter(TokenBucket("100/s", burst=1), scope="process", max_concurrency=1)
    with limiter:
        pass

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is place.__code__:
            sys.settrace(None)
            raise KeyboardInterrupt

    def enter() -> None:
        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            limiter.__enter__()
        finally:
            sys.settrace(before)

    with pytest.raises(KeyboardInterrupt):
        enter()
    deadline = time.monotonic() + LONG
    while "0 of 1 places taken" not in repr(limiter):
        assert time.monotonic() < deadline, repr(limiter)
        time.sleep(0.001)
    with limiter:
        pass

    assert 2 == limiter.statistics().granted
    assert "Traceback" not in capfd.readouterr().err


def test_a_key_that_was_never_asked_follows_the_clock_of_its_loop() -> None:
    """It was looked at for eviction before its first request."""

    async def main() -> list[float]:
        root = Limiter("100/s")
        keys = KeyedLimiter[str](lambda key: TokenBucket("10/s", burst=5), shared=root)
        await root.acquire()
        first, second = keys["a"], keys["b"]
        return [await first.acquire(5), await second.acquire(), await first.acquire()]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert max(runner.run(main())) < 1


@one_loop
async def test_a_request_that_became_impossible_above_is_counted() -> None:
    root = Limiter(SlidingWindow("10/s"))
    keys = KeyedLimiter[str](lambda key: TokenBucket("1/s", burst=8, initial=0), shared=root)
    task = asyncio.create_task(keys["a"].acquire(5))
    await asyncio.sleep(0)
    root.set_rate("2/s")

    assert 1 == keys["a"].statistics().waiting
    task.cancel()


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_question_after_a_cancellation_delays_nobody() -> None:
    loop = asyncio.get_running_loop()
    limiter = Limiter(TokenBucket("1/s", 5, initial=2))
    large, small = (asyncio.ensure_future(limiter.acquire(permits)) for permits in (5, 1))
    await asyncio.sleep(0.1)
    large.cancel()
    limiter.statistics()
    await small

    assert loop.time() == 0.1


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_limit_shared_while_somebody_waits_keeps_its_order() -> None:
    loop = asyncio.get_running_loop()
    shared = Limiter(TokenBucket("1/s", 5, initial=0))
    keys = KeyedLimiter[str](lambda key: "1000/s", shared=shared)
    large = asyncio.ensure_future(shared.acquire(5))
    await asyncio.sleep(2.5)
    assert keys["a"] is not None
    assert not shared.try_acquire()
    await large

    assert loop.time() == 5


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_the_timer_of_a_request_granted_in_time_is_gone() -> None:
    limiter = Limiter("10/s")
    await limiter.acquire()
    await limiter.acquire(max_wait=3600)
    await asyncio.sleep(1)
    loop: Any = asyncio.get_running_loop()

    assert [] == [timer for timer in loop._scheduled if not timer.cancelled()]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_requests_that_leave_while_another_waits_leave_no_memory(backend: str) -> None:
    """The tickets of all were kept, in case they had a deadline, until nobody waited any more."""
    found: list[int] = []

    async def main() -> None:
        limiter = Limiter("1/h")
        assert limiter.try_acquire()
        async with anyio.create_task_group() as first:
            first.start_soon(limiter.acquire)
            for _ in range(10):
                async with anyio.create_task_group() as others:
                    for _ in range(100):
                        others.start_soon(limiter.acquire)
                    await anyio.lowlevel.checkpoint()
                    others.cancel_scope.cancel()
                gc.collect()
                found.append(sys.getrefcount(OutcomeTicket))  # to which each ticket refers
            first.cancel_scope.cancel()

    anyio.run(main, backend=backend)
    assert found[-1] - found[0] < 300


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_the_reservation_after_one_that_takes_nothing_above_does() -> None:
    loop = asyncio.get_running_loop()
    top = Budget(top=TokenBucket("1/min", 1))
    low = Budget(shared=Budget(shared=top, middle=TokenBucket("10/s", 10)), low=TokenBucket("1/s", 1))
    granted: list[float] = []

    async def reserve(least: int, most: int) -> None:
        async with low.reserve(low=least, middle=1, top=most):
            granted.append(loop.time())

    await reserve(1, 1)
    await asyncio.gather(reserve(1, 0), reserve(0, 1), reserve(0, 1))

    assert [0, 1, 60, 120] == granted


class Blocked(VirtualLoop):
    """A loop that can stand still."""

    def stall(self, seconds: float) -> None:
        self._virtual_ns += round(seconds * 1e9)


def test_a_limit_whose_rate_was_charged_holds_up_no_other() -> None:
    """The topmost limit was due and nobody had looked yet, so the charged one stood there until then."""

    async def main() -> list[float]:
        loop: Any = asyncio.get_running_loop()
        root = Limiter(TokenBucket("20/s", 1))
        middle = KeyedLimiter[str](lambda key: Limiter(TokenBucket("1000/s", 100)), shared=root)
        keys = KeyedLimiter[str](lambda key: Limiter(TokenBucket("10/s", 5)), shared=lambda key: middle["m"])
        await root.acquire()
        granted: list[float] = []

        async def one(key: str) -> None:
            await keys.acquire(key)
            granted.append(round(loop.time(), 3))

        tasks = [asyncio.ensure_future(one(key)) for key in "ab"]
        await asyncio.sleep(0.02)
        loop.stall(0.08)
        keys["a"].charge(30)
        await asyncio.gather(*tasks)
        return granted

    with asyncio.Runner(loop_factory=Blocked) as runner:
        assert [0.1, 2.7] == runner.run(main())


def test_a_callback_that_exits_does_not_end_the_thread_that_keeps_the_time() -> None:
    """All limiters of the process stood still, and every call of the main thread hung."""
    told = threading.Event()

    def leave(event: Event) -> None:
        told.set()
        sys.exit()

    limiter = Limiter("100/s", scope="process", on_event=leave)
    limiter.observe(read_feedback(429, {"Retry-After": "0.01"}))
    assert told.wait(LONG)
    assert call_in_thread(lambda: limiter.acquire_blocking(2)) >= 0


def test_a_finalizer_that_asks_during_a_decision_is_refused() -> None:
    """CPython 3.12 and later collect garbage after any call, so also while the lock is being taken."""
    limiter = Limiter(TokenBucket(1_000_000, 1000), scope="process")
    asked: list[int] = []

    class Asking:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            with suppress(RuntimeError):
                limiter.try_acquire(2)
            asked.append(1)

    def use() -> None:
        for _ in range(300):
            Asking()
            limiter.try_acquire(2)
            limiter.statistics()

    before = gc.get_threshold()
    gc.set_threshold(5, 2, 2)
    try:
        thread = threading.Thread(target=use)
        thread.start()
        thread.join(LONG)
    finally:
        gc.set_threshold(*before)

    assert not thread.is_alive()
    assert asked


def test_a_refused_try_decides_nothing_outside_of_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = Limiter(TokenBucket(1, 1), scope="process")
    assert in_thread(limiter.try_acquire).result(LONG)
    seen: list[bool] = []
    here = ThreadTree.here
    monkeypatch.setattr(ThreadTree, "here", lambda self: (seen.append(decisions.deciding), here(self))[1])
    assert not in_thread(limiter.try_acquire).result(LONG)

    assert False not in seen
