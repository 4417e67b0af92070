"""`scope="process"`: one budget for all event loops and threads of a process.

Instants are exact, since a ManualClock passes the time and threads are stepped.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
import weakref
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest
import trio
from helpers.driving import LONG, SECOND, one_loop
from helpers.process import EACH_KIND, made
from helpers.threads import KINDS, LoopThread, call_in_thread, in_thread, loop_thread, waiting

import aiorate
from aiorate.testing import ManualClock

# Arguments, and what is refused.


def test_a_process_wide_limiter_is_a_limiter() -> None:
    """It can be passed wherever a limiter is expected."""
    limiter = made()

    assert isinstance(limiter, aiorate.Limiter)
    assert repr(limiter).startswith("<Limiter")


def test_the_default_is_one_event_loop() -> None:
    """Programs without threads do not pay for a lock."""
    for limiter in (aiorate.Limiter("1/s"), aiorate.Limiter("1/s", scope="loop")):
        assert type(limiter) is aiorate.Limiter


@pytest.mark.parametrize(("scope", "kind"), [("thread", ValueError), ("", ValueError), (None, TypeError), (1, TypeError)])
def test_an_unknown_scope_is_refused_and_claims_nothing(scope: Any, kind: type[Exception]) -> None:
    """The strategy can still be used for another limiter."""
    strategy = aiorate.TokenBucket("1/s", burst=1)
    with pytest.raises(kind, match="'loop' or 'process'"):
        aiorate.Limiter(strategy, scope=scope)

    assert aiorate.Limiter(strategy, scope="process").try_acquire()


def test_a_subclass_of_limiter_is_refused() -> None:
    """Limiter() returns another class for this scope, not the subclass."""

    class Mine(aiorate.Limiter):
        pass

    with pytest.raises(TypeError, match="Wrap a Limiter"):
        Mine("1/s", scope="process")


def test_acquire_blocking_needs_the_scope() -> None:
    """A limiter of one loop has no lock, and a thread would change it in the middle of a decision."""
    with pytest.raises(RuntimeError, match="scope='process'"):
        aiorate.Limiter("1/s").acquire_blocking()


@one_loop
async def test_acquire_blocking_is_refused_in_a_running_loop() -> None:
    """It is refused even if a permit is available; else the mistake would only show under load."""
    with pytest.raises(RuntimeError, match=r"Await acquire\(\)"):
        aiorate.Limiter("1/s", scope="process").acquire_blocking()


def test_acquire_blocking_is_refused_in_a_trio_run() -> None:
    """The rule is the same as under asyncio."""

    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"Await acquire\(\)"):
            aiorate.Limiter("1/s", scope="process").acquire_blocking()

    trio.run(main)


@pytest.mark.parametrize(
    ("arguments", "options", "kind"),
    [((0,), {}, ValueError), ((2,), {}, ValueError), (("1",), {}, TypeError), ((True,), {}, TypeError), ((), {"max_wait": -1}, ValueError)],
)
def test_bad_arguments_fail_at_once(arguments: Any, options: Any, kind: type[Exception]) -> None:
    """They fail even if permits are available, and the error names the call."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), scope="process")
    with pytest.raises(kind, match="acquire_blocking"):
        limiter.acquire_blocking(*arguments, **options)
    with pytest.raises(kind, match="acquire"):
        asyncio.run(limiter.acquire(*arguments, **options))

    assert limiter.try_acquire()


def test_acquire_without_a_loop_names_acquire_blocking() -> None:
    """Nothing could wake a coroutine that is driven by hand."""
    limiter = made(ManualClock())
    with pytest.raises(RuntimeError, match="acquire_blocking"):
        limiter.acquire().send(None)

    assert limiter.statistics().waiting == 0


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_process_wide_limiter_cannot_be_copied(copied: Any) -> None:
    """A copy would grant the same permits again."""
    with pytest.raises(TypeError, match="Share it"):
        copied(made())


def test_keys_and_budgets_of_a_loop_refuse_the_scope() -> None:
    """They would use the limiter in the wrong thread."""
    with pytest.raises(ValueError, match="has scope='process'"):
        aiorate.KeyedLimiter(lambda key: "1/s", shared=made())
    with pytest.raises(ValueError, match="scope is the process"):
        aiorate.KeyedLimiter(lambda key: made())["a"]
    with pytest.raises(ValueError, match="has scope='process'"):
        aiorate.Budget(requests=made(), tokens="1/s")


def test_the_scheduler_of_a_process_wide_limiter_is_public() -> None:
    """Like that of any limiter."""
    strategy = aiorate.TokenBucket("1/s", burst=1)

    assert strategy is aiorate.Limiter(strategy, scope="process").scheduler


# Order and instants.


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


@EACH_KIND
def test_all_permits_due_are_granted_at_one_instant(kind: str) -> None:
    """2500 of them, which the loop hears of in portions of a thousand."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=3000, initial=0), scope="process", clock=clock, catch_up=0)

    async def many() -> list[float]:
        waits: list[float] = []

        async def one() -> None:
            waits.append(await limiter.acquire())

        if kind == "trio":
            async with trio.open_nursery() as nursery:
                for _ in range(2500):
                    nursery.start_soon(one)
        else:
            await asyncio.gather(*(one() for _ in range(2500)))
        return waits

    with loop_thread(kind) as thread:
        done = thread.start(many)
        waiting(limiter, 2500)
        clock.set(10 * SECOND)
        clock.advance(1)  # the rest of more than one portion is granted at the next look
        clock.advance(1)

        assert len(done.result(LONG)) == 2500


def test_try_acquire_never_passes_the_line_of_another_thread() -> None:
    """It may be called in a loop or in a thread without one."""
    clock = ManualClock()
    limiter = made(clock)
    first = in_thread(limiter.acquire_blocking)
    waiting(limiter, 1)
    with LoopThread() as other:
        assert other.call(limiter.try_acquire) is False
        assert limiter.try_acquire() is False
        clock.advance(0.1)
        first.result(LONG)
        assert other.call(limiter.try_acquire) is False
        clock.advance(0.1)
        assert other.call(limiter.try_acquire) is True


@EACH_KIND
def test_max_wait_counts_waiters_of_other_threads(kind: str) -> None:
    """WaitTooLong names the wait that the caller would have had."""
    clock = ManualClock()
    limiter = made(clock)
    before = [in_thread(limiter.acquire_blocking) for _ in range(2)]
    waiting(limiter, 2)
    with loop_thread(kind) as thread:
        refused = thread.start(lambda: limiter.acquire(max_wait=0.29))
        with pytest.raises(aiorate.WaitTooLong) as told:
            refused.result(LONG)
        with pytest.raises(aiorate.WaitTooLong):
            call_in_thread(lambda: limiter.acquire_blocking(max_wait=0.29))
        accepted = thread.start(lambda: limiter.acquire(max_wait=0.3))
        clock.advance(0.3)
        assert accepted.result(LONG) == 0.3

    assert told.value.wait == 0.3
    assert [0.1, 0.2] == sorted(future.result(LONG) for future in before)


def test_changes_from_another_thread_reach_the_line() -> None:
    """Rate, pause, resume, refund, charge and reset may be called in any thread."""
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


# Bounds of the line, and its end.


def test_max_waiting_is_exact_across_threads() -> None:
    """The check and the place in line are one step, for 24 threads at once."""
    limiter = made(rate="1/h", max_waiting=5)
    count = 24
    barrier = threading.Barrier(count)

    def ask() -> None:
        barrier.wait(LONG)
        limiter.acquire_blocking()

    def ask_in_loop() -> None:
        async def main() -> None:
            barrier.wait(LONG)
            await limiter.acquire()

        asyncio.run(main())

    threads = [in_thread(ask_in_loop if number % 2 else ask) for number in range(count)]
    waiting(limiter, 5)
    while limiter.statistics().refused < count - 5:
        threading.Event().wait(0.001)
    limiter.set_rate("1000/s")
    outcomes = [future.exception(LONG) for future in threads]

    assert outcomes.count(None) == 5
    assert all(isinstance(error, aiorate.LineFull) for error in outcomes if error is not None)


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


def test_a_process_wide_limiter_is_freed_once_nobody_waits() -> None:
    """Neither the timekeeper's thread nor a loop keeps it alive."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=1), scope="process")
    for _ in range(3):
        limiter.acquire_blocking()
    gone = weakref.ref(limiter)
    del limiter
    gc.collect()

    assert gone() is None


def test_a_fork_empties_the_line_and_keeps_the_budget() -> None:
    """The hook of the child, called in this process: waiters belong to the parent."""
    clock = ManualClock()
    limiter = made(clock, max_concurrency=2)
    with LoopThread() as thread:
        thread.start(limiter.acquire)
        waiting(limiter, 1)
        limiter._dispatcher.waiters.driver.loop.section.reset()

        assert 0 == limiter.statistics().waiting
        assert not limiter.try_acquire()
        clock.advance(0.1)
        assert [True, False] == [limiter.try_acquire(), limiter.try_acquire()]
