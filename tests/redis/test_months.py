"""A quota of calendar months that processes share, in virtual time: the real server is told what the loop's clock says."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from helpers.stores import EPOCH_SECONDS, Process, RealServer, now

from aiorate import CalendarWindow, WaitTooLong

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

DAY = 86_400


def near(seconds: float) -> Any:
    return pytest.approx(seconds, abs=0.02)


def at(iso: str) -> float:
    """The skew with which a server's clock reads that time of UTC now."""
    return datetime.fromisoformat(iso).replace(tzinfo=UTC).timestamp() - EPOCH_SECONDS - now()


async def stop(*processes: Process) -> None:
    await stop(*processes)


@pytest.mark.parametrize(
    ("rate", "ends", "following"),
    [
        ("3/month", "2028-01-31T23:00", 29 * DAY),
        ("3/month", "2027-01-31T23:00", 28 * DAY),
        ("3/month", "2027-02-28T23:00", 31 * DAY - 3_600),
        ("3/month", "2027-12-31T23:00", 31 * DAY),
        ("3/2months", "2027-12-31T23:00", 60 * DAY),
        ("3/year", "2027-12-31T23:00", 366 * DAY),
    ],
)
async def test_a_month_is_as_long_as_the_calendar_makes_it(store: RealServer, rate: str, ends: str, following: float) -> None:
    """In Berlin, over the last minute of one window, for two processes; the first of them ends meanwhile."""
    skew = at(ends) - 60
    process, other = (Process(store, CalendarWindow(rate, "Europe/Berlin"), skew=skew) for _ in range(2))
    await asyncio.gather(*process.ask(3))
    with pytest.raises(WaitTooLong):
        await other.limiter.acquire(max_wait=0)
    assert near(60) == process.limiter.delay() == other.limiter.delay()

    await stop(process)
    again = Process(store, CalendarWindow(rate, "Europe/Berlin"), skew=skew)
    await asyncio.gather(*again.ask(2), *other.ask(1))
    with pytest.raises(WaitTooLong):
        await again.limiter.acquire(max_wait=0)

    assert [near(60)] * 3 == sorted(again.granted + other.granted)
    assert near(following) == again.limiter.delay()
    await stop(again, other)


@pytest.mark.parametrize("minutes", range(0, 5 * 24 * 60, 611))
async def test_the_first_days_of_march_know_their_month(store: RealServer, minutes: int) -> None:
    """The longest month is longer than all of February."""
    process = Process(store, CalendarWindow("3/month", "UTC"), skew=at("2027-03-01T00:00") + minutes * 60)

    await asyncio.gather(*process.ask(3))
    with pytest.raises(WaitTooLong):
        await process.limiter.acquire(max_wait=0)

    assert near(31 * DAY - minutes * 60) == process.limiter.delay()
    await stop(process)


async def test_a_charge_and_a_new_number_count_by_months(store: RealServer) -> None:
    """A debt is paid by the following months; a rate of a month is read as such."""
    process = Process(store, CalendarWindow("10/month", "UTC"), skew=at("2028-01-31T23:59"))
    await asyncio.gather(*process.ask(4))
    process.limiter.charge(10)
    await asyncio.sleep(1)

    with pytest.raises(WaitTooLong):
        await process.limiter.acquire(7, max_wait=0)
    assert near(59 + 29 * DAY) == process.limiter.delay(7)

    process.limiter.set_rate("20/month")
    await asyncio.sleep(1)
    assert str(process.limiter.rate) == "20/month"
    assert process.limiter.delay(6) < 1
    await stop(process)


@pytest.mark.parametrize("origin", [0, 4 * 10**18])
async def test_the_clock_of_the_client_may_be_wrong(store: RealServer, origin: int) -> None:
    """By decades."""
    process = Process(store, CalendarWindow("3/month", "UTC", origin=origin), skew=at("2027-02-15T00:00"))
    await asyncio.gather(*process.ask(3))
    with pytest.raises(WaitTooLong):
        await process.limiter.acquire(max_wait=0)

    assert near(14 * DAY) == process.limiter.delay()
    await stop(process)


@pytest.mark.parametrize("seed", range(4))
async def test_no_month_has_more_than_its_permits(store: RealServer, seed: int) -> None:
    """Two years of requests that do not wait, of processes that come and go, refund and are charged; dates are those of Berlin."""
    random, used, skew = Random(seed), Counter[tuple[int, int]](), at("2026-11-20T00:00")
    most, months = random.choice([5, 40]), random.choice([1, 2, 6])
    zone = ZoneInfo("Europe/Berlin")

    def window() -> tuple[int, int]:
        day = datetime.fromtimestamp(EPOCH_SECONDS + now() + skew, zone)
        return day.year, (day.month - 1) // months

    def make() -> Process:
        return Process(store, CalendarWindow(f"{most}/{months}months", "Europe/Berlin"), skew=skew, lease=random.choice([0, 3600]))

    processes = [make(), make()]
    restarts = 0
    while now() < 2 * 366 * DAY:
        await asyncio.sleep(random.choice([0.1, 3600, DAY, 9 * DAY]) * random.random())
        process, permits = random.choice(processes), random.randint(1, 3)
        if random.random() < 0.05:
            processes.remove(process)
            await process.stop()
            process = make()
            processes.append(process)
            restarts += 1
        place = window()
        try:
            await process.limiter.acquire(permits, max_wait=0)
        except WaitTooLong:
            continue
        if window() == place:
            used[place] += permits
        if random.random() < 0.1 and window() == place:
            process.limiter.refund(permits)
            used[place] -= permits

    assert restarts
    assert len(used) >= 20 // months
    assert max(used.values()) <= most
    await stop(*processes)
