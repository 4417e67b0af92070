"""Under trio: changes that concern waiting requests, and errors in schedulers and clocks."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import trio
import trio.testing
from helpers.driving import SECOND
from helpers.under_trio import Crowd, now, run, settled, tenths

import aiorate
from aiorate.testing import ManualClock

MS = SECOND // 1000


# Changes, which apply to waiting requests too.


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda limiter: limiter.pause(1), [1.1, 1.2, 1.3]),
        (lambda limiter: (limiter.pause(1), limiter.resume()), [0.1, 0.2, 0.3]),
        (lambda limiter: limiter.set_rate("20/s"), [0.05, 0.1, 0.15]),
        (lambda limiter: limiter.set_rate("5/s"), [0.2, 0.4, 0.6]),
        (lambda limiter: limiter.charge(2), [0.3, 0.4, 0.5]),
        (lambda limiter: limiter.refund(1), [0, 0.1, 0.2]),
        (lambda limiter: (limiter.charge(3), limiter.refund(2)), [0.2, 0.3, 0.4]),
        (lambda limiter: limiter.reset(), [0, 0.1, 0.2]),
        (lambda limiter: limiter.apply("5,1.0,restart"), [0.2, 0.4, 0.6]),
    ],
)
@pytest.mark.parametrize("task", ["another task", "a task that comes back from a timer"])
def test_a_change_applies_to_waiting_requests(change: Callable[[aiorate.Limiter], object], expected: list[float], task: str) -> None:
    """The task that watches the timer has to look at the clock again."""

    async def main() -> list[float]:
        async with trio.open_nursery() as nursery:
            limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
            await limiter.acquire()
            crowd = Crowd(limiter, nursery)
            await crowd.queue("ABC")
            if task == "another task":
                nursery.start_soon(trio.lowlevel.checkpoint)
            change(limiter)
        return [crowd.granted[name] / SECOND for name in "ABC"]

    assert expected == run(main)


def test_a_line_stands_still_until_it_is_started() -> None:
    """No timer is set meanwhile; afterwards the line goes on from where it stopped."""

    async def main() -> dict[str, int]:
        async with trio.open_nursery() as nursery:
            limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
            await limiter.acquire()
            crowd = Crowd(limiter, nursery)
            await crowd.queue("A")
            await trio.sleep(0.05)
            limiter.apply("10,1.0,stop")
            await crowd.queue("BC")
            assert (math.inf, math.inf) == (limiter.delay(), trio.lowlevel.current_statistics().seconds_to_next_deadline)
            crowd.cancel("B")
            await trio.sleep(10)
            limiter.apply("10,1.0,start")
        return crowd.granted

    assert {"A": 10_100 * MS, "C": 10_200 * MS} == run(main)


def test_a_fired_timer_is_not_watched_again() -> None:
    """Otherwise a request that comes while the limiter is stopped would look at the clock for ever, and no time would pass."""

    async def main() -> dict[str, int]:
        async with trio.open_nursery() as nursery:
            limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
            crowd = Crowd(limiter, nursery)
            await crowd.queue("AB")
            await trio.sleep(1)
            limiter.apply("10,1.0,stop")
            await crowd.queue("C")
            await trio.sleep(1)
            limiter.apply("10,1.0,start")
        return crowd.granted

    assert tenths(A=0, B=1, C=20) == run(main)


def test_pauses_in_a_row_end_at_the_later_end() -> None:
    """The task that watches the timer sleeps through all of them."""

    async def main() -> dict[str, int]:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1)), nursery)
            crowd.limiter.pause(1)
            await crowd.queue("AB")
            await trio.sleep(0.5)
            crowd.limiter.pause(1)
            crowd.limiter.pause(0.1)
        return crowd.granted

    assert tenths(A=15, B=16) == run(main)


def test_a_lower_rate_fails_requests_that_are_too_large() -> None:
    """Among them the first in line, whose task watches the timer."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter(aiorate.SlidingWindow("3/s")), nursery)
            await crowd.limiter.acquire(3)
            await crowd.queue("A", 3)
            await crowd.queue("B", 2)
            crowd.limiter.set_rate("2/s")
        assert isinstance(crowd.failed["A"], ValueError)
        assert {"B": SECOND} == crowd.granted

    run(main)


def test_closing_fails_each_waiter_with_a_separate_error() -> None:
    """A single instance raised in many tasks would collect the frames of them all."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            limiter = aiorate.Limiter("10/s")
            await limiter.acquire()
            crowd = Crowd(limiter, nursery)
            await crowd.queue("ABC")
            await limiter.aclose()
            await settled()
            assert math.inf == trio.lowlevel.current_statistics().seconds_to_next_deadline
            crowd.ask("D")
        assert 0 == now()
        assert set("ABCD") == set(crowd.failed)
        assert all(isinstance(error, aiorate.LimiterClosed) for error in crowd.failed.values())
        assert 4 == len(set(map(id, crowd.failed.values())))

        limiter.apply("10,1.0,start")
        assert await limiter.acquire() == 0.1

    run(main)


# Errors in schedulers and clocks.


class Flawed(aiorate.TokenBucket):
    """A bucket that can be told to fail."""

    fails = False

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if self.fails:
            raise ArithmeticError("flawed")
        return super().take(permits, now, since)


@pytest.mark.parametrize("when", ["at the next instant", "at a change"])
def test_a_scheduler_error_fails_waiters_not_the_limiter(when: str) -> None:
    """Otherwise it would be raised in the task that watches the timer, and leave the others waiting for ever."""

    async def main() -> None:
        scheduler = Flawed("10/s", burst=1)
        limiter = aiorate.Limiter(scheduler)
        await limiter.acquire()
        errors: list[BaseException] = []

        async def one() -> None:
            try:
                await limiter.acquire()
            except ArithmeticError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
            await settled()
            scheduler.fails = True
            if when == "at a change":
                limiter.refund(1)
        assert (3, SECOND // 10 * (when != "at a change")) == (len(set(map(id, errors))), now())
        scheduler.fails = False
        assert (0, math.inf) == (limiter.statistics().waiting, trio.lowlevel.current_statistics().seconds_to_next_deadline)
        await limiter.acquire()
        assert await limiter.acquire() == 0.1

    run(main)


@pytest.mark.parametrize("timers", [False, True])
def test_a_clock_that_breaks_fails_the_waiters(timers: bool) -> None:
    """As an error in a scheduler does."""

    class Broken(ManualClock if timers else object):  # type: ignore[misc]
        breaks = False

        def now(self) -> int:
            if self.breaks:
                raise OSError("no clock")
            return super().now() if timers else round(trio.current_time() * SECOND)

    async def main() -> None:
        clock = Broken()
        limiter = aiorate.Limiter("10/s", clock=clock)
        await limiter.acquire()
        errors = []

        async def one() -> None:
            try:
                await limiter.acquire()
            except OSError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
            await settled()
            clock.breaks = True
            if timers:
                clock.advance(1)
        clock.breaks = False
        assert (3, 0) == (len(errors), limiter.statistics().waiting)

    run(main)


def test_an_error_in_a_callback_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """Trio ends the run for an error in a callback. asyncio logs it and goes on, and so does aiorate."""

    async def main() -> None:
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=10))
        await limiter.acquire()
        assert limiter._dispatcher.loop is not None
        limiter._dispatcher.loop.call_soon(lambda: print(1 // 0))
        await settled()
        await limiter.acquire()

    run(main)

    assert {"aiorate"} >= {record.name for record in caplog.records}
    assert caplog.records
