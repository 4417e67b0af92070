"""One budget for all event loops and threads of a process. Instants are exact: a clock by hand, and threads that are stepped."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, suppress
from operator import methodcaller
from threading import Event
from time import monotonic_ns
from typing import Any

import httpx2
import pytest
import trio
from helpers.driving import LONG, SECOND, one_loop
from helpers.loops import FACTORIES
from helpers.threads import KINDS, LoopThread, Recorded, TrioThread, call_in_thread, in_thread, loop_thread, waiting

import aiorate
from aiorate.http import hooks, read_feedback
from aiorate.testing import ManualClock
from aiorate.waiting.process.driver import ProcessDriver

EACH = pytest.mark.parametrize("kind", KINDS)


def made(clock: ManualClock | None = None, rate: str = "10/s", **options: Any) -> aiorate.Limiter:
    """A limiter for the process whose first permit is taken."""
    limiter = aiorate.Limiter(aiorate.TokenBucket(rate, burst=1), scope="process", clock=clock, **options)
    assert limiter.try_acquire()
    return limiter


class Inside:
    """Somebody in the loop of that thread who has a place, until it is told to leave."""

    def __init__(self, thread: LoopThread, limiter: aiorate.Limiter) -> None:
        self._thread = thread
        self._gate = asyncio.Event()

        async def hold() -> None:
            async with limiter:
                await self._gate.wait()

        self._held = thread.start(hold)

    def leave(self) -> None:
        """Return once it has left."""
        self._thread.call(self._gate.set)
        self._held.result(LONG)


# Who may ask, and what is refused.


def test_it_is_a_limiter() -> None:
    """All that takes a limiter takes this one."""
    limiter = made()

    assert isinstance(limiter, aiorate.Limiter)
    assert repr(limiter).startswith("<Limiter")


def test_the_default_is_one_event_loop() -> None:
    """Nobody pays for threads who has none."""
    for limiter in (aiorate.Limiter("1/s"), aiorate.Limiter("1/s", scope="loop")):
        assert type(limiter) is aiorate.Limiter


@pytest.mark.parametrize(("scope", "kind"), [("thread", ValueError), ("", ValueError), (None, TypeError), (1, TypeError)])
def test_an_unknown_scope_is_refused_and_claims_nothing(scope: Any, kind: type[Exception]) -> None:
    """The strategy can be used for another limiter."""
    strategy = aiorate.TokenBucket("1/s", burst=1)
    with pytest.raises(kind, match="'loop' or 'process'"):
        aiorate.Limiter(strategy, scope=scope)

    assert aiorate.Limiter(strategy, scope="process").try_acquire()


def test_a_class_of_ones_own_is_refused() -> None:
    """It would not be the one that was asked for."""

    class Mine(aiorate.Limiter):
        pass

    with pytest.raises(TypeError, match="Wrap a Limiter"):
        Mine("1/s", scope="process")


def test_blocking_needs_the_scope() -> None:
    """In one loop's limiter a thread would change what the loop decides."""
    with pytest.raises(RuntimeError, match="scope='process'"):
        aiorate.Limiter("1/s").acquire_blocking()


@one_loop
async def test_blocking_is_refused_where_it_would_stop_a_loop() -> None:
    """Also where a permit is there: it would only be noticed under load."""
    with pytest.raises(RuntimeError, match=r"Await acquire\(\)"):
        aiorate.Limiter("1/s", scope="process").acquire_blocking()


def test_blocking_is_refused_in_a_trio_run() -> None:
    """As under asyncio."""

    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"Await acquire\(\)"):
            aiorate.Limiter("1/s", scope="process").acquire_blocking()

    trio.run(main)


@pytest.mark.parametrize(
    ("arguments", "options", "kind"),
    [((0,), {}, ValueError), ((2,), {}, ValueError), (("1",), {}, TypeError), ((True,), {}, TypeError), ((), {"max_wait": -1}, ValueError)],
)
def test_bad_arguments_fail_at_once(arguments: Any, options: Any, kind: type[Exception]) -> None:
    """While permits are there too, and in the words of the call."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), scope="process")
    with pytest.raises(kind, match="acquire_blocking"):
        limiter.acquire_blocking(*arguments, **options)
    with pytest.raises(kind, match="acquire"):
        asyncio.run(limiter.acquire(*arguments, **options))

    assert limiter.try_acquire()


def test_a_coroutine_driven_without_a_loop_is_told_what_to_call() -> None:
    """There is nothing that could wake it."""
    limiter = made(ManualClock())
    with pytest.raises(RuntimeError, match="acquire_blocking"):
        limiter.acquire().send(None)

    assert limiter.statistics().waiting == 0


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_cannot_be_copied(copied: Any) -> None:
    """The copy would grant the same permits again."""
    with pytest.raises(TypeError, match="Share it"):
        copied(made())


def test_keys_and_budgets_refuse_it() -> None:
    """Each of them is for one loop: it would be asked in the wrong thread."""
    with pytest.raises(ValueError, match="scope is the process"):
        aiorate.KeyedLimiter(lambda key: "1/s", shared=made())
    with pytest.raises(ValueError, match="scope is the process"):
        aiorate.KeyedLimiter(lambda key: made())["a"]
    with pytest.raises(ValueError, match="scope is the process"):
        aiorate.Budget(requests=made(), tokens="1/s")


# Order and instants.


def test_order_of_arrival_across_all_kinds_of_callers() -> None:
    """One line: who came first, in whatever thread and loop, is granted first, each at the instant that is due."""
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

    assert limiter.statistics().granted == 9


@EACH
def test_all_that_is_due_at_once_is_granted_at_one_instant(kind: str) -> None:
    """A thousand and more, told to their loop in portions."""
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
        clock.advance(1)  # what is more than one portion waits for the next look
        clock.advance(1)

        assert len(done.result(LONG)) == 2500


def test_try_acquire_does_not_pass_the_line_of_another_thread() -> None:
    """Nor does a call that blocks."""
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


@EACH
def test_max_wait_counts_those_of_other_threads(kind: str) -> None:
    """What is said at once is what the wait would be."""
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


def test_a_change_from_another_thread_is_heeded_by_those_in_line() -> None:
    """A rate, a pause and its end, permits given back and charged: all of them from anywhere."""
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


# Cancellation.


@EACH
def test_a_waiter_that_is_cancelled_spends_nothing(kind: str) -> None:
    """The next in line moves up, in whatever thread it is."""
    clock = ManualClock()
    limiter = made(clock)
    with loop_thread(kind) as thread:
        left = thread.start(limiter.acquire)
        next_one = in_thread(limiter.acquire_blocking)
        waiting(limiter, 2)
        thread.call(thread.scope.cancel if isinstance(thread, TrioThread) else thread.task.cancel)
        with pytest.raises(asyncio.CancelledError):
            left.result(LONG)
        clock.advance(0.1)

        assert next_one.result(LONG) == 0.1
    assert (1, 2) == (limiter.statistics().cancelled, limiter.statistics().granted)


@pytest.mark.parametrize("kind", FACTORIES)
def test_a_grant_that_meets_a_cancelled_task_goes_to_the_next_at_once(kind: str) -> None:
    """Decided while the loop stood still; the task was cancelled before it could hear of it."""
    clock = ManualClock()
    limiter = made(clock)
    with loop_thread(kind) as thread:
        assert isinstance(thread, LoopThread)
        left = thread.start(limiter.acquire)
        next_one = in_thread(limiter.acquire_blocking)
        waiting(limiter, 2)
        with thread.stand_still() as blocked:
            clock.advance(0.1)
            assert limiter.statistics().granted == 2
            blocked.finally_call = thread.task.cancel
        with pytest.raises(asyncio.CancelledError):
            left.result(LONG)

        assert next_one.result(LONG) == 0.1
    assert (1, 2) == (limiter.statistics().cancelled, limiter.statistics().granted)


def test_a_task_that_is_being_cancelled_does_not_count_as_waiting() -> None:
    """Its place is another's, though its loop has not turned since."""
    limiter = made(ManualClock(), max_waiting=1)
    with LoopThread() as thread:
        thread.start(limiter.acquire)
        with thread.stand_still():
            thread.task.cancel()
            assert limiter.statistics().waiting == 0
            taken = in_thread(limiter.acquire_blocking)
            waiting(limiter, 1)
            limiter.refund(1)
        with suppress(aiorate.LimiterClosed):
            taken.result(LONG)


def test_ctrl_c_leaves_the_line() -> None:
    """The main thread of a script is interrupted while it waits; nothing is lost."""
    clock = ManualClock()
    limiter = made(clock)
    main = threading.main_thread().ident
    assert main is not None
    assert threading.current_thread() is threading.main_thread()

    def interrupt() -> None:
        waiting(limiter, 1)
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        helper = in_thread(interrupt)
        with pytest.raises(KeyboardInterrupt):
            limiter.acquire_blocking()
        helper.result(LONG)
    finally:
        signal.signal(signal.SIGINT, before)
    clock.advance(0.1)

    assert (0, 1) == (limiter.statistics().waiting, limiter.statistics().cancelled)
    assert limiter.try_acquire()


# Loops that die, and loops that stand still.


@pytest.mark.parametrize("kind", FACTORIES)
def test_those_of_a_loop_that_was_closed_leave_the_line(kind: str) -> None:
    """They can never be woken; whoever stands behind them moves up."""
    clock = ManualClock()
    limiter = made(clock)
    kept: list[Any] = []
    with loop_thread(kind) as thread:
        assert isinstance(thread, LoopThread)
        for number in range(3):
            thread.start(limiter.acquire)
            kept.append(thread.task)
            waiting(limiter, number + 1)
        survivor = in_thread(limiter.acquire_blocking)
        waiting(limiter, 4)
        thread.stop()
    clock.advance(0.1)  # what would have been granted to the first of them

    assert survivor.result(LONG) == 0.1
    assert (3, 2, 0) == (limiter.statistics().cancelled, limiter.statistics().granted, limiter.statistics().waiting)
    _forget(kept)
    assert (3, 2, 0) == (limiter.statistics().cancelled, limiter.statistics().granted, limiter.statistics().waiting)


def _forget(tasks: list[Any]) -> None:
    """Let tasks of a closed loop be collected, without the complaint of asyncio."""
    for task in tasks:
        task._log_destroy_pending = False  # noqa: SLF001  # asyncio's own way to say so
    tasks.clear()
    gc.collect()


def _refused(limiter: aiorate.Limiter) -> None:
    with pytest.raises(aiorate.WaitTooLong):
        limiter.acquire_blocking(max_wait=0)


@pytest.mark.parametrize("look", [methodcaller("try_acquire"), methodcaller("statistics"), methodcaller("delay"), _refused])
@pytest.mark.parametrize("kind", FACTORIES)
def test_a_grant_that_a_closed_loop_never_heard_of_goes_to_the_next(kind: str, look: Callable[[aiorate.Limiter], object]) -> None:
    """Whoever looks first finds it. It was decided while the loop stood still, and then the loop was closed."""
    clock = ManualClock()
    limiter = made(clock)
    kept: list[Any] = []
    with loop_thread(kind) as thread:
        assert isinstance(thread, LoopThread)
        thread.start(limiter.acquire)
        kept.append(thread.task)
        survivor = in_thread(limiter.acquire_blocking)
        waiting(limiter, 2)
        with thread.stand_still() as blocked:
            clock.advance(0.1)
            assert limiter.statistics().granted == 2
            blocked.finally_call = thread.loop.stop
        thread.thread.join(LONG)
        thread.loop.close()
        look(limiter)

    assert survivor.result(LONG) == 0.1
    assert (1, 2) == (limiter.statistics().cancelled, limiter.statistics().granted)
    _forget(kept)


def test_without_another_decision_the_timekeeper_finds_a_closed_loop() -> None:
    """Whoever stands behind those of a loop that died is not at their mercy, nor at a newcomer's."""
    limiter = made(rate="1/h")
    kept: list[Any] = []
    with LoopThread() as thread:
        thread.start(limiter.acquire)
        kept.append(thread.task)
        survivor = in_thread(limiter.acquire_blocking)
        waiting(limiter, 2)
        with thread.stand_still() as blocked:
            limiter.refund(1)
            blocked.finally_call = thread.loop.stop
        thread.thread.join(LONG)
        thread.loop.close()

        survivor.result(LONG)
    _forget(kept)


@EACH
def test_a_loop_that_stands_still_holds_up_nobody_and_keeps_its_places(kind: str) -> None:
    """Its waiter is granted in its turn and finds the grant; those behind it are served meanwhile."""
    clock = ManualClock()
    limiter = made(clock)
    with LoopThread() as still, loop_thread(kind) as other:
        first = still.start(limiter.acquire)
        second = other.start(limiter.acquire)
        third = still.start(limiter.acquire)
        fourth = in_thread(limiter.acquire_blocking)
        waiting(limiter, 4)
        with still.stand_still():
            for _ in range(4):
                clock.advance(0.1)
            assert (0.2, 0.4) == (round(second.result(LONG), 9), round(fourth.result(LONG), 9))
            assert not first.done()
            assert not third.done()

        assert (0.1, 0.3) == (round(first.result(LONG), 9), round(third.result(LONG), 9))


def test_a_thousand_grants_that_a_loop_has_yet_to_hear_of_hold_up_nobody() -> None:
    """In one loop, no more than a thousand are woken before it turns; here others would wait for the one that does not."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/day", burst=3000, initial=0), scope="process")

    async def many() -> None:
        await asyncio.gather(*(limiter.acquire() for _ in range(1500)))

    with LoopThread() as still:
        asked = still.start(many)
        waiting(limiter, 1500)
        behind = in_thread(limiter.acquire_blocking)
        waiting(limiter, 1501)
        with still.stand_still():
            limiter.refund(2000)
            behind.result(LONG)
            assert not asked.done()
        asked.result(LONG)


def test_many_loops_one_after_the_other_leave_nothing_behind() -> None:
    """As the threads of a server do, each with an asyncio.run()."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=1), scope="process")
    loops = []

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await asyncio.gather(*(limiter.acquire() for _ in range(3)))

    for _ in range(5):
        thread = threading.Thread(target=lambda: asyncio.run(main()))
        thread.start()
        thread.join()
    assert 0 == limiter.statistics().waiting

    while any(loop() is not None for loop in loops):  # the thread that keeps the time may be in the middle of its last turn
        gc.collect()
        threading.Event().wait(0.001)


# Garbage collection in the middle of a decision.


def test_a_coroutine_that_is_collected_in_the_middle_of_a_decision_leaves_after_it() -> None:
    """Of the same thread: it neither waits for itself nor sees half of what is decided."""
    clock = ManualClock()
    bucket = Recorded("10/s")
    limiter = aiorate.Limiter(bucket, scope="process", clock=clock)
    with LoopThread() as thread:

        def abandon() -> None:
            waiters = [limiter.acquire() for _ in range(3)]
            for each in waiters:
                each.send(None)
            bucket.hook = waiters[1].close  # of the one that is granted right after the next
            clock.advance(0.2)
            waiters[2].close()
            waiters[0].close()

        assert limiter.try_acquire()
        thread.call(abandon)

    assert (0, 3) == (limiter.statistics().waiting, limiter.statistics().cancelled)
    clock.advance(1)
    assert limiter.try_acquire()
    assert not limiter.try_acquire()


@pytest.mark.parametrize("ask", ["try_acquire", "acquire_blocking", "statistics", "delay"])
def test_a_finalizer_that_asks_in_the_middle_of_a_decision_is_told_so(ask: str) -> None:
    """It must not wait for itself, nor decide on the half of a decision."""
    bucket = Recorded("10/s")
    limiter = aiorate.Limiter(bucket, scope="process", clock=ManualClock())
    told: list[str] = []

    def finalizer() -> None:
        try:
            getattr(limiter, ask)()
        except RuntimeError as error:
            told.append(str(error))

    bucket.hook = finalizer

    assert limiter.try_acquire()
    assert len(told) == 1
    assert "interrupted its own decision" in told[0]
    assert not limiter.try_acquire()


def test_a_finalizer_may_give_back_in_the_middle_of_a_decision() -> None:
    """What it asks for comes right after; and looking is allowed."""
    bucket = Recorded("10/s", burst=2)
    limiter = aiorate.Limiter(bucket, scope="process", clock=ManualClock())
    seen: list[str] = []

    def finalizer() -> None:
        limiter.refund(1)
        limiter.pause(0)
        seen.append(repr(limiter))

    assert limiter.try_acquire(2)
    bucket.hook = finalizer

    assert not limiter.try_acquire()
    assert limiter.statistics().refunded == 1
    assert limiter.try_acquire()
    assert len(seen) == 1


def test_leaving_waits_for_no_other_thread() -> None:
    """A finalizer may run in the middle of another limiter's decision: two that wait for each other would wait for ever."""
    clock = ManualClock()
    bucket = Recorded("10/s")
    limiter = aiorate.Limiter(bucket, scope="process", clock=clock)
    assert limiter.try_acquire()
    inside, go_on = threading.Event(), threading.Event()

    def decide_slowly() -> None:
        inside.set()
        assert go_on.wait(LONG)

    with LoopThread() as thread:
        waiter = limiter.acquire()
        thread.call(lambda: waiter.send(None))
        clock.advance(0.05)
        bucket.hook = decide_slowly
        asking = in_thread(lambda: limiter.set_rate("20/s"))
        assert inside.wait(LONG)
        waiter.close()  # while the other thread is in the middle
        go_on.set()
        asking.result(LONG)

        assert (0, 1) == (limiter.statistics().waiting, limiter.statistics().cancelled)


# Bounds of the line.


def test_max_waiting_is_exact_however_many_threads_come_at_once() -> None:
    """Whether there is room, and taking it, is one step."""
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


def test_closing_sends_everybody_away_in_every_thread() -> None:
    """And no thread stays. It can be opened again."""
    limiter = made(rate="1/h", name="to be closed")
    with ExitStack() as stack:
        asked = [stack.enter_context(loop_thread(kind)).start(limiter.acquire) for kind in KINDS]
        asked.append(in_thread(limiter.acquire_blocking))
        waiting(limiter, 4)
        asyncio.run(limiter.aclose())

        assert not [thread for thread in threading.enumerate() if thread.name == "aiorate-timekeeper:to be closed"]
        for future in asked:
            assert isinstance(future.exception(LONG), aiorate.LimiterClosed)
    with pytest.raises(aiorate.LimiterClosed):
        limiter.acquire_blocking()
    limiter.apply("1000,1,start")
    limiter.acquire_blocking()


def test_it_is_freed_once_nobody_waits() -> None:
    """Neither the thread that lingers nor a loop keeps it alive."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=1), scope="process")
    for _ in range(3):
        limiter.acquire_blocking()
    gone = weakref.ref(limiter)
    del limiter
    gc.collect()

    assert gone() is None


# What stands on it.


@EACH
def test_no_more_than_so_many_are_inside_in_all_threads(kind: str) -> None:
    """The place goes from one thread to the next, and is taken before the permit."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=100), scope="process", max_concurrency=2, clock=ManualClock())
    leave = threading.Event()

    def hold() -> None:
        async def main() -> None:
            async with limiter:
                inside.release()
                leave.wait(LONG)

        asyncio.run(main())

    inside = threading.Semaphore(0)
    holders = [in_thread(hold) for _ in range(2)]
    for _ in holders:
        assert inside.acquire(timeout=LONG)
    with loop_thread(kind) as thread:

        async def enter() -> float:
            async with limiter.of(3) as waited:
                return waited

        third = thread.start(enter)
        waiting(limiter, 1)
        assert limiter.statistics().granted == 2
        leave.set()
        assert third.result(LONG) == 0.0
    for holder in holders:
        holder.result(LONG)
    assert limiter.statistics().granted == 5


def test_a_place_waited_for_and_then_the_permit_is_one_wait() -> None:
    """In the line for places and in that for permits; max_waiting counts both, and nobody slips in between."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process", max_concurrency=1, max_waiting=1, clock=clock)
    go = threading.Event()
    with LoopThread() as first, LoopThread() as second:

        async def hold() -> None:
            async with limiter:
                await asyncio.get_running_loop().run_in_executor(None, go.wait, LONG)

        async def enter() -> float:
            async with limiter as waited:
                return waited

        held = first.start(hold)
        then = second.start(enter)
        waiting(limiter, 1)
        with pytest.raises(aiorate.LineFull):
            limiter.acquire_blocking()
        clock.advance(0.05)
        go.set()
        held.result(LONG)
        second.turn()
        waiting(limiter, 1)
        with pytest.raises(aiorate.LineFull):
            limiter.acquire_blocking()
        clock.advance(0.05)

        assert then.result(LONG) == 0.1
    assert limiter.statistics().waited_total == 0.1


@pytest.mark.parametrize("waits_for", ["place", "permit"])
def test_cancelled_on_the_way_in_the_place_is_free_again(waits_for: str) -> None:
    """Whichever of the two it waited for."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process", max_concurrency=1, clock=clock)
    with LoopThread() as holder, LoopThread() as thread:

        async def enter() -> float:
            async with limiter as waited:
                return waited

        inside = None
        if waits_for == "place":
            inside = Inside(holder, limiter)
        else:
            assert limiter.try_acquire()
        left = thread.start(enter)
        waiting(limiter, 1)
        thread.call(thread.task.cancel)
        with pytest.raises(asyncio.CancelledError):
            left.result(LONG)
        waiting(limiter, 0)
        if inside is not None:
            inside.leave()
        clock.advance(0.1)

        assert thread.start(enter).result(LONG) == 0.0


def test_closed_while_waiting_for_a_place() -> None:
    """Both lines are sent away."""
    limiter = aiorate.Limiter("10/s", scope="process", max_concurrency=1, clock=ManualClock())
    with LoopThread() as thread:
        inside = Inside(thread, limiter)
        away = thread.start(limiter.__aenter__)
        waiting(limiter, 1)
        asyncio.run(limiter.aclose())
        with pytest.raises(aiorate.LimiterClosed):
            away.result(LONG)
        with pytest.raises(aiorate.LimiterClosed):
            thread.start(limiter.__aenter__).result(LONG)
        inside.leave()


def test_closed_on_the_way_from_the_place_to_the_permit() -> None:
    """The place is free again, when the limiter is opened anew."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process", max_concurrency=1, clock=ManualClock())
    with LoopThread() as holder, LoopThread() as thread:
        inside = Inside(holder, limiter)
        late = thread.start(limiter.__aenter__)
        waiting(limiter, 1)
        with thread.stand_still():
            inside.leave()  # the place is the other's, which has yet to hear of it
            asyncio.run(limiter.aclose())
        with pytest.raises(aiorate.LimiterClosed):
            late.result(LONG)
        limiter.apply("10,1,start")
        limiter.reset()

        assert 0.0 == holder.start(limiter.__aenter__).result(LONG)


def test_requests_of_two_loops_are_limited_together() -> None:
    """An HTTP adapter takes it for what it is: a limiter."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process", clock=clock)

    async def get() -> int:
        transport = httpx2.MockTransport(lambda request: httpx2.Response(200))
        async with httpx2.AsyncClient(transport=transport, event_hooks=hooks(limiter)) as client:
            return (await client.get("http://a.test")).status_code

    with LoopThread() as first, LoopThread() as second:
        assert 200 == first.start(get).result(LONG)
        other = second.start(get)
        waiting(limiter, 1)
        clock.advance(0.1)
        assert 200 == other.result(LONG)


def test_a_decorated_function_is_limited_in_every_loop() -> None:
    """The decorator stands on the same calls."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process", clock=clock)

    @limiter
    async def job() -> int:
        return clock.now()

    with LoopThread() as first, LoopThread() as second:
        asked = [first.start(job), second.start(job), first.start(job)]
        waiting(limiter, 2)
        clock.advance(0.1)
        assert asked[1].result(LONG) == SECOND // 10
        clock.advance(0.1)
        assert [0, 1, 2] == [future.result(LONG) * 10 // SECOND for future in asked]


def test_slots_of_two_loops_share_the_schedule() -> None:
    """Each counts its own; the instants alternate."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process", clock=clock)

    async def three() -> list[tuple[int, float]]:
        seen = []
        async for slot in limiter.slots():
            seen.append((slot.index, slot.scheduled_at))
            if len(seen) == 3:
                return seen
        raise AssertionError

    with LoopThread() as first, LoopThread() as second:
        one = first.start(three)
        two = second.start(three)
        for _ in range(5):
            waiting(limiter, 1 if one.done() else 2)
            first.turn()
            second.turn()
            clock.advance(0.1)
            first.turn()
            second.turn()

        assert [(0, 0.0), (1, 0.1), (2, 0.3)] == one.result(LONG)
        assert [(0, 0.2), (1, 0.4), (2, 0.5)] == two.result(LONG)


def test_slots_that_were_missed_are_skipped_and_told() -> None:
    """As in one loop: a gap in the index, and an event, from whose callback the limiter may be asked."""
    clock = ManualClock()
    events: list[tuple[Any, int]] = []
    limiter = aiorate.Limiter(
        aiorate.TokenBucket("10/s", burst=1),
        scope="process",
        clock=clock,
        on_event=lambda event: events.append((event.kind, limiter.statistics().skipped)),
    )

    async def main() -> list[int]:
        seen = []
        async for slot in limiter.slots():
            seen.append(slot.index)
            if len(seen) == 3:
                return seen
            clock.set(clock.now() + SECOND)
        raise AssertionError

    with LoopThread() as thread:
        seen = thread.start(main).result(LONG)

    assert seen == sorted(set(seen))
    assert seen[1] > 1
    assert events
    assert events[0][0] == "skipped"


def test_an_event_may_ask_the_limiter() -> None:
    """It comes when the decision is over, in the thread that decided."""
    told: list[tuple[str, float]] = []
    limiter = aiorate.Limiter(
        "10/s", scope="process", clock=ManualClock(), on_event=lambda event: told.append((event.kind, limiter.delay()))
    )
    call_in_thread(lambda: limiter.observe(read_feedback(429, {"Retry-After": "7"})))

    assert [("paused", 7.0)] == told


class Counting(asyncio.SelectorEventLoop):
    """Counts how often another thread calls it."""

    calls = 0

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return super().call_soon_threadsafe(*args, **options)


def test_a_loop_is_called_once_for_all_that_is_granted_to_it_at_once() -> None:
    """And not before something is granted to it: a call wakes its thread."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=100, initial=0), scope="process", clock=clock)

    async def many() -> int:
        return len(await asyncio.gather(*(limiter.acquire() for _ in range(50))))

    with LoopThread(Counting) as first, LoopThread(Counting) as second:
        one = first.start(many)
        waiting(limiter, 50)
        two = second.start(many)
        waiting(limiter, 100)
        assert isinstance(first.loop, Counting)
        assert isinstance(second.loop, Counting)
        before = first.loop.calls, second.loop.calls
        limiter.refund(50)
        assert one.result(LONG) == 50
        assert (before[0] + 1, before[1]) == (first.loop.calls, second.loop.calls)
        limiter.refund(50)
        assert two.result(LONG) == 50
        assert (before[0] + 1, before[1] + 1) == (first.loop.calls, second.loop.calls)


def test_many_loops_are_looked_at_now_and_then() -> None:
    """Of hundreds of threads with a loop each, those that were closed are found all the same."""
    limiter = made(rate="1/h")
    kept: list[Any] = []
    with ExitStack() as stack:
        threads = [stack.enter_context(LoopThread()) for _ in range(40)]
        for number, thread in enumerate(threads):
            thread.start(limiter.acquire)
            kept.append(thread.task)
            waiting(limiter, number + 1)
        for thread in threads:
            thread.stop()
        waiting(limiter, 0)
    _forget(kept)


class Leaping:
    """A clock that can leap ahead, and has no timers of its own: the limiter's thread waits in real time, and then asks it."""

    leapt = 0

    def now(self) -> int:
        return monotonic_ns() + self.leapt


def test_an_event_must_not_wait_where_the_time_is_kept() -> None:
    """It would wait for itself, and all others with it: it is the timekeeper's thread that notices that a grant is late."""
    told: list[BaseException] = []
    clock = Leaping()

    def on_event(event: aiorate.Event) -> None:
        limiter.charge(1000)  # so that it would have to wait
        try:
            limiter.acquire_blocking()
        except RuntimeError as error:
            told.append(error)

    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process", on_event=on_event, clock=clock)
    limiter.charge(3)
    late = in_thread(limiter.acquire_blocking)
    waiting(limiter, 1)
    clock.leapt = 60 * SECOND
    late.result(LONG)
    while not told:
        Event().wait(0.001)

    assert "would deadlock" in str(told[0])


# Its own loop always turns.


@EACH
def test_callers_that_are_always_granted_let_their_loop_turn(kind: str) -> None:
    """Else a task that finds permits all the time would never end: here it ends when another has run."""
    limiter = aiorate.Limiter(aiorate.TicksAccumulator("1000000000/s"), scope="process")

    async def greedy() -> bool:
        turned: list[bool] = []
        if kind == "trio":
            trio.lowlevel.current_trio_token().run_sync_soon(turned.append, True)
        else:
            asyncio.get_running_loop().call_soon(turned.append, True)
        while not turned:
            await limiter.acquire()
        turned.clear()
        if kind == "trio":
            trio.lowlevel.current_trio_token().run_sync_soon(turned.append, True)
        else:
            asyncio.get_running_loop().call_soon(turned.append, True)
        async with aclosing(limiter.slots()) as slots:
            async for _ in slots:
                if turned:
                    return True
        raise AssertionError

    with loop_thread(kind) as thread:
        assert thread.start(greedy).result(LONG)


def test_in_a_busy_loop_nobody_yields_before_standing_in_line() -> None:
    """Else each of thousands that come at once would yield again and again, and those of other threads would pass them."""
    limiter = made(rate="1/1000s")

    async def ask() -> int:
        first = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        busy_from = monotonic_ns()
        while monotonic_ns() < busy_from + 20_000_000:
            with suppress(aiorate.WaitTooLong):
                limiter.acquire(max_wait=0).send(None)  # refused, and the loop is watched
                break  # it had to yield
        request = limiter.acquire()
        request.send(None)
        seen = limiter.statistics().waiting
        request.close()
        first.cancel()
        return seen

    assert 2 == asyncio.run(ask())


def test_callers_that_are_always_refused_let_their_loop_turn() -> None:
    """Else a task that asks again at once would never hear that it is cancelled."""
    limiter = made(rate="1/1000s")

    async def insist() -> bool:
        first = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        turned: list[bool] = []
        asyncio.get_running_loop().call_soon(turned.append, True)
        while not turned:
            with suppress(aiorate.WaitTooLong):
                await limiter.acquire(max_wait=1)
        first.cancel()
        return True

    assert asyncio.run(insist())


def test_callers_that_are_refused_though_nobody_waits_let_their_loop_turn() -> None:
    """They ask in a loop of their own until a permit is there, and would keep all others from running."""
    limiter = made(rate="1/1000s")

    async def insist() -> bool:
        turned: list[bool] = []
        asyncio.get_running_loop().call_soon(turned.append, True)
        while not turned:
            with suppress(aiorate.WaitTooLong):
                await limiter.acquire(max_wait=1)
        return True

    assert asyncio.run(insist())


def test_callers_that_always_find_a_place_let_their_loop_turn() -> None:
    """As those that always find a permit."""
    limiter = aiorate.Limiter(aiorate.TicksAccumulator("1000000000/s"), scope="process", max_concurrency=1)

    async def greedy() -> bool:
        turned: list[bool] = []
        asyncio.get_running_loop().call_soon(turned.append, True)
        while not turned:
            async with limiter:
                pass
        return True

    assert asyncio.run(greedy())


def test_a_place_that_was_given_to_a_closed_loop_goes_to_whoever_asks_next() -> None:
    """It was given while that loop stood still, and nobody there will ever leave it."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=10), scope="process", max_concurrency=1, clock=ManualClock())
    kept: list[Any] = []
    with LoopThread() as holder, LoopThread() as thread:
        inside = Inside(holder, limiter)
        thread.start(limiter.__aenter__)
        kept.append(thread.task)
        waiting(limiter, 1)
        with thread.stand_still() as blocked:
            inside.leave()
            blocked.finally_call = thread.loop.stop
        thread.thread.join(LONG)
        thread.loop.close()

        assert 0.0 == holder.start(limiter.__aenter__).result(LONG)
    assert 2 == limiter.statistics().granted
    _forget(kept)


def test_a_wait_for_a_place_after_which_a_permit_is_there_is_counted() -> None:
    """From the request on, though nobody waited for the permit."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=2), scope="process", max_concurrency=1, clock=clock)
    with LoopThread() as thread:
        inside = Inside(thread, limiter)
        late = thread.start(limiter.__aenter__)
        waiting(limiter, 1)
        clock.advance(5)
        inside.leave()

        assert 5.0 == late.result(LONG)
    assert 5.0 == limiter.statistics().waited_max


# Odd ends.


def test_the_strategy_is_there_to_look_at() -> None:
    """As that of any limiter."""
    strategy = aiorate.TokenBucket("1/s", burst=1)

    assert strategy is aiorate.Limiter(strategy, scope="process").scheduler


def test_refused_at_once_the_place_is_free_again() -> None:
    """Who found a place, and may not stand in the line for permits, leaves it for the next."""
    limiter = made(ManualClock(), max_concurrency=1, max_waiting=0)
    for _ in range(2):
        with pytest.raises(aiorate.LineFull):
            asyncio.run(limiter.__aenter__())
    limiter.reset()

    assert 0.0 == asyncio.run(limiter.__aenter__())


def test_a_place_and_a_permit_that_come_at_once_are_no_wait() -> None:
    """Time did not pass between the request and both grants: nothing is counted."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=2), scope="process", max_concurrency=1, clock=clock)
    with LoopThread() as thread:
        inside = Inside(thread, limiter)
        late = thread.start(limiter.__aenter__)
        waiting(limiter, 1)
        inside.leave()

        assert 0.0 == late.result(LONG)
    assert (0.0, 0.0) == (limiter.statistics().waited_total, limiter.statistics().waited_max)


def test_an_interrupt_while_it_joins_leaves_nobody_in_line() -> None:
    """Ctrl-C between the place in line and the timer: the one who was interrupted has gone, and the next is served in time."""

    class Interrupted(ManualClock):
        interrupts = False

        def call_at(self, instant: int, callback: Callable[[], None]) -> Any:
            if self.interrupts:
                self.interrupts = False
                raise KeyboardInterrupt
            return super().call_at(instant, callback)

    clock = Interrupted()
    limiter = made(clock)
    clock.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire_blocking()
    assert (0, 1) == (limiter.statistics().waiting, limiter.statistics().cancelled)

    next_one = in_thread(limiter.acquire_blocking)
    waiting(limiter, 1)
    clock.advance(0.1)
    assert 0.1 == next_one.result(LONG)


def test_who_has_a_ticket_and_never_stood_in_line_leaves_no_trace() -> None:
    """Interrupted in between: nothing was spent, and nobody is counted as one who gave up."""
    limiter = made(ManualClock())
    driver = limiter.dispatcher.driver
    assert isinstance(driver, ProcessDriver)
    section = driver.loop.section

    section.run(driver.withdraw, section.run(driver.ticket))

    assert (0, 0) == (limiter.statistics().waiting, limiter.statistics().cancelled)


def test_an_interrupt_before_it_joins_is_no_leaving() -> None:
    """It had not stood anywhere yet, so nobody is counted as one who gave up."""

    class Interrupted(ManualClock):
        interrupts = 0

        def now(self) -> int:
            if self.interrupts:
                self.interrupts -= 1
                if not self.interrupts:
                    raise KeyboardInterrupt
            return super().now()

    for reading in range(1, 4):
        clock = Interrupted()
        limiter = made(clock)
        clock.interrupts = reading
        with suppress(KeyboardInterrupt, aiorate.WaitTooLong):
            limiter.acquire_blocking(max_wait=0)
        clock.interrupts = 0

        assert (0, 0) == (limiter.statistics().waiting, limiter.statistics().cancelled)


def test_after_a_fork_its_line_is_that_of_the_child() -> None:
    """What the hook does there, said to this process: the budget goes on, and those who wait do so in the parent."""
    clock = ManualClock()
    limiter = made(clock, max_concurrency=2)
    with LoopThread() as thread:
        thread.start(limiter.acquire)
        waiting(limiter, 1)
        limiter.dispatcher.driver.loop.section.begin_anew()

        assert 0 == limiter.statistics().waiting
        assert not limiter.try_acquire()
        clock.advance(0.1)
        assert [True, False] == [limiter.try_acquire(), limiter.try_acquire()]
