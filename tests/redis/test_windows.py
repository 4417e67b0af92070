"""A CalendarWindow as the limit of a RedisLimiter, in virtual time: the real server is told what the loop's clock says."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from helpers.stores import EPOCH_SECONDS, Process, RealServer, now, stop

from aiorate import CalendarWindow, WaitTooLong

pytestmark = [pytest.mark.asyncio(loop_factories=["virtual"]), pytest.mark.usefixtures("stopped")]


def near(seconds: float) -> Any:
    return pytest.approx(seconds, abs=0.02)


def at(iso: str) -> float:
    """The skew with which a server's clock reads that time of UTC now."""
    return datetime.fromisoformat(iso).replace(tzinfo=UTC).timestamp() - EPOCH_SECONDS - now()


def by_window(processes: list[Process], period: float) -> list[int]:
    """How many permits each window of the server's clock had."""
    counts = Counter(int((EPOCH_SECONDS + instant) // period) for process in processes for instant in process.granted)
    return [counts[window] for window in sorted(counts)]


async def test_each_window_has_its_permits_at_once(store: RealServer) -> None:
    process = Process(store, CalendarWindow("3/10s", "UTC"))
    await asyncio.gather(*process.ask(8))

    assert [near(instant) for instant in (0, 0, 0, 10, 10, 10, 20, 20)] == process.granted


async def test_a_permit_that_comes_after_its_window_is_not_used(store: RealServer) -> None:
    """The store assigned it 0.1 s before the edge, and the answer came 0.1 s after it: the next window belongs to others by then."""
    far, near = Process(store, CalendarWindow("3/10s", "UTC"), latency=0.2), Process(store, CalendarWindow("3/10s", "UTC"))
    await near.one()
    await asyncio.sleep(9.7 - now())
    tasks = far.ask()
    await asyncio.sleep(0.301)
    await asyncio.gather(*near.ask(3))
    assert pytest.approx(10.001, abs=1e-3) == now()
    await asyncio.wait(tasks)

    assert pytest.approx(20.5, abs=0.5) == far.granted[0]


async def test_processes_have_equal_parts_of_a_window_however_far(store: RealServer) -> None:
    """Those that wait have seats in the next window. One that is killed costs its part of one window, and no more.

    No window has more than its permits, though an answer that takes long says less well when a window ends.
    """
    processes = [Process(store, CalendarWindow("100/2s", "UTC"), latency=latency) for latency in (0.0, 0.01, 0.03)]
    for process in processes:
        process.load(100)
    await asyncio.sleep(2 - now() % 2 + 2)
    began = now()
    await asyncio.sleep(20)
    parts = [process.within(began, began + 20) for process in processes]
    assert sum(parts) >= 990
    assert max(parts) - min(parts) <= 0.1 * sum(parts)
    assert sum(process.client.calls for process in processes) <= 0.15 * sum(len(process.granted) for process in processes)

    processes[0].client.hangs = True
    await asyncio.sleep(10)
    counts = by_window(processes, 2)
    assert max(counts) <= 100
    assert min(counts[-4:-1]) == 100


async def test_the_slack_at_the_end_of_a_window_is_not_used(store: RealServer) -> None:
    for before, begin in ((0.0, 0), (0.004, 20), (0.006, 40)):
        process = Process(store, CalendarWindow("3/10s", "UTC"), slack=0.005)
        await asyncio.sleep(begin - now())
        await process.one()
        await asyncio.sleep(begin + 10 - before - now())
        await process.one()

        assert pytest.approx(begin + 10 - before if before > 0.005 else begin + 10, abs=1e-3) == process.granted[1]
        await stop(process)


async def test_the_clock_of_the_client_may_be_wrong(store: RealServer) -> None:
    """The store says what time it is, and is asked again: by seconds, by decades, and by more than any clock can say."""
    for origin in (0, 4 * 10**18, -(10**400), 10**20, 10**400):
        store.send("FLUSHALL")
        await asyncio.sleep(10 - now() % 10)
        process, began = Process(store, CalendarWindow("3/10s", "UTC", origin=origin)), now()
        await asyncio.gather(*process.ask(4))

        assert [near(began + instant) for instant in (0, 0, 0, 10)] == process.granted, origin
        await stop(process)


async def test_a_grant_that_is_cancelled_goes_back(store: RealServer) -> None:
    one, other = (Process(store, CalendarWindow("3/day", "UTC")) for _ in range(2))
    await asyncio.gather(*one.ask(1))
    tasks = one.ask(2)
    while one.limiter.statistics().granted != 3:
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.sleep(0.05)
    await asyncio.gather(*other.ask(2))

    assert now() < 0.1


async def test_a_request_gets_all_its_permits_or_none(store: RealServer) -> None:
    one, other = (Process(store, CalendarWindow("10/10s", "UTC")) for _ in range(2))
    one.ask(permits=6)
    other.ask(permits=6)
    await asyncio.sleep(5)
    assert 1 == len(one.granted) + len(other.granted)
    await one.limiter.acquire(4, max_wait=0) if one.granted else await other.limiter.acquire(4, max_wait=0)
    await asyncio.sleep(6)

    assert 2 == len(one.granted) + len(other.granted)
    with pytest.raises(ValueError, match=r"acquire\(11\)"):
        await one.limiter.acquire(11)


async def test_charge_refund_and_rate_change_the_count(store: RealServer) -> None:
    process = Process(store, CalendarWindow("10/10s", "UTC"))
    await process.one(8)
    process.limiter.refund(3)
    await process.one(5)
    process.limiter.charge(2)
    await asyncio.sleep(0.1)
    assert pytest.approx(10, abs=0.2) == process.limiter.delay(8)
    assert pytest.approx(20, abs=0.2) == process.limiter.delay(9)
    await process.one(8)
    assert pytest.approx(10, abs=0.2) == now()

    process.limiter.set_rate("13/10s")
    await process.one(3)
    assert pytest.approx(10, abs=0.2) == now()
    await process.one()
    assert pytest.approx(20, abs=0.2) == now()
    with pytest.raises(ValueError, match="must be whole seconds"):
        process.limiter.set_rate("1/7s")


async def test_an_emptied_store_gives_no_window_more(store: RealServer) -> None:
    """The processes that remember tell it within a second, in which nothing is granted."""
    processes = [Process(store, CalendarWindow("1000/60s", "UTC"), latency=0.002 * place) for place in range(4)]
    for process in processes:
        for _ in range(5):
            process.tasks.append(asyncio.create_task(steadily(process)))
    await asyncio.sleep(3)
    taken = sum(len(process.granted) for process in processes)
    assert 100 < taken < 900
    store.send("FLUSHALL")
    await asyncio.sleep(56)

    assert [1000] == by_window(processes, 60)


async def steadily(process: Process) -> None:
    while True:
        await process.one()
        await asyncio.sleep(0.2)


async def test_calendars_of_one_name_have_the_windows_of_the_first(store: RealServer) -> None:
    one, other = Process(store, CalendarWindow("3/day", "UTC")), Process(store, CalendarWindow("3/day", "Europe/Berlin"))
    await asyncio.gather(*one.ask(2))
    await asyncio.gather(*other.ask(1))
    with pytest.raises(WaitTooLong) as refused:
        await other.limiter.acquire(max_wait=0)

    assert pytest.approx(16 * 3600, abs=1) == refused.value.wait


async def test_a_clock_of_the_store_that_goes_back_stays_in_its_window(store: RealServer) -> None:
    """Over an edge too: no window is counted again. One that was far ahead blocks nobody for ever."""
    for back in (0.5, 3.0, 10.0, 86_400.0):
        store.send("FLUSHALL")
        await asyncio.sleep(11 - now() % 10)
        process = Process(store, CalendarWindow("3/10s", "UTC"), skew=back if back > 10 else 0)
        await asyncio.gather(*process.ask(3))
        process.client.skew -= back
        process.ask(3)
        await asyncio.sleep(0.3)
        assert 3 == len(process.granted), back
        await asyncio.sleep(20)
        assert 6 == len(process.granted), back


async def test_a_replica_that_lags_is_told_of_the_window(store: RealServer) -> None:
    one, other = (Process(store, CalendarWindow("10/10s", "UTC")) for _ in range(2))
    await one.one(3)
    copy = store.send("GET", one.limiter.key)
    await other.one(3)
    await one.one(2)
    store.send("SET", one.limiter.key, copy)
    tasks = [asyncio.create_task(process.one()) for process in (one, other) for _ in range(4)]
    await asyncio.sleep(9)
    assert 2 == sum(task.done() for task in tasks)
    await asyncio.wait(tasks)


# Days and months.

DAY = 86_400
WINDOWS = [  # rates, the end of a window (UTC), and the seconds of the next
    ("3/day", "2027-03-27T23:00", 23 * 3_600),  # summer time begins
    ("3/day", "2027-10-30T22:00", 25 * 3_600),
    ("3/day", "2027-06-30T22:00", 24 * 3_600),
    ("3/month", "2028-01-31T23:00", 29 * DAY),
    ("3/month", "2027-01-31T23:00", 28 * DAY),
    ("3/month", "2027-02-28T23:00", 31 * DAY - 3_600),  # the longest month is longer than all of February
    ("3/month", "2027-12-31T23:00", 31 * DAY),
    ("3/2months", "2027-12-31T23:00", 60 * DAY),
    ("3/year", "2027-12-31T23:00", 366 * DAY),
]


async def test_a_window_is_as_long_as_the_calendar_makes_it(store: RealServer) -> None:
    """In Berlin, over the last minute of one window, for two processes; the first of them ends meanwhile."""
    for rate, ends, following in WINDOWS:
        store.send("FLUSHALL")
        await over_an_end(store, rate, ends, following, now())


async def over_an_end(store: RealServer, rate: str, ends: str, following: float, began: float) -> None:
    skew = at(ends) - 60
    process, other = (Process(store, CalendarWindow(rate, "Europe/Berlin"), skew=skew) for _ in range(2))
    await asyncio.gather(*process.ask(3))
    with pytest.raises(WaitTooLong):
        await other.limiter.acquire(max_wait=0)
    assert [near(60)] * 2 == [process.limiter.delay(), other.limiter.delay()]

    await process.stop()
    again = Process(store, CalendarWindow(rate, "Europe/Berlin"), skew=skew)
    await asyncio.gather(*again.ask(2), *other.ask(1))
    with pytest.raises(WaitTooLong):
        await again.limiter.acquire(max_wait=0)

    assert [near(began + 60)] * 3 == sorted(again.granted + other.granted)
    assert near(following) == again.limiter.delay()
