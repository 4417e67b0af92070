"""Unusual waiters: eager tasks, interrupts, coroutines driven by hand, limiters that only their waiters refer to, clocks that fail."""

from __future__ import annotations

import asyncio
import gc
import weakref
from time import monotonic_ns
from typing import Any

import pytest
from helpers.driving import LONG, crowd_of, others, turns
from helpers.strategies import EACH

import aiorate
from aiorate import BurstCompensation, Limiter, SlidingWindow, TokenBucket, TokenPool
from aiorate.testing import ManualClock, simulate

# Eager tasks exist from Python 3.12 on: they run to their first wait before create_task() returns.
FACTORIES: list[Any] = [None, *([asyncio.eager_task_factory] if hasattr(asyncio, "eager_task_factory") else [])]


@pytest.mark.asyncio(loop_factories=["asyncio"])  # uvloop 0.23 does not work with the factory of Python 3.13.0
@pytest.mark.parametrize("factory", FACTORIES)
async def test_eager_tasks_wait_in_order_of_creation(factory: Any) -> None:
    """An eager task is in line before create_task() returns; order and instants are those of other tasks, also when some are cancelled."""
    asyncio.get_running_loop().set_task_factory(factory)
    for name, make in EACH.items():
        clock = ManualClock()
        limiter = Limiter(make(), clock=clock)
        granted: dict[int, int] = {}

        async def one(k: int, limiter: Limiter = limiter, clock: ManualClock = clock, granted: dict[int, int] = granted) -> None:
            await limiter.acquire()
            granted[k] = clock.now()

        tasks = [asyncio.create_task(one(k)) for k in range(9)]
        await turns(3)
        for task in [task for task in tasks if not task.done()][-3:]:
            task.cancel()
        await clock.run(10)

        assert list(granted) == sorted(granted), name
        assert list(granted.values())[:6] == simulate(make(), [0] * 6), name
        assert (clock.timers, others(), limiter.statistics().waiting) == (0, set(), 0), name
    asyncio.get_running_loop().set_task_factory(None)


def test_a_limiter_survives_an_interrupt_of_a_granted_task() -> None:
    """Ctrl-C ends the loop at any point; the next loop is served as if those tasks had never waited."""

    async def interrupted(limiter: Limiter, error: type[BaseException]) -> None:
        await limiter.acquire()
        raise error

    async def main(limiter: Limiter, clock: ManualClock, error: type[BaseException]) -> None:
        while limiter.try_acquire():
            pass
        tasks = [asyncio.ensure_future(interrupted(limiter, error)), *(asyncio.ensure_future(limiter.acquire()) for _ in range(5))]
        await clock.run(10)
        await asyncio.gather(*tasks)

    for error in (KeyboardInterrupt, SystemExit):
        for kind in (TokenPool, BurstCompensation, SlidingWindow):
            clock = ManualClock()
            limiter = Limiter(kind("10/s"), clock=clock)
            with pytest.raises(error):
                asyncio.run(main(limiter, clock, error))
            clock.advance(10)

            assert asyncio.run(limiter.acquire()) == 0.0
            assert (limiter.statistics().waiting, clock.timers) == (0, 0)


@pytest.mark.asyncio
async def test_a_limiter_lives_as_long_as_its_waiters() -> None:
    clock = ManualClock()

    def ask(scheduler: aiorate.Scheduler) -> tuple[weakref.ref[Limiter], list[asyncio.Task[float]]]:
        limiter = Limiter(scheduler, clock=clock)
        return weakref.ref(limiter), [asyncio.ensure_future(limiter.acquire()) for _ in range(20)]

    for kind in (TokenPool, BurstCompensation):
        ghost, tasks = ask(kind("10/s"))
        await turns(3)
        gc.collect()
        await clock.run(10)

        assert all(task.done() for task in tasks)
        del tasks
        gc.collect()
        assert ghost() is None


def test_waiting_without_a_loop_names_the_calls_that_work() -> None:
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=1))
    assert limiter.try_acquire()
    with pytest.raises(RuntimeError, match=r"only wait in a running event loop; try_acquire\(\) and delay\(\) work without one"):
        limiter.acquire().send(None)

    assert (0, 1) == (limiter.statistics().waiting, limiter.statistics().granted)


def test_looking_between_two_runs_of_a_loop_changes_nothing() -> None:
    """In a script that runs its loop piece by piece, waiters stay in line."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)
    assert limiter.try_acquire()
    with asyncio.Runner() as runner:
        waiting = runner.get_loop().create_task(limiter.acquire())
        runner.run(turns(3))

        assert 2 == limiter.delay()
        assert 1 == limiter.statistics().waiting
        assert not limiter.try_acquire()
        runner.run(clock.run(1))
        assert 1 == waiting.result()


# Failures.


@pytest.mark.asyncio
async def test_a_clock_that_fails_at_any_reading_hangs_nobody() -> None:
    """This includes readings while the driver is set for the first waiter."""

    class Failing:
        left = 10**9

        def now(self) -> int:
            self.left -= 1
            if self.left == 0:
                raise OSError("broken clock")
            return monotonic_ns()

    for kind in (TokenPool, BurstCompensation):
        outcomes = []
        for k in range(1, 40):  # a coarse clock is read more often, because timers fire early
            clock = Failing()
            limiter = Limiter(kind("500/s"), clock=clock)
            await limiter.acquire()
            clock.left = k
            [outcome] = await asyncio.wait_for(asyncio.gather(limiter.acquire(), return_exceptions=True), LONG)
            clock.left = 10**9
            outcomes.append(type(outcome))
            assert limiter.statistics().waiting == 0

        assert outcomes[0] is OSError
        assert outcomes[-1] is float
        assert set(outcomes) == {OSError, float}


@pytest.mark.asyncio
async def test_a_timer_that_cannot_be_set_blocks_no_later_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The empty line must not count as a line with a timer, or the next request would hang."""
    crowd = crowd_of(TokenBucket("10/s", burst=1))
    assert crowd.limiter.try_acquire()

    with monkeypatch.context() as patch:
        patch.setattr(type(crowd.clock), "call_at", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await crowd.limiter.acquire()
    await crowd.queue("A")
    await crowd.clock.run(0.1)

    assert crowd.tasks["A"].result() == 0.1
