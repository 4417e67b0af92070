"""Shares of processes that book from one store, and permits granted locally in an outage, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from helpers.stores import Process, RealServer, now
from redis.exceptions import ConnectionError as NoConnection

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


async def test_a_long_round_trip_takes_no_larger_share(store: RealServer) -> None:
    """A process 200 ms away took 0.9 of 50/s, so one worker in another region starved all others."""
    parts, delivered = await shares(store, 50, [0.2, NEAR, NEAR, NEAR], 20)

    assert [pytest.approx(1 / 3, abs=0.05)] * 3 == [part / sum(parts[1:]) for part in parts[1:]]
    assert 0 < parts[0] <= 0.3
    assert 0.98 <= delivered <= 1.02


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


async def test_a_lonely_process_far_away_has_the_whole_rate(store: RealServer) -> None:
    """Keeping a far process from the share of others must not slow it down when it is alone."""
    for _ in range(3):  # time may go on while the server of a busy machine answers
        _, delivered = await shares(store, 50, [0.2], 5, tasks=400)
        if delivered >= 0.98:
            break
        store.send("FLUSHALL")

    assert 0.98 <= delivered <= 1.02


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
