"""The rows of docs/migrating/asynciolimiter.md: asynciolimiter and aiorate, side by side in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from random import Random
from typing import Any

import asynciolimiter
import pytest
from helpers.migrating import (
    CLOSE,
    Check,
    MovingLoop,
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

PAGE = "asynciolimiter"
TEN = ("Limiter(10)", 'Limiter("10/s")')
STALL = (0.25, 0.87)


def theirs() -> Side:
    return Side(asynciolimiter)


def both(row: Row, arrivals: list[float], stall: tuple[float, float] | None = None) -> tuple[list[float], list[float]]:
    """The moments at which requests go, if the first code of each cell makes a limiter."""
    one = timeline(theirs(), row.theirs[0], "limiter.wait()", arrivals, stall)
    return one, timeline(ours(), row.ours[0], "limiter.acquire()", arrivals, stall)


def paced(row: Row) -> None:
    same_moments(*both(row, a_crowd(20)))
    one, other = both(row, a_crowd(1, 5, 5, 5))
    assert [0, 5, 5.1, 5.2] == pytest.approx(one, abs=CLOSE)
    assert [0, 5, 5, 5.1] == pytest.approx(other, abs=CLOSE)


def catching_up(row: Row) -> None:
    same_moments(*both(row, a_crowd(20, 5, 5, 5)))
    one, other = both(row, a_crowd(20), STALL)
    for moments_ in (one, other):
        assert 5 == sum(moment == pytest.approx(STALL[1], abs=1e-3) for moment in moments_)
    same_moments(other, one, later=0.1)


def bucket(row: Row) -> None:
    """Also where requests come at any time, and the loop stalls."""
    same_moments(*both(row, a_crowd(50, 9, 9, 9)))
    for seed in range(20):
        random = Random(seed)
        arrivals = sorted(random.uniform(0, 3) for _ in range(60))
        same_moments(*both(row, arrivals, STALL if seed % 2 else None))


def strict(row: Row) -> None:
    for stall in (None, STALL):
        same_moments(*both(row, a_crowd(20, 5, 5, 5), stall))


def waiting(row: Row) -> None:
    arrivals = a_crowd(20)
    same_moments(timeline(theirs(), TEN[0], row.theirs[0], arrivals), timeline(ours(), TEN[1], row.ours[0], arrivals))


def together(main: Callable[[Row, Side, Side], Coroutine[Any, Any, None]]) -> Check:
    """Both limiters stand in one loop, ten per second, and the first request of each has gone."""

    def check(row: Row) -> None:
        async def run() -> None:
            one, other = theirs(), ours()
            one.names["limiter"], other.names["limiter"] = one.call(TEN[0]), other.call(TEN[1])
            await one.run("limiter.wait()")
            await other.run("limiter.acquire()")
            await main(row, one, other)
            one.close()

        in_virtual_time(run)

    return check


def line(side: Side, size: int = 3) -> list[asyncio.Future[Any]]:
    """That many tasks that wait."""
    limiter = side.names["limiter"]
    return [asyncio.ensure_future((limiter.wait if hasattr(limiter, "wait") else limiter.acquire)()) for _ in range(size)]


async def done_at(tasks: list[asyncio.Future[Any]]) -> list[float]:
    """Seconds from now until each was done."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def end(task: asyncio.Future[Any]) -> float:
        await asyncio.wait([task])
        return loop.time() - began

    return list(await asyncio.gather(*map(end, tasks)))


@together
async def wrapping(row: Row, one: Side, other: Side) -> None:
    async def job() -> str:
        return "done"

    one.names["job"] = other.names["job"] = job
    block, decorator = row.ours
    other.call(f"{decorator}\nasync def limited(): return await job()")
    wrapped = row.theirs[0].removeprefix("await ")
    assert "done" == await one.run(wrapped)
    assert "done" == await other.run("limited()")
    for side, call in ((one, wrapped), (other, block), (other, "limited()")):
        side.call("limiter.reset()")
        assert [0.0, 0.1, 0.2, 0.3] == pytest.approx(await moments(side, call, a_crowd(4)), abs=CLOSE)


@together
async def new_rate(row: Row, one: Side, other: Side) -> None:
    """The request that is next keeps its time with asynciolimiter; from then on, both have the new rate."""
    first, second = line(one), line(other)
    await asyncio.sleep(0.02)
    one.call(row.theirs[0])
    other.call(row.ours[0])
    old, new = await asyncio.gather(done_at(first), done_at(second))
    assert [0.08, 0.13, 0.18] == pytest.approx(old, abs=CLOSE)
    assert [0.03, 0.08, 0.13] == pytest.approx(new, abs=CLOSE)


@together
async def cancelling(row: Row, one: Side, other: Side) -> None:
    """Requests in line are cancelled, and later ones come as before."""
    first, second = line(one), line(other)
    await asyncio.sleep(0)
    one.call(row.theirs[0])
    for task in second:
        other.names["task"] = task
        other.call(row.ours[0])
    await asyncio.wait([*first, *second])
    assert all(task.cancelled() for task in (*first, *second))
    old, new = await asyncio.gather(done_at(line(one)), done_at(line(other)))
    same_moments(old, new)


@together
async def closing(row: Row, one: Side, other: Side) -> None:
    first, second = line(one), line(other)
    await asyncio.sleep(0)
    one.call(row.theirs[0])
    await other.run(row.ours[0])
    await asyncio.wait([*first, *second])
    assert all(task.cancelled() for task in first)
    assert all(isinstance(task.exception(), other.call(row.ours[1])) for task in second)


@together
async def resetting(row: Row, one: Side, other: Side) -> None:
    """Both are as new; asynciolimiter cancels the line, and aiorate serves it."""
    first, second = line(one), line(other)
    await asyncio.sleep(0.02)
    one.call(row.theirs[0])
    other.call(row.ours[0])
    assert [0, 0.1, 0.2] == pytest.approx(await done_at(second), abs=CLOSE)
    assert all(task.cancelled() for task in first)
    assert [0, 0.1, 0.2] == pytest.approx(await done_at(line(one)), abs=CLOSE)


@together
async def letting_all_through(row: Row, one: Side, other: Side) -> None:
    """All that wait go at once; then both limit again."""
    first, second = line(one, 50), line(other, 50)
    await asyncio.sleep(0)
    one.call(row.theirs[0])
    other.call(row.ours[0])
    assert [0] * 100 == pytest.approx(await done_at([*first, *second]), abs=CLOSE)
    one.call("limiter.reset()")
    other.call(row.ours[1])
    for side in (one, other):
        done = await done_at(line(side, 6))
        assert [0.1] * 3 == pytest.approx([after - before for before, after in pairwise(done[2:])], abs=CLOSE)


PAIRS: dict[str, Check] = {
    "`Limiter(10)`": paced,
    "`Limiter(10, max_burst=5)`": catching_up,
    "`LeakyBucketLimiter(10, capacity=20)`": bucket,
    "`StrictLimiter(10)`": strict,
    "`await limiter.wait()`": waiting,
    "`await limiter.wrap(job())`": wrapping,
    "`limiter.rate = 20`": new_rate,
    "`limiter.cancel()`": cancelling,
    "`limiter.close()`": closing,
    "`limiter.reset()`": resetting,
    "`limiter.breach()`": letting_all_through,
}


@each_row(PAGE)
def test_row(row: Row) -> None:
    """The two cells do the same, as far as the row says."""
    PAIRS[row.left](row)


def test_every_row_is_run() -> None:
    """A row without a check, or a check without a row, is a mistake."""
    check_pairs(PAGE, PAIRS)


# What the page says below the table.


def test_a_cancelled_grant_goes_to_the_next_request() -> None:
    """With asynciolimiter it is lost: of five permits after a stall, four are used."""

    async def main() -> None:
        used = []
        for side, made, call in (
            (theirs(), "Limiter(10, max_burst=5)", "limiter.wait()"),
            (ours(), 'Limiter(BurstCompensation("10/s"), catch_up=0.4)', "limiter.acquire()"),
        ):
            side.names["limiter"] = side.call(made)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, MovingLoop)
            loop.stall(*STALL)

            waiters: list[asyncio.Future[Any]] = []

            async def fourth(side: Side = side, call: str = call, waiters: list[asyncio.Future[Any]] = waiters) -> None:
                await side.run(call)
                waiters[4].cancel()  # it was granted together with the fourth, and did not run yet

            waiters += [*line(side, 3), asyncio.ensure_future(fourth())]
            await asyncio.sleep(0)
            waiters += line(side, 8)
            await asyncio.sleep(STALL[1] + 0.005)
            used.append(sum(task.done() and not task.cancelled() for task in waiters))
            for task in waiters:
                task.cancel()
            side.close()
        assert [7, 8] == used

    in_virtual_time(main)


def test_a_limiter_works_in_the_next_loop() -> None:
    """asynciolimiter stays locked if its timer was set as the first loop ended."""
    one, other = theirs().call(TEN[0]), ours().call(TEN[1])

    async def first() -> None:
        await one.wait()
        await other.acquire()

    async def second() -> None:
        await asyncio.wait_for(other.acquire(), 60)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.wait(), 60)
        one.close()

    in_virtual_time(first)
    in_virtual_time(second)
