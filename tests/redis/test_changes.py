"""Changes of a running RedisLimiter: charges, rates, idle times, lost state and jumps of the clock. In virtual time, as test_limiter.py."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import others
from helpers.server import most_in_any_window
from helpers.stores import Process, RealServer, now, stop

import aiorate
from aiorate import TokenBucket

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


async def test_a_server_whose_clock_jumps_books_nothing_twice(store: RealServer) -> None:
    """Back: no time has passed. Forward: at most a fresh start."""
    process = Process(store, "1000/s")
    process.load(50)
    for skew in (-3600.0, 0.0, 7200.0):
        await asyncio.sleep(0.5)
        process.client.skew = skew
    await asyncio.sleep(0.5)

    assert most_in_any_window(process.granted, 0.5) <= process.limiter.bound(0.5) + 40  # two horizons, of the two jumps forward
    assert 1800 <= len(process.granted)
    await stop(process)


async def test_a_charge_delays_all_processes(store: RealServer) -> None:
    """A refund helps none of them: its slots have delayed others already."""
    one, other = Process(store), Process(store)
    one.limiter.charge(5)
    one.limiter.refund(2)
    await asyncio.sleep(0.01)
    await other.one()

    assert [pytest.approx(0.5, abs=1e-3)] == other.granted
    assert 5 == one.limiter.statistics().charged
    await stop(one, other)


async def test_set_rate_changes_the_rate_of_its_process(store: RealServer) -> None:
    """Slots that are booked stay, with the interval after them; those that follow come at the new rate."""
    process = Process(store)
    process.ask(4)
    await asyncio.sleep(0.05)
    process.limiter.set_rate("100/s")
    await asyncio.wait(process.tasks)

    assert [pytest.approx(slot, abs=1e-3) for slot in (0, 0.1, 0.2, 0.21)] == process.granted
    assert aiorate.Rate.parse("100/s") == process.limiter.rate
    await stop(process)


async def test_slots_under_way_keep_the_rate_they_were_asked_for(store: RealServer) -> None:
    """At another rate they would be granted faster than the store knows, or a second time to another process."""
    for before, after in (("1000/s", "10/s"), ("10/s", "1000/s")):
        store.send("FLUSHALL")
        await rate_changes_under_way(store, before, after, now())


async def rate_changes_under_way(store: RealServer, before: str, after: str, began: float) -> None:
    one, other = Process(store, before, latency=0.01, horizon=1.0), Process(store, "1000/s")
    one.ask(4)
    await asyncio.sleep(0.005)
    one.limiter.set_rate(after)
    await asyncio.sleep(0.01)
    other.ask()
    await asyncio.wait(one.tasks + other.tasks)

    interval = 1 / aiorate.Rate.parse(before).per_second
    assert [pytest.approx(began + 0.02 + index * interval, abs=2e-3) for index in range(4)] == one.granted
    assert [pytest.approx(began + max(0.02 + 4 * interval - 0.01, 0.015), abs=2e-3)] == other.granted
    await stop(one, other)


async def test_reset_and_set_rate_of_several_are_refused(store: RealServer) -> None:
    """With an error that says what to do instead."""
    process = Process(store, ["10/s", "1/s"])
    with pytest.raises(RuntimeError, match="Use another name"):
        process.limiter.reset()
    with pytest.raises(RuntimeError, match="Create a new limiter"):
        process.limiter.set_rate("20/s")
    await stop(process)


async def test_an_idle_limiter_leaves_no_task_behind(store: RealServer) -> None:
    """A program may forget to close it."""
    process = Process(store)
    await process.one()
    assert others()
    await asyncio.sleep(2)

    assert not others()
    await process.one()
    await stop(process)


async def test_a_request_as_the_idle_task_ends_is_served(store: RealServer) -> None:
    """In the very iteration of the loop in which the task finds that nothing was wanted for a second."""
    for offset in (-1e-9, 0, 1e-9):
        process = Process(store, "1000/s")
        await process.one()
        await asyncio.sleep(1.25 + offset)
        async with asyncio.timeout(1):
            await process.one()

        assert pytest.approx(process.granted[0] + 1.25) == process.granted[1], offset
        await stop(process)


async def test_slots_that_lapse_while_nobody_waits_are_not_skipped(store: RealServer) -> None:
    """Slots of a lease that were there for later requests, and there were none."""
    process = Process(store, "1000/s", lease=0.05, horizon=0.05)
    for _ in range(1_000):
        process.limiter.try_acquire()
        await asyncio.sleep(0.0005)
    await asyncio.sleep(0.06)
    for _ in range(100):
        process.limiter.try_acquire()
        await asyncio.sleep(0.0005)

    assert 0 == process.limiter.statistics().skipped
    await stop(process)


@pytest.mark.parametrize("burst", [1, 300])
async def test_lost_state_is_restored_by_a_process_that_remembers(store: RealServer, burst: int) -> None:
    """A flush in the middle: nothing is granted twice."""
    processes = [Process(store, "1000/s", burst=burst) for _ in range(4)]
    for process in processes:
        process.load(25)
    await asyncio.sleep(1.0)
    store.send("FLUSHALL")
    await asyncio.sleep(1.0)

    instants = [instant for process in processes for instant in process.granted]
    assert most_in_any_window(instants, 0.5) <= 1.05 * (processes[0].limiter.bound(0.5) or 0)
    assert len(instants) >= 0.97 * 2000
    await stop(*processes)


async def test_a_loop_that_stood_still_sends_no_burst(store: RealServer) -> None:
    """The slots have lapsed, and are counted."""
    process = Process(store, "1000/s", horizon=0.1)
    process.load(200)
    await asyncio.sleep(0.05)
    asyncio.get_running_loop()._jump(0.2)  # type: ignore[attr-defined]  # time passes, and nothing runs
    before = len(process.granted)
    await asyncio.sleep(0.001)

    assert len(process.granted) - before <= 8
    await asyncio.sleep(0.5)
    assert most_in_any_window(process.granted, 0.1) <= (process.limiter.bound(0.1) or 0)
    assert 1 <= process.limiter.statistics().skipped
    await stop(process)


async def test_a_replica_that_had_heard_of_less_is_told_the_rest(store: RealServer) -> None:
    """A failover: the state is an older one, and a process remembers."""
    one, other = Process(store), Process(store)
    await one.one()
    before = store.send("GET", one.limiter.key)
    one.limiter.charge(18)
    await asyncio.sleep(0.01)
    store.send("SET", one.limiter.key, before)
    one.limiter.charge(1)
    await asyncio.sleep(0.001)
    other.ask()
    await asyncio.wait(other.tasks)

    assert [pytest.approx(2.0, abs=0.15)] == other.granted
    await stop(one, other)


async def test_the_key_is_gone_soon_after_it_has_no_effect(store: RealServer) -> None:
    """Never a fixed time: an hourly limit is kept for an hour, a fast one for a second, and any as long as a pause or a charge."""
    for rate, least, most in (("1/h", 3_600_000, 3_601_000), (TokenBucket("1000/s", burst=100), 0, 1_101)):
        store.send("FLUSHALL")
        process = Process(store, rate)
        await process.one()
        assert least < int(store.send("PTTL", process.limiter.key)) <= most, rate
        process.limiter.pause(7200)
        await asyncio.sleep(0.001)
        assert 7_190_000 < int(store.send("PTTL", process.limiter.key)), rate
        await stop(process)
