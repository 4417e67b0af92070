"""Shares of processes that book from one store, and permits granted locally in an outage.

In virtual time, against a real server that is told what time it is: each `Process` shares nothing with the others but the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from helpers.stores import Process, RealServer, now
from redis.exceptions import ConnectionError as NoConnection

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


NEAR, TASKS = 0.0001, 50


async def shares(store: RealServer, rate: int, trips: Sequence[float], seconds: float, tasks: int = TASKS) -> tuple[list[float], float]:
    """Return each process's share of the grants after a warm-up, and the sum as a part of the rate."""
    processes = [Process(store, f"{rate}/s", latency=trip / 2) for trip in trips]
    for process in processes:
        process.load(tasks)
    await asyncio.sleep(4)
    begin = now()
    await asyncio.sleep(seconds)
    granted = [process.within(begin, begin + seconds) for process in processes]
    for process in processes:
        await process.stop()
    return [each / sum(granted) for each in granted], sum(granted) / (rate * seconds)


# Shares.


@pytest.mark.parametrize("trip", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("rate", [50, 200, 1000])
async def test_a_long_round_trip_takes_no_larger_share(store: RealServer, rate: int, trip: float) -> None:
    """A process 200 ms away took 0.9 of 50/s, so one worker in another region starved all others."""
    parts, delivered = await shares(store, rate, [trip, NEAR, NEAR, NEAR], 1000 / min(rate, 200))

    assert [pytest.approx(0.25, abs=0.05)] * 4 == parts
    assert 0.98 <= delivered <= 1.02


@pytest.mark.parametrize("rate", [50, 1000])
async def test_processes_at_many_distances_have_equal_shares(store: RealServer, rate: int) -> None:
    """One rule holds for all distances, not only for a single far process."""
    parts, delivered = await shares(store, rate, [0, 0.02, 0.1, 0.2], 1000 / min(rate, 100), tasks=200)

    assert [pytest.approx(0.25, abs=0.05)] * 4 == parts
    assert 0.98 <= delivered <= 1.02


@pytest.mark.parametrize("trip", [0.05, 0.2])
@pytest.mark.parametrize("rate", [50, 1000])
async def test_a_lonely_process_far_away_has_the_whole_rate(store: RealServer, rate: int, trip: float) -> None:
    """Keeping a far process from the share of others must not slow it down when it is alone."""
    for _ in range(3):  # time may go on while the server of a busy machine answers
        _, delivered = await shares(store, rate, [trip], 5, tasks=400)
        if delivered >= 0.98:
            break
        store.send("FLUSHALL")

    assert 0.98 <= delivered <= 1.02


async def test_newcomer_beside_a_far_process_is_served_soon(store: RealServer) -> None:
    """Equal shares must not make all processes book as far ahead as the farthest."""
    processes = [Process(store, "1000/s", latency=latency) for latency in (0.1, 0, 0, 0)]
    for process in processes:
        process.load(TASKS)
    await asyncio.sleep(4)
    newcomer, began = Process(store, "1000/s"), now()
    await newcomer.one()

    assert newcomer.granted[0] - began <= 0.2
    for process in [*processes, newcomer]:
        await process.stop()


async def test_batches_of_a_far_process_waste_no_slots(store: RealServer) -> None:
    """A far process books for tasks that will be back by then, but not for a batch whose tasks never return."""
    far, near = Process(store, "100/s", latency=0.1), Process(store, "100/s")
    near.load(TASKS)
    await asyncio.sleep(1)
    for _ in range(10):
        far.ask(20)
        await asyncio.sleep(1)

    assert 0.98 * 1000 <= far.within(1, 11) + near.within(1, 11) <= 1010
    await far.stop()
    await near.stop()


# Permits granted locally.


def local_pair(store: RealServer, **options: Any) -> tuple[Process, Process]:
    """Make two busy processes at 300/s, each with half of the rate in an outage."""
    one, other = (Process(store, "300/s", on_unavailable="local", local_share=0.5, **options) for _ in range(2))
    one.load(TASKS)
    other.load(TASKS)
    return one, other


async def cut_off(process: Process, seconds: float) -> None:
    """Cut the process off from the store."""
    process.client.error = NoConnection()
    await asyncio.sleep(seconds)
    process.client.error = None


@pytest.mark.parametrize("grace", [0, 1])
async def test_local_permits_are_charged_on_return(store: RealServer, grace: float) -> None:
    """Of some 500 permits that a process granted while only it was cut off, the store heard of one."""
    one, other = local_pair(store, grace=grace)
    await asyncio.sleep(1)
    await cut_off(one, 4)
    during = one.within(1, 5)
    await asyncio.sleep(4)

    assert during >= 0.4 * (4 - grace) * 300
    assert one.within(1, 9) + other.within(1, 9) <= 1.05 * 300 * 8
    await asyncio.sleep(4)
    assert one.within(9, 13) + other.within(9, 13) >= 0.95 * 300 * 4
    await one.stop()
    await other.stop()


async def test_flapping_connection_does_not_exceed_the_rate(store: RealServer) -> None:
    """Each outage granted another share of the rate, beside a process that had all of it."""
    one, other = local_pair(store, grace=0.2)
    await asyncio.sleep(1)
    for _ in range(5):
        await cut_off(one, 1.5)
        await asyncio.sleep(0.5)
    await asyncio.sleep(1.5)

    assert one.within(1, 12.5) + other.within(1, 12.5) <= 1.05 * 300 * 11.5
    assert one.within(1, 12.5) + other.within(1, 12.5) >= 0.8 * 300 * 11.5
    await one.stop()
    await other.stop()


async def test_local_permits_that_others_left_unused_cost_nothing(store: RealServer) -> None:
    """With all processes cut off, the shares add up to the rate, and nothing is owed."""
    one, other = local_pair(store, grace=0)
    await asyncio.sleep(1)
    await asyncio.gather(cut_off(one, 4), cut_off(other, 4))
    await asyncio.sleep(1)
    begin = now()
    await asyncio.sleep(2)

    assert one.within(1, 5) + other.within(1, 5) <= 1.01 * 300 * 4
    assert one.within(begin, begin + 2) + other.within(begin, begin + 2) >= 0.98 * 300 * 2
    await one.stop()
    await other.stop()


async def test_local_permits_cost_what_others_used(store: RealServer) -> None:
    """Of a rate of which the others used half, this process's half of the rest is free."""
    one, other = local_pair(store, grace=0)
    await asyncio.sleep(1)
    for task in other.tasks:
        task.cancel()

    async def half() -> None:
        while True:
            await other.one()
            await asyncio.sleep(1 / 150)

    other.tasks.append(asyncio.create_task(half()))
    await asyncio.sleep(0.5)
    begin = now()
    await cut_off(one, 4)
    local, shared = one.within(begin, begin + 4), other.within(begin, begin + 4)
    before = one.limiter.statistics().granted
    await asyncio.sleep(4)
    paid = 300 * 4 - other.within(begin + 4, begin + 8) - (one.limiter.statistics().granted - before)

    assert local == pytest.approx(600, abs=30)
    assert paid == pytest.approx(local - (1200 - shared) / 2, abs=60)
    await one.stop()
    await other.stop()
