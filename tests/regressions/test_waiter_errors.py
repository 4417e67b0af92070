"""Each waiter gets a separate error, and the limiter stays usable."""

from __future__ import annotations

import asyncio
import traceback

import pytest
from helpers.driving import SECOND, Crowd, one_loop, turns
from helpers.strategies import EACH

import aiorate
from aiorate.testing import ManualClock


def entries(error: BaseException) -> int:
    return len(traceback.extract_tb(error.__traceback__))


@pytest.mark.asyncio
@pytest.mark.parametrize("strategy", EACH)
async def test_each_waiter_of_a_closed_limiter_gets_a_separate_error(strategy: str) -> None:
    """One instance was raised in 1000 tasks. Its traceback grew to 2000 entries, which kept all their frames alive."""
    limiter = aiorate.Limiter(EACH[strategy](), clock=ManualClock())
    while limiter.try_acquire():
        pass
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(100)]
    await turns(3)

    await limiter.aclose()
    errors = await asyncio.gather(*tasks, return_exceptions=True)

    assert {aiorate.LimiterClosed} == {type(error) for error in errors}
    assert 1 == len({str(error) for error in errors})
    assert 100 == len({id(error) for error in errors})
    assert all(entries(error) < 5 for error in errors if isinstance(error, BaseException))


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
    assert not scheduler.receipts
