"""Errors, finalizers, signals and loops that stand still in the middle of a change: nothing is left half changed."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from functools import partial

import pytest
from helpers.driving import LONG, SECOND, Crowd, one_loop, turns
from helpers.interrupts import Interrupt
from helpers.threads import LoopThread, waiting

import aiorate
from aiorate import KeyedLimiter, Limiter, Rate, Scheduler, TokenBucket
from aiorate.testing import ManualClock


def test_a_look_at_a_loop_that_stands_still_fails_nobody() -> None:
    """The first of a key's line could not join the shared line without a running loop, and everybody got the RuntimeError."""
    clock = ManualClock()
    shared = Limiter(TokenBucket("1/s", burst=1), clock=clock)
    keyed = KeyedLimiter(lambda key: Limiter(TokenBucket("100/s", burst=1), clock=clock), shared=shared)
    loop = asyncio.new_event_loop()

    async def ask() -> asyncio.Task[float]:
        await keyed.acquire("a")
        task = asyncio.ensure_future(keyed.acquire("a"))
        await turns(2)
        return task

    task = loop.run_until_complete(ask())
    clock.advance(0.02)
    assert keyed["a"].statistics().waiting == 1
    clock.advance(0.98)

    assert loop.run_until_complete(task) == 1.0
    loop.close()


class Plain(Scheduler):
    """One permit a second, and nothing more than a custom strategy must have."""

    def __init__(self) -> None:
        self.rate = Rate(1)
        self.next = 0

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at = self.peek(permits, now)
        if at <= now:
            self.next = now + 10**9
        return at

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        return max(self.next, now)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        raise ZeroDivisionError

    def set_rate(self, rate: Rate, now: int) -> None:
        self.rate = rate

    def lag(self, now: int) -> int:
        return 0

    def bound(self, window: int, largest: int = 1) -> int | None:
        return None


@one_loop
async def test_reset_of_a_strategy_without_it_changes_nothing() -> None:
    """The pause was over after the error, and the line slept until its old end."""
    clock = ManualClock()
    limiter = Limiter(Plain(), clock=clock)
    await limiter.acquire()
    limiter.pause(3)

    with pytest.raises(RuntimeError, match="reset"):
        limiter.reset()

    assert limiter.statistics().paused_until == 3.0
    assert limiter.delay() == 4.0


@one_loop
async def test_an_error_of_give_back_reaches_no_other_limit() -> None:
    """The shared permit was lost, and a key's receipt was kept for ever, so that the key was never evicted."""
    clock = ManualClock()
    shared = Limiter(TokenBucket("1/min", burst=5), clock=clock)
    keyed = KeyedLimiter(lambda key: Limiter(Plain(), clock=clock), shared=shared)
    await keyed.acquire("a")
    task = asyncio.ensure_future(keyed.acquire("a"))
    await turns(2)

    clock.advance(1)
    task.cancel()
    with pytest.raises(ZeroDivisionError):
        await task

    assert shared.statistics().available == 4


def entries(error: BaseException) -> int:
    return len(traceback.extract_tb(error.__traceback__))


class Broken(aiorate.TokenBucket):
    """A strategy that fails after one second, with an error whose constructor takes more arguments than it keeps."""

    class Failure(Exception):
        def __init__(self, name: str, number: int) -> None:
            super().__init__(f"{name} {number}")

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if now >= SECOND:
            raise self.Failure("failure", 1)
        return super().take(permits, now, since)


@one_loop
@pytest.mark.parametrize("kind", ["a clock that fails", "a strategy that fails"])
async def test_each_waiter_of_a_failed_limiter_gets_a_separate_error(kind: str) -> None:
    """The same held for the errors of a broken clock, strategy or driver."""

    class BrokenClock(ManualClock):
        def now(self) -> int:
            if super().now() >= SECOND and kind == "a clock that fails":
                raise OSError(5, "no clock")
            return super().now()

    clock = BrokenClock()
    limiter = aiorate.Limiter(Broken("1/s", burst=1), clock=clock)
    assert limiter.try_acquire()
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(100)]
    await turns(3)

    clock.advance(2)
    errors = await asyncio.gather(*tasks, return_exceptions=True)

    assert 1 == len({str(error) for error in errors})
    assert 100 == len({id(error) for error in errors})
    assert all(entries(error) < 20 for error in errors if isinstance(error, BaseException))


class FailsOnce(aiorate.TokenBucket):
    """Fails once, at its fourth take."""

    takes = 0

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        self.takes += 1
        if self.takes == 4:
            raise ArithmeticError("as if")
        return super().take(permits, now, since)


@one_loop
async def test_strategy_that_fails_mid_line_leaves_the_limiter_whole() -> None:
    """Grants before the failure were not counted, and their records were kept for good."""
    clock = ManualClock()
    scheduler = FailsOnce("10/s", burst=3)
    crowd = Crowd(aiorate.Limiter(scheduler, clock=clock), clock)
    crowd.limiter.pause(1)
    await crowd.queue("ABCDE")
    await clock.run(1)

    assert list(crowd.granted) == ["A", "B", "C"]
    assert [type(crowd.tasks[name].exception()) for name in "DE"] == [ArithmeticError] * 2
    await clock.run(1)
    assert await crowd.limiter.acquire() == 0.0


@pytest.mark.parametrize("action", ["refund", "charge", "acquire_blocking"])
def test_nobody_waits_for_ever_after_an_interrupt(action: str) -> None:
    """Of 5500 interrupts in the main thread, 3 left tasks of other threads waiting. Each instant is tried in turn."""
    instant, interrupted = 0, True
    with LoopThread() as thread:
        while interrupted:
            instant += 1
            clock = ManualClock()
            limiter = Limiter(TokenBucket("10/s", burst=2), scope="process", clock=clock)
            assert limiter.try_acquire(2)
            tasks = [thread.start(limiter.acquire) for _ in range(2)]
            waiting(limiter, 2)
            ask = getattr(limiter, action)
            interrupt = Interrupt(instant, KeyboardInterrupt)
            interrupted = interrupt.run(ask if action == "acquire_blocking" else partial(ask, 1))

            limiter.try_acquire()
            for _ in range(6):
                clock.advance(0.1)
            assert all(isinstance(task.result(LONG), float) for task in tasks), interrupt.where
            limiter.statistics()
            clock.advance(1)
            assert (0, 2) == (limiter.statistics().waiting, limiter.statistics().available), interrupt.where
    assert instant > 0


class Interrupted(TokenBucket):
    """A finalizer runs once in the middle of a decision, after the strategy has answered."""

    finalize: Callable[[], object] = int

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        return self._then(super().take(permits, now, since))

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        return self._then(super().peek(permits, now, ahead))

    def _then(self, at: int) -> int:
        finalize, self.finalize = self.finalize, int
        finalize()
        return at


@one_loop
@pytest.mark.parametrize("shared", [False, True])
async def test_nothing_is_granted_to_a_coroutine_that_a_finalizer_closes(shared: bool) -> None:
    """Where it stood for the limits above, it was granted all the same, and its permit and its place were lost."""
    clock, bucket = ManualClock(), Interrupted("1/s", burst=1)
    limiter = Limiter(bucket, clock=clock, max_concurrency=1 if shared else None)
    await limiter.acquire()
    abandoned = limiter.__aenter__()
    abandoned.send(None)
    crowd = Crowd(limiter, clock)
    await crowd.queue("a")
    bucket.finalize = abandoned.close
    clock.advance(1)
    await turns(5)

    assert crowd.granted == {"a": SECOND}
    assert "1 of 1 places" not in repr(limiter)
    assert limiter.statistics().granted == 2


@one_loop
@pytest.mark.parametrize("shared", [False, True])
async def test_what_a_finalizer_changes_in_the_middle_of_a_look_is_seen(shared: bool) -> None:
    """Whoever it made due waited for a timer that was set for later, or for ever if it had freed the only place."""
    clock, bucket = ManualClock(), Interrupted("1/s", burst=1)
    above = Limiter("100/s", clock=clock) if shared else None
    limiter = KeyedLimiter[str](lambda key: Limiter(bucket, clock=clock), shared=above)["key"]
    await limiter.acquire()
    crowd = Crowd(limiter, clock)
    await crowd.queue("a")
    clock.advance(0.5)
    bucket.finalize = lambda: limiter.refund(1)
    limiter.resume()
    await turns(5)

    assert crowd.granted == {"a": SECOND // 2}
