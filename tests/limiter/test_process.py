"""`scope="process"`: one line for all event loops and threads of a process, on a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest
import trio
import trio.testing
from helpers.driving import LONG
from helpers.threads import KINDS, LoopThread, call_in_thread, in_thread, loop_thread, made, waiting

import aiorate
from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, TokenBucket
from aiorate.testing import ManualClock


def test_bad_arguments_of_a_process_wide_limiter_are_refused() -> None:
    """At once, even if permits are available. A strategy that was refused can still be used for another limiter."""
    strategy = TokenBucket("1/s", burst=1)
    for scope in ("thread", "", None, 1):
        with pytest.raises((ValueError, TypeError), match="'loop' or 'process'"):
            Limiter(strategy, scope=scope)  # type: ignore[arg-type]
    limiter = Limiter(strategy, scope="process")
    wrong: Any
    for wrong in ({"permits": 0}, {"permits": 2}, {"permits": "1"}, {"permits": True}, {"max_wait": -1}):
        with pytest.raises((ValueError, TypeError), match="acquire_blocking"):
            limiter.acquire_blocking(**wrong)
        with pytest.raises((ValueError, TypeError), match="acquire"):
            asyncio.run(limiter.acquire(**wrong))
    for twin in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="copied"):
            twin(limiter)

    assert limiter.try_acquire()


def test_acquire_blocking_needs_the_scope_and_no_loop() -> None:
    """It is refused even if a permit is available; otherwise the mistake would only show under load."""
    limiter = Limiter("1/s", scope="process")

    async def main() -> None:
        with pytest.raises(RuntimeError, match="acquire"):
            limiter.acquire_blocking()

    asyncio.run(main())
    trio.run(main)
    keyed = KeyedLimiter[str](lambda key: "1/s")
    for call in (Limiter("1/s").acquire_blocking, lambda: keyed.acquire_blocking("a"), lambda: keyed("a").__enter__()):
        with pytest.raises(RuntimeError, match="process"):
            call()
    with pytest.raises(RuntimeError, match="acquire_blocking"):
        made(ManualClock()).acquire().send(None)  # nothing could wake a coroutine that is driven by hand
    assert 0 == limiter.statistics().granted


def test_limits_of_two_scopes_are_not_mixed() -> None:
    """They would use the limiter in the wrong thread. Nothing is claimed by the error."""
    here, wide = Limiter("1/s"), Limiter("1/s", scope="process")
    rows: list[tuple[Callable[[], object], str]] = [
        (lambda: KeyedLimiter(lambda key: "1/s", shared=wide), "process"),
        (lambda: KeyedLimiter(lambda key: wide)["a"], "process"),
        (lambda: KeyedLimiter(lambda key: "1/s", shared=here, scope="process"), "process"),
        (lambda: KeyedLimiter(lambda key: here, scope="process")["a"], "'a'.*process"),
        (lambda: Budget(requests=here, tokens="1/s", scope="process"), "requests.*process"),
        (lambda: Budget(requests=wide, tokens="1/s"), "requests.*process"),
        (lambda: Budget(requests="1/s", shared=Budget(requests="1/s", scope="process")), "process"),
        (lambda: KeyedBudget(lambda key: Budget(requests="1/s"), scope="process")["a"], "'a'.*process"),
        (lambda: KeyedBudget(lambda key: Budget(requests="1/s", scope="process"))["a"], "process"),
    ]
    for make, hint in rows:
        with pytest.raises(ValueError, match=hint):
            make()

    Budget(requests=here, tokens="1/s")
    Budget(requests=wide, tokens="1/s", scope="process")


def test_one_line_for_all_threads_and_loops() -> None:
    """Requests are granted in order of arrival, from any kind of thread and loop, each at the instant that is due."""
    clock = ManualClock()
    limiter = made(clock)
    with ExitStack() as stack:
        threads = [stack.enter_context(loop_thread(kind)) for kind in KINDS]
        asked: list[Future[Any]] = []
        for _ in range(2):
            for thread in threads:
                asked.append(thread.start(limiter.acquire))
                waiting(limiter, len(asked))
            asked.append(in_thread(limiter.acquire_blocking))
            waiting(limiter, len(asked))
        for number, future in enumerate(asked):
            assert not any(other.done() for other in asked[number:])
            clock.advance(0.1)
            assert future.result(LONG) == pytest.approx((number + 1) / 10)
            waiting(limiter, len(asked) - number - 1)

    assert limiter.statistics().granted == 1 + len(asked)


def test_ready_permits_are_counted_once_whoever_asks_meanwhile() -> None:
    """They are taken without the lock, and a decision of another thread must not undo that."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        limiter = Limiter(TokenBucket("1/h", burst=3000), scope="process")
        granted: list[int] = []

        def take() -> None:
            while limiter.try_acquire():
                granted.append(1)
                if not len(granted) % 7:
                    assert limiter.statistics().granted <= 3000
                if not len(granted) % 11 and limiter.try_acquire(2):
                    granted.extend([1, 1])

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        take()
        for thread in threads:
            thread.join(LONG)

        assert 3000 == len(granted) == limiter.statistics().granted
    finally:
        sys.setswitchinterval(interval)


def test_no_thread_passes_the_line_of_another() -> None:
    """Not by try_acquire(), in a loop or without one, nor with max_wait: WaitTooLong names the wait that the caller would have had."""
    clock = ManualClock()
    limiter = made(clock)
    first = in_thread(limiter.acquire_blocking)
    waiting(limiter, 1)
    with LoopThread() as other:
        assert [False, False] == [other.call(limiter.try_acquire), limiter.try_acquire()]
        with pytest.raises(aiorate.WaitTooLong) as told:
            other.start(lambda: limiter.acquire(max_wait=0.19)).result(LONG)
        with pytest.raises(aiorate.WaitTooLong):
            limiter.acquire_blocking(max_wait=0.19)
        accepted = other.start(lambda: limiter.acquire(max_wait=0.2))
        clock.advance(0.1)
        assert 0.1 == first.result(LONG)
        assert not other.call(limiter.try_acquire)
        clock.advance(0.1)
        assert (0.2, 0.2) == (told.value.wait, accepted.result(LONG))
        clock.advance(0.1)
        assert other.call(limiter.try_acquire)


def test_changes_from_another_thread_reach_the_line() -> None:
    clock = ManualClock()
    limiter = made(clock, rate="1/h")
    with LoopThread() as thread:
        waiters = [in_thread(limiter.acquire_blocking), thread.start(limiter.acquire)]
        waiting(limiter, 2)
        limiter.refund(1)
        waiting(limiter, 1)
        call_in_thread(lambda: limiter.pause(1))
        call_in_thread(lambda: limiter.set_rate("10/s"))
        assert limiter.statistics().paused_until == 1
        thread.call(limiter.resume)
        limiter.charge(1)
        clock.advance(0.1)
        waiting(limiter, 1)
        clock.advance(0.1)
        for future in waiters:
            future.result(LONG)

        assert limiter.rate == aiorate.Rate.parse("10/s")
        assert limiter.statistics().charged == limiter.statistics().refunded == 1
        assert limiter.bound(1) == 11
        assert limiter.lag == 0
        assert limiter.delay() == 0.1
        limiter.reset()
        assert limiter.statistics().granted == 0


def test_max_waiting_is_exact_across_threads() -> None:
    """The check and the place in line are one step, for 24 threads at once."""
    limiter, count = made(rate="1/h", max_waiting=5), 24
    barrier = threading.Barrier(count)

    async def main() -> None:
        barrier.wait(LONG)
        await limiter.acquire()

    def ask() -> None:
        barrier.wait(LONG)
        limiter.acquire_blocking()

    threads = [in_thread((lambda: asyncio.run(main())) if number % 2 else ask) for number in range(count)]
    waiting(limiter, 5)
    while limiter.statistics().refused < count - 5:
        threading.Event().wait(0.001)
    limiter.set_rate("1000/s")

    assert {None: 5, aiorate.LineFull: count - 5} == Counter((error := each.exception(LONG)) and type(error) for each in threads)


def test_closing_fails_the_waiters_of_every_thread() -> None:
    """The timekeeper's thread ends, and the limiter can be opened again."""
    limiter = made(rate="1/h", name="to be closed")
    with ExitStack() as stack:
        asked = [stack.enter_context(loop_thread(kind)).start(limiter.acquire) for kind in KINDS]
        asked.append(in_thread(limiter.acquire_blocking))
        waiting(limiter, len(asked))
        asyncio.run(limiter.aclose())

        assert not [thread for thread in threading.enumerate() if thread.name == "aiorate-timekeeper:to be closed"]
        for future in asked:
            assert isinstance(future.exception(LONG), aiorate.LimiterClosed)
    with pytest.raises(aiorate.LimiterClosed):
        limiter.acquire_blocking()
    limiter.apply("1000,1,start")
    limiter.acquire_blocking()
