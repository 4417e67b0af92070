"""The rows of docs/migrating/aiolimiter.md: aiolimiter and aiorate, side by side in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import aiolimiter
import pytest
from helpers.migrating import (
    CLOSE,
    Check,
    Row,
    Side,
    a_crowd,
    check_pairs,
    each_row,
    in_virtual_time,
    moments,
    ours,
    same_moments,
    timeline,
)

PAGE = "aiolimiter"
TEN = ("AsyncLimiter(10, 1)", 'Limiter(TokenBucket("10/s", burst=10))')
CROWD = a_crowd(25, 1.55, 8, 8.01, 8.02)


def theirs() -> Side:
    return Side(aiolimiter)


def made(arrivals: list[float] = CROWD, call: str = "limiter.acquire()") -> Check:
    """Both cells make a limiter, and requests go at the same moments."""

    def check(row: Row) -> None:
        same_moments(timeline(theirs(), row.theirs[0], call, arrivals), timeline(ours(), row.ours[0], call, arrivals))

    return check


def the_same(arrivals: list[float] = CROWD) -> Check:
    """The left cell is a call, which aiorate has too."""

    def check(row: Row) -> None:
        assert row.right.startswith("the same")
        same_moments(timeline(theirs(), TEN[0], row.theirs[0], arrivals), timeline(ours(), TEN[1], row.theirs[0], arrivals))

    return check


def together(main: Callable[[Row, Side, Side], Coroutine[Any, Any, None]]) -> Check:
    """Both limiters stand in one loop: ten at once, ten per second."""

    def check(row: Row) -> None:
        async def run() -> None:
            one, other = theirs(), ours()
            one.names["limiter"], other.names["limiter"] = one.call(TEN[0]), other.call(TEN[1])
            await main(row, one, other)

        in_virtual_time(run)

    return check


def halves(row: Row) -> None:
    """Half a permit is one of twice as many."""
    call, limiter, whole = row.theirs[0], row.ours[0], row.ours[1]
    same_moments(timeline(theirs(), TEN[0], call, CROWD * 2), timeline(ours(), limiter, whole, CROWD * 2))


@together
async def too_many(row: Row, one: Side, other: Side) -> None:
    for side in (one, other):
        with pytest.raises(ValueError, match=r"permits|Amount"):
            await side.run(row.theirs[0])


@together
async def taken_if_there(row: Row, one: Side, other: Side) -> None:
    question, then = row.theirs
    for _ in range(6):
        free = one.call(question)
        if free:
            await one.run(f"limiter.{then}")
        assert other.call(row.ours[0]) is free
        await asyncio.sleep(0.05)


@together
async def looked_at(row: Row, one: Side, other: Side) -> None:
    answers = []
    for _ in range(8):
        answers.append(one.call(row.theirs[0]))
        assert other.call(row.ours[0]) is answers[-1]
        for side in (one, other):
            if answers[-1]:
                await side.run("limiter.acquire(3)")
        await asyncio.sleep(0.05)
    assert set(answers) == {True, False}


@together
async def too_long(row: Row, one: Side, other: Side) -> None:
    """Both fail with a TimeoutError where the wait would be longer, and grant where it is shorter."""
    loop = asyncio.get_running_loop()
    for side, code, patience in ((one, row.theirs[0], 2), (other, row.ours[0], 0)):
        crowd = [asyncio.ensure_future(side.names["limiter"].acquire()) for _ in range(35)]  # the last waits for 2.5 s
        await asyncio.sleep(0)
        asked = loop.time()
        with pytest.raises(TimeoutError) as error:
            await side.run(code)
        assert patience == pytest.approx(loop.time() - asked, abs=CLOSE)
        await asyncio.gather(*crowd)
        await side.run(code)
    assert isinstance(error.value, other.call(row.ours[1]))


@together
async def looked_up(row: Row, one: Side, other: Side) -> None:
    rate, period = (one.call(code) for code in row.theirs)
    assert (rate, period * 1e9) == tuple(other.call(code) for code in row.ours)


@together
async def another_rate(row: Row, one: Side, other: Side) -> None:
    """A new limiter begins full; set_rate() gives nothing away, and both go on at 20/s."""
    loop = asyncio.get_running_loop()
    await asyncio.gather(*(side.names["limiter"].acquire() for side in (one, other) for _ in range(10)))
    one.names["limiter"] = one.call(row.theirs[0])
    waiting = [asyncio.ensure_future(other.names["limiter"].acquire()) for _ in range(20)]
    await asyncio.sleep(0)
    other.call(row.ours[0])
    began = loop.time()

    assert [0.0] * 20 + [0.05] == pytest.approx(await moments(one, "limiter.acquire()", a_crowd(21)), abs=CLOSE)
    assert not any(task.done() for task in waiting[2:])
    await asyncio.gather(*waiting)
    assert 1.0 == pytest.approx(loop.time() - began, abs=CLOSE)


PAIRS: dict[str, Check] = {
    "`AsyncLimiter(10, 1)`": made(),
    "`AsyncLimiter(100)`, which is per minute": made(a_crowd(130, 200, 200.5)),
    "`AsyncLimiter(1, 0.125)`, an even pace": made(a_crowd(10, 5, 5, 5.2)),
    "`async with limiter:`": the_same(),
    "`await limiter.acquire(3)`": the_same(a_crowd(9, 5, 5, 5, 5, 5.1)),
    "`await limiter.acquire(0.5)`": halves,
    "`await limiter.acquire(11)`, which raises ValueError": too_many,
    "`limiter.has_capacity(3)`, then `acquire(3)`": taken_if_there,
    "`limiter.has_capacity(3)` without taking": looked_at,
    "`asyncio.wait_for(limiter.acquire(), 2)`": too_long,
    "`limiter.max_rate`, `limiter.time_period`": looked_up,
    "a new `AsyncLimiter(20, 1)` for another rate, which begins full": another_rate,
}


@each_row(PAGE)
def test_row(row: Row) -> None:
    """The two cells do the same."""
    PAIRS[row.left](row)


def test_every_row_is_run() -> None:
    """A row without a check, or a check without a row, is a mistake."""
    check_pairs(PAGE, PAIRS)


# What the page says below the table.


def test_aiolimiter_serves_small_requests_first() -> None:
    """aiorate serves in order of arrival."""

    async def main() -> None:
        order = []
        for side, made in ((theirs(), TEN[0]), (ours(), TEN[1])):
            limiter = side.call(made)
            await limiter.acquire(10)
            done: list[int] = []

            async def one(permits: int, limiter: Any = limiter, done: list[int] = done) -> None:
                await limiter.acquire(permits)
                done.append(permits)

            await asyncio.gather(*(one(permits) for permits in (5, 1, 2, 1)))
            order.append(done)
        assert [[1, 1, 2, 5], [5, 1, 2, 1]] == order

    in_virtual_time(main)


def test_a_limiter_may_serve_one_loop_after_the_other() -> None:
    """An AsyncLimiter warns."""
    one, other = theirs().call(TEN[0]), ours().call(TEN[1])

    async def all_ten() -> None:
        for limiter in (one, other):
            await limiter.acquire(10)

    async def again() -> None:
        assert not other.try_acquire(10)
        await other.acquire()
        with pytest.warns(RuntimeWarning, match="re-used across loops"):
            await one.acquire()

    in_virtual_time(all_ten)
    in_virtual_time(again)
