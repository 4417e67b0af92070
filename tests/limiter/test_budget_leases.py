"""Leases of a budget: an estimate is reserved, and what was used is settled."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from helpers.calls import Calls, left
from helpers.driving import SECOND, SteppedClock, one_loop, turns

from aiorate import Budget, CalendarWindow, Lease, SlidingWindow, TokenBucket

pytestmark = one_loop


async def test_settling_corrects_the_estimate_at_once(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """100 tokens were estimated and 40 used: the next in line is granted. 60 were estimated and 110 used: the debt is paid first."""
    await calls.queue("a", tokens=100)
    await calls.queue("b", tokens=60)
    await calls.end("a", tokens=40)
    assert ["a", "b"] == list(calls.granted)
    await calls.queue("c", tokens=10)
    await calls.end("b", tokens=110)
    await clock.run(60)
    assert {"a": 0, "b": 0, "c": 6 * SECOND} == calls.granted


async def test_settling_some_dimensions_keeps_the_others(clock: SteppedClock) -> None:
    """0 is a legal amount: a call that was answered from a cache used no tokens."""
    rows: list[tuple[dict[str, int], dict[str, int]]] = [
        ({"tokens": 0}, {"requests": 4, "tokens": 100}),
        ({"tokens": 30}, {"requests": 4, "tokens": 70}),
        ({"requests": 0, "tokens": 29}, {"requests": 5, "tokens": 71}),
        ({"requests": 3}, {"requests": 2, "tokens": 70}),
        ({}, {"requests": 4, "tokens": 70}),
    ]
    for used, after in rows:
        budget = Budget(requests=TokenBucket("1/s", 5), tokens=TokenBucket("10/s", 100), clock=clock)
        async with budget.reserve(tokens=30) as lease:
            lease.settle(**used)
        assert after == left(budget), used


async def test_the_first_of_settle_and_refund_counts(clock: SteppedClock) -> None:
    """Later ones do nothing, in the block and after it: they would give back what others have taken since."""
    calls: list[Callable[[Lease], None]] = [lambda lease: lease.settle(tokens=10), lambda lease: lease.refund()]
    for first, second in itertools.product(calls, calls):
        budget = Budget(requests=TokenBucket("1/s", 5), tokens=TokenBucket("10/s", 100), clock=clock)
        async with budget.reserve(tokens=30) as lease:
            first(lease)
            once = left(budget)
            second(lease)
            assert once == left(budget)
        second(lease)
        assert once == left(budget) == ({"requests": 4, "tokens": 90} if first is calls[0] else {"requests": 5, "tokens": 100})


async def test_an_exception_keeps_the_estimate_or_gives_it_back(clock: SteppedClock) -> None:
    """The server may have counted the call, so by default the estimate is kept. A cancellation counts as an exception."""
    default: Any
    for default, given, cancelled in itertools.product(("keep", "refund"), (None, "keep", "refund"), (False, True)):
        tokens = TokenBucket("10/s", 100)
        calls = Calls(Budget(requests=TokenBucket("1/s", 5), tokens=tokens, clock=clock, on_error=default), clock)
        await calls.queue("a", tokens=30, on_error=given)
        if cancelled:
            calls.tasks["a"].cancel()
        else:
            await calls.end("a", error=OSError("reset by peer"))
        ended = await asyncio.gather(calls.tasks["a"], return_exceptions=True)

        assert isinstance(ended[0], asyncio.CancelledError if cancelled else OSError)
        assert left(calls.budget) == ({"requests": 4, "tokens": 70} if (given or default) == "keep" else {"requests": 5, "tokens": 100})


async def test_an_unentered_or_unsettled_lease_leaves_no_record(budget: Budget, tokens: TokenBucket) -> None:
    """Entering takes the permits, and the estimate stays spent: after the block, and where the lease was entered by hand and dropped."""
    budget.reserve(tokens=30)
    assert {"requests": 5, "tokens": 100} == left(budget)
    async with budget.reserve(tokens=30):
        pass
    lease = await budget.reserve(tokens=30).__aenter__()
    del lease
    assert {"requests": 3, "tokens": 40} == left(budget)


async def test_a_lease_is_entered_once(budget: Budget, clock: SteppedClock) -> None:
    """A second task cannot enter it, even while it waits."""
    async with budget.reserve(tokens=100) as lease:
        with pytest.raises(RuntimeError, match="once"):
            await lease.__aenter__()
        twice = budget.reserve(tokens=10)
        first = asyncio.ensure_future(twice.__aenter__())
        await turns(2)
        with pytest.raises(RuntimeError, match="once"):
            await twice.__aenter__()
        await clock.run(1)

    assert first.result() is twice
    with pytest.raises(RuntimeError, match="once"):
        await lease.__aenter__()


async def test_settling_outside_the_block_is_an_error(budget: Budget) -> None:
    """Before the block nothing is reserved; after it the estimate is final, and doing nothing would hide that."""
    lease = budget.reserve(tokens=30)
    for correct in (lease.refund, lease.settle):
        with pytest.raises(RuntimeError, match="lease"):
            correct()
    async with lease:
        pass
    for correct in (lease.refund, lease.settle):
        with pytest.raises(RuntimeError, match="block"):
            correct()
    assert left(budget) == {"requests": 4, "tokens": 70}


async def test_a_bucket_credits_up_to_its_free_capacity(clock: SteppedClock) -> None:
    """40 were reserved. 3 s later 30 have flowed in, so that 10 of the unused permits fit, and 4 s later none."""
    for seconds, fits in ((3, 10), (4, 0)):
        calls = Calls(Budget(tokens=TokenBucket("10/s", burst=100), clock=clock), clock)
        await calls.queue("a", tokens=40)
        await clock.run(seconds)
        await calls.queue("b", tokens=60 + 10 * seconds)
        await calls.end("a", tokens=0)
        assert {"tokens": fits} == left(calls.budget)


async def test_a_window_forgets_exactly_the_entries_of_the_lease() -> None:
    """Forgetting the oldest entries instead would be wrong, since they leave the window first. A past window gives nothing back."""
    for window, later in ((SlidingWindow("10/10s"), 8), (CalendarWindow("10/10s", "UTC", origin=0), 10)):
        clock = SteppedClock(SECOND)
        calls = Calls(Budget(tokens=window, clock=clock), clock)
        await calls.queue("a", tokens=4)
        await clock.run(4)
        await calls.queue("b", tokens=6)
        await calls.end("b", tokens=2)

        assert {"tokens": 4} == left(calls.budget)
        await clock.run(6)
        assert {"tokens": later} == left(calls.budget)
        await calls.end("a", tokens=0)
        assert {"tokens": later} == left(calls.budget)


async def measured(rate: int, burst: int, estimate: int, used: int, takes: int) -> float:
    """The part of a limit of ``rate`` per minute that calls of ``takes`` seconds use, while more of them always wait."""
    loop, budget = asyncio.get_running_loop(), Budget(tokens=TokenBucket(f"{rate}/min", burst=burst))
    begin = loop.time() + 6 * takes + 60

    async def work() -> int:
        calls = 0
        while loop.time() < begin + 120:
            async with budget.reserve(tokens=estimate) as lease:
                calls += begin <= loop.time() < begin + 120
                await asyncio.sleep(takes)
                lease.settle(tokens=used)
        return calls

    return sum(await asyncio.gather(*(work() for _ in range(rate * takes // (30 * used) + 3)))) * used / (2 * rate)


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_the_burst_decides_how_much_is_lost() -> None:
    """What calls leave unused has to fit into the burst when they are settled: the formula and the table of ``docs/llm.md``."""

    def part(rate: int, burst: int, estimate: int, used: int, takes: int) -> float:
        return min(1.0, used / estimate * (1 + (burst - estimate) / (rate / 60 * takes)))

    page = (Path(__file__).parents[2] / "docs" / "llm.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (\d+) s \| ([\d ]+) \| (\d+) % \| (\d+) % \|$", page, flags=re.MULTILINE)
    assert ["3", "10", "30", "60"] == [row[0] for row in table]
    for takes, burst, *told in [[int(cell.replace(" ", "")) for cell in row] for row in table]:
        assert burst == ceil(200_000 / 60 * takes * (1000 / 700 - 1) + 1000)
        assert told == [round(100 * part(200_000, given, 1000, 700, takes)) for given in (20_000, 50_000)]
    for row in ((8_000, 1_500, 200, 80, 10), (30_000, 2_000, 500, 250, 3), (20_000, 6_000, 1000, 700, 30)):
        assert await measured(*row) == pytest.approx(part(*row), abs=0.05), row
