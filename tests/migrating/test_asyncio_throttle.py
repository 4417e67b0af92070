"""The rows of docs/migrating/asyncio_throttle.md: asyncio-throttle and aiorate, side by side in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import asyncio_throttle
import pytest
from helpers.migrating import CLOSE, Check, Row, Side, a_crowd, check_pairs, each_row, in_virtual_time, ours, same_moments, timeline

PAGE = "asyncio_throttle"
TEN = ("Throttler(rate_limit=10)", 'Limiter(SlidingWindow("10/s"))')
POLL = 0.01 + CLOSE  # a Throttler asks its log that often
CROWD = a_crowd(10, *[0.5] * 3, *[5] * 12)


@pytest.fixture(autouse=True)
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Throttler reads the clock of the loop instead of the machine's."""
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr(asyncio_throttle.throttler, "time", clock)


def theirs() -> Side:
    return Side(asyncio_throttle)


def made(arrivals: list[float], poll: float = POLL) -> Check:
    """Both cells make a limiter, and requests go at the same moments, or as late as polling makes them."""

    def check(row: Row) -> None:
        one = timeline(theirs(), row.theirs[0], "throttler.acquire()", arrivals)
        same_moments(one, timeline(ours(), row.ours[0], "limiter.acquire()", arrivals), later=poll)

    return check


def called(row: Row) -> None:
    """Both cells wait for a limiter."""
    one = timeline(theirs(), TEN[0], row.theirs[0], CROWD)
    same_moments(one, timeline(ours(), TEN[1], row.ours[0], CROWD), later=POLL)


def in_a_loop(after: int, theirs_and_ours: Callable[[Row], tuple[str, str]]) -> Check:
    """Ten requests go, then the code of the cells runs, and then as many of fifteen more go at once."""

    def check(row: Row) -> None:
        async def run() -> None:
            one, other = theirs(), ours()
            one.names["throttler"], other.names["limiter"] = one.call(TEN[0]), other.call(TEN[1])
            for side, name, code in zip((one, other), ("throttler", "limiter"), theirs_and_ours(row), strict=True):
                await asyncio.gather(*(side.run(f"{name}.acquire()") for _ in range(10)))
                side.call(code)
                tasks = [asyncio.ensure_future(side.run(f"{name}.acquire()")) for _ in range(15)]
                await asyncio.sleep(0.005)
                assert after == sum(task.done() for task in tasks)
                await asyncio.gather(*tasks)

        in_virtual_time(run)

    return check


def too_long(row: Row) -> None:
    """Both fail with a TimeoutError: one after the time, the other at once."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        one, other = theirs(), ours()
        one.names["throttler"], other.names["limiter"] = one.call(TEN[0]), other.call(TEN[1])
        for side, name, code, patience in ((one, "throttler", row.theirs[0], 0.5), (other, "limiter", row.ours[0], 0)):
            await asyncio.gather(*(side.run(f"{name}.acquire()") for _ in range(10)))
            asked = loop.time()
            with pytest.raises(TimeoutError) as error:
                await side.run(code)
            assert patience == pytest.approx(loop.time() - asked, abs=CLOSE)
            await asyncio.sleep(0.6)
            await side.run(code)
        assert isinstance(error.value, other.call(row.ours[1]))

    in_virtual_time(run)


PAIRS: dict[str, Check] = {
    "`Throttler(rate_limit=10)`": made(CROWD),
    "`Throttler(rate_limit=10, period=60)`": made(a_crowd(10, 30, 90, 90)),
    "`Throttler(rate_limit=1, period=0.1)`, an even pace": made([0, 0.5, 0.55, 2]),
    "`Throttler(rate_limit=10, retry_interval=0.5)`": made(a_crowd(12), 0.5 + CLOSE),
    "`async with throttler:`": called,
    "`await throttler.acquire()`": called,
    "`throttler.rate_limit = 20`": in_a_loop(10, lambda row: (row.theirs[0], row.ours[0])),
    "`throttler.flush()`": in_a_loop(0, lambda row: (row.theirs[0], "pass")),
    "`asyncio.wait_for(throttler.acquire(), 0.5)`": too_long,
}


@each_row(PAGE)
def test_row(row: Row) -> None:
    """The two cells do the same, as far as the row says."""
    PAIRS[row.left](row)


def test_every_row_is_run() -> None:
    """A row without a check, or a check without a row, is a mistake."""
    check_pairs(PAGE, PAIRS)


# What the page says below the table.


def test_a_newcomer_overtakes_those_that_sleep() -> None:
    """With aiorate it stands in line."""

    async def main() -> None:
        order = []
        for side, made in ((theirs(), "Throttler(rate_limit=1)"), (ours(), 'Limiter(SlidingWindow("1/s"))')):
            limiter = side.call(made)
            done: list[str] = []

            async def one(name: str, at: float, limiter: Any = limiter, done: list[str] = done) -> None:
                await asyncio.sleep(at)
                await limiter.acquire()
                done.append(name)

            await asyncio.gather(one("first", 0), one("second", 0.497), one("newcomer", 1.003))
            order.append(done)
        assert [["first", "newcomer", "second"], ["first", "second", "newcomer"]] == order

    in_virtual_time(main)


def test_each_task_that_waits_polls_a_hundred_times_a_second() -> None:
    """A thousand of them wake 100 000 times."""

    async def main() -> None:
        flushed = []

        class Counted(asyncio_throttle.Throttler):
            def flush(self) -> None:
                flushed.append(1)
                super().flush()

        throttler = Counted(rate_limit=10, period=1.0)
        tasks = [asyncio.ensure_future(throttler.acquire()) for _ in range(10 + 20)]
        await asyncio.sleep(0.995)
        assert 1950 < len(flushed) < 2050
        for task in tasks:
            task.cancel()

    in_virtual_time(main)
