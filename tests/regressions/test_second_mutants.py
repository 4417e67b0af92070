"""Defects found by the second attack: number 39, changes of the code that no test noticed."""

from __future__ import annotations

import asyncio
from datetime import datetime
from time import monotonic_ns
from zoneinfo import ZoneInfo

import pytest
from helpers.transcripts import S

from aiorate import CalendarWindow, Limiter, TicksAccumulator, TokenBucket, WaitTooLong
from aiorate.schedulers.dimensions import Amounts, Dimensions
from aiorate.schedulers.peaks import Peaks
from aiorate.waiting.timeline import Timeline


def test_the_bound_knows_the_day_on_which_clocks_go_forward() -> None:
    """Number 39: in Berlin 30 permits passed in 23.25 h, of which the bound would have said 20 without the hours of the change."""
    begin = round(datetime(2025, 3, 29, 23, 50, tzinfo=ZoneInfo("Europe/Berlin")).timestamp())
    window = CalendarWindow("10/day", "Europe/Berlin", origin=begin * S)

    instants = []
    for _ in range(3):
        instants.append(window.peek(10, instants[-1] if instants else 0))
        window.take(10, instants[-1])

    assert instants == [0, 600 * S, 600 * S + 23 * 3_600 * S]
    assert window.bound(23 * 3_600 * S + 900 * S) == 30


def test_a_pause_outlives_its_loop_by_its_own_length() -> None:
    """Number 39: on the clock of the next loop, 3600 s ahead, a pause of 5 s would have been over, or have lasted 3605 s."""
    for ahead in (3_600 * S, -3_600 * S):
        timeline, readings = Timeline(None), [100 * S]
        timeline.follow(lambda readings=readings: readings[0])  # type: ignore[misc]
        timeline.pause(5 * S, lambda length: None)
        instant = timeline.now()

        timeline.follow(lambda readings=readings, ahead=ahead: readings[0] + ahead)  # type: ignore[misc]

        readings[0] += 4 * S
        assert timeline.paused
        assert timeline.now() == instant
        readings[0] += 2 * S
        assert not timeline.paused
        assert timeline.now() == instant + S


def test_the_record_of_peaks_does_not_grow() -> None:
    """Number 39: levels that fall with every take are all peaks; the record keeps 64 of them."""
    peaks = Peaks()

    for step in range(10_000):
        peaks.note(step, -step)

    assert len({peaks.since(step) for step in range(-1, 10_000)} - {None}) <= 64


def test_a_budget_is_scheduled_for_the_latest_of_its_dimensions() -> None:
    """Number 39: how late a request starts is what its slowest dimension says."""
    dimensions = Dimensions([TicksAccumulator("1/s", start=0), TicksAccumulator("2/s", start=0)])
    amounts = Amounts((1, 1))

    assert [dimensions.take(amounts, 10 * S) for _ in range(3)] == [0, S, 2 * S]
    assert [dimensions.take(1, 10 * S) for _ in range(2)] == [3 * S, 4 * S]


class Skipping:
    """The monotonic clock, which can be moved forward."""

    def __init__(self) -> None:
        self.ahead = 0

    def now(self) -> int:
        """The reading."""
        return monotonic_ns() + self.ahead


@pytest.mark.asyncio
async def test_the_loop_turns_after_a_long_pause_too() -> None:
    """Number 39: the next look at the loop was due an hour later, after a pause of an hour."""
    clock, turned = Skipping(), []
    limiter = Limiter(TokenBucket(10**9, burst=10**9), clock=clock)
    await limiter.acquire()
    limiter.pause(3_600)
    clock.ahead += 3_500 * S
    with pytest.raises(WaitTooLong):
        await limiter.acquire(max_wait=0)
    clock.ahead += 100 * S

    asyncio.get_running_loop().call_soon(turned.append, True)
    asked = 0
    while not turned and asked < 1_000_000:
        await limiter.acquire()
        asked += 1

    assert turned
