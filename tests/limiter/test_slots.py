"""A late loop: slots of open-loop pacing, and permits that fell due while nobody could ask, up to `catch_up`."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import Crowd, turns

import aiorate
from aiorate import BurstCompensation, Limiter, TicksAccumulator, TokenPool
from aiorate.testing import ManualClock

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

MS = 1_000_000


async def collect(limiter: Limiter, bodies: list[float]) -> list[tuple[int, float, float]]:
    """(index, scheduled_at, lag) of each slot, in ms; `bodies` are the seconds that the work of each takes."""
    seen = []
    slots = limiter.slots()
    for body in bodies:
        slot = await anext(slots)
        seen.append((slot.index, round(slot.scheduled_at * 1000, 3), round(slot.lag * 1000, 3)))
        await asyncio.sleep(body)
    await slots.aclose()  # type: ignore[attr-defined]
    return seen


async def test_slots_stay_on_the_grid() -> None:
    """`scheduled_at` is the schedule's; a slow body is made up for within `catch_up`, and later slots are skipped and counted."""
    rows = [
        (BurstCompensation("10/s"), 0.02, [0] * 4, [(0, 0, 0), (1, 100, 0), (2, 200, 0), (3, 300, 0)], 0),
        (BurstCompensation("10/s"), 0.05, [0.11, 0.11, 0.01, 0], [(0, 0, 0), (1, 100, 10), (2, 200, 20), (3, 300, 0)], 0),
        (BurstCompensation("10/s"), 0.02, [1.05, 0], [(0, 0, 0), (10, 1030, 20)], 9),
        # A load generator that must reach its mean makes up for every late slot.
        (TicksAccumulator("10/s"), 0.02, [0.25, 0, 0, 0], [(0, 0, 0), (1, 100, 150), (2, 200, 50), (3, 300, 0)], 0),
    ]
    for scheduler, catch_up, bodies, slots, skipped in rows:
        limiter = Limiter(scheduler, catch_up=catch_up)
        began = asyncio.get_running_loop().time() * 1000

        seen = await collect(limiter, bodies)

        assert [(index, round(at - began, 3), lag) for index, at, lag in seen] == slots
        assert limiter.statistics().skipped == skipped


async def test_the_lag_of_a_slot_includes_a_late_wake_up() -> None:
    """`scheduled_at` is the instant of the schedule, not of the timer: response times are measured from it."""
    for scheduler in (TokenPool("10/s"), BurstCompensation("10/s"), TicksAccumulator("10/s")):
        clock = ManualClock()
        slots = Limiter(scheduler, clock=clock).slots()
        await anext(slots)
        seen = []
        for wakes in ([100 * MS, 115 * MS], [212 * MS]):  # at first on time, but the task runs later
            waiting = asyncio.ensure_future(anext(slots))  # type: ignore[arg-type]
            await turns(3)
            for wake in wakes:
                clock.set(wake)
            await turns(8)
            slot = waiting.result()
            seen.append((slot.index, slot.scheduled_at, slot.lag))

        assert seen == [(1, 0.1, 0.015), (2, 0.2, 0.012)]
        await slots.aclose()  # type: ignore[attr-defined]


async def test_leaving_the_loop_early_leaves_the_line() -> None:
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter("10/s", clock=clock), clock)

    async def loop() -> None:
        async for _ in crowd.limiter.slots():
            pass

    task = asyncio.ensure_future(loop())
    await clock.run(0.25)
    task.cancel()
    await turns(3)
    crowd.ask("A")
    await clock.run(1)

    assert crowd.granted == {"A": 300_000_000}
    assert crowd.limiter.statistics().granted == 4


async def test_a_closed_limiter_ends_its_slots_with_an_error() -> None:
    """A load test that ran for half its time must not look complete."""
    limiter = aiorate.Limiter("10/s")
    slots = limiter.slots()
    await anext(slots)

    await limiter.aclose()

    with pytest.raises(aiorate.LimiterClosed):
        await anext(slots)


async def test_a_pause_shifts_the_slots() -> None:
    limiter = aiorate.Limiter(aiorate.BurstCompensation("10/s"))
    slots = limiter.slots()
    await anext(slots)

    limiter.pause(5)
    slot = await anext(slots)

    assert (round(slot.scheduled_at, 6), slot.lag, slot.index) == (5.1, 0.0, 1)
    await slots.aclose()  # type: ignore[attr-defined]


# Late wake-ups.


async def late(catch_up: float, rate: str, wake: int) -> tuple[Limiter, ManualClock]:
    """Strict pacing, with one waiter that is woken at that instant."""
    clock = ManualClock()
    limiter = Limiter(BurstCompensation(rate), catch_up=catch_up, clock=clock)
    await limiter.acquire()
    waiter = asyncio.ensure_future(limiter.acquire())
    await clock.run(0)

    clock.set(wake)
    await waiter
    return limiter, clock


async def test_a_late_wake_up_serves_newcomers_as_if_in_line() -> None:
    """The slots at 20 and 30 ms fell due while the loop was blocked, and go to callers that could not ask meanwhile."""
    limiter, clock = await late(0.05, "100/s", 35 * MS)

    waits = [await limiter.acquire(), await limiter.acquire()]
    refused = limiter.try_acquire()
    clock.set(40 * MS)

    assert waits == [0.0, 0.0]
    assert refused is False
    assert limiter.try_acquire() is True


async def test_missed_slots_are_lost_two_milliseconds_later() -> None:
    """By then the loop has run: strict pacing gives the missed slots up."""
    limiter, clock = await late(0.05, "100/s", 35 * MS)

    clock.advance(0.002)

    assert (limiter.try_acquire(), limiter.delay()) == (True, 0.01)


async def test_a_late_wake_up_is_made_up_for_up_to_catch_up() -> None:
    """The guarantee holds for a window that is `catch_up` longer."""
    limiter, clock = await late(0.02, "10000/s", 500 * MS)
    clock.advance(0.0015)  # which is still within 2 ms

    assert sum(limiter.try_acquire() for _ in range(1000)) == 201
