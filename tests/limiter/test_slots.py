"""Open-loop pacing: slots, on time and with a late loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from helpers.driving import Crowd, turns

import aiorate
from aiorate.testing import ManualClock

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


async def collect(limiter: aiorate.Limiter, bodies: list[float]) -> list[tuple[int, float, float]]:
    """(index, scheduled_at, lag) of each slot, in ms; `bodies` are the seconds that the work of each takes."""
    seen = []
    slots = limiter.slots()
    for body in bodies:
        slot = await anext(slots)
        seen.append((slot.index, round(slot.scheduled_at * 1000, 3), round(slot.lag * 1000, 3)))
        await asyncio.sleep(body)
    await slots.aclose()  # type: ignore[attr-defined]
    return seen


async def test_slots_come_at_their_instants() -> None:
    """At ten per second there is one every 100 ms, and none is late."""
    limiter = aiorate.Limiter(aiorate.BurstCompensation("10/s"))

    assert await collect(limiter, [0] * 4) == [(0, 0, 0), (1, 100, 0), (2, 200, 0), (3, 300, 0)]


@pytest.mark.parametrize("kind", [aiorate.TokenPool, aiorate.BurstCompensation, aiorate.TicksAccumulator])
async def test_the_lag_of_a_slot_includes_a_late_wake_up(kind: Callable[[str], aiorate.Scheduler]) -> None:
    """`scheduled_at` is the instant of the schedule, not of the timer: response times are measured from it."""
    clock = ManualClock()
    slots = aiorate.Limiter(kind("10/s"), clock=clock).slots()
    await anext(slots)
    waiting = asyncio.ensure_future(anext(slots))  # type: ignore[arg-type]
    await turns(3)

    clock.advance(0.1)
    clock.set(115_000_000)  # before the task that waits has run
    await turns(8)
    on_time = waiting.result()
    waiting = asyncio.ensure_future(anext(slots))  # type: ignore[arg-type]
    await turns(3)
    clock.set(212_000_000)
    await turns(8)
    late = waiting.result()

    assert (on_time.index, on_time.scheduled_at, on_time.lag) == (1, 0.1, 0.015)
    assert (late.index, late.scheduled_at, late.lag) == (2, 0.2, 0.012)
    await slots.aclose()  # type: ignore[attr-defined]


async def test_a_slow_body_within_catch_up_costs_no_slot() -> None:
    """110 ms of work every 100 ms: `scheduled_at` stays on the grid, and `lag` tells how late each slot is."""
    limiter = aiorate.Limiter(aiorate.BurstCompensation("10/s"), catch_up=0.05)

    assert await collect(limiter, [0.11, 0.11, 0.01, 0.01]) == [(0, 0, 0), (1, 100, 10), (2, 200, 20), (3, 300, 0)]
    assert limiter.statistics().skipped == 0


async def test_slots_later_than_catch_up_are_skipped_and_counted() -> None:
    """A body that takes a second leaves a gap in the index and a number in the statistics."""
    limiter = aiorate.Limiter(aiorate.BurstCompensation("10/s"), catch_up=0.02)

    seen = await collect(limiter, [1.05, 0, 0])

    assert limiter.statistics().skipped == 9
    assert [index for index, _, _ in seen] == [0, 10, 11]


async def test_a_plain_accumulator_skips_nothing() -> None:
    """A load generator that must reach its mean makes up for every late slot; each tells how late it is."""
    limiter = aiorate.Limiter(aiorate.TicksAccumulator("10/s"))

    assert await collect(limiter, [0.35, 0, 0, 0, 0]) == [(0, 0, 0), (1, 100, 250), (2, 200, 150), (3, 300, 50), (4, 400, 0)]


async def test_two_loops_over_slots_share_the_rate_in_turn() -> None:
    """Slots wait in the same line as every other request."""
    limiter = aiorate.Limiter(aiorate.BurstCompensation("10/s"))

    one, two = await asyncio.gather(collect(limiter, [0] * 3), collect(limiter, [0] * 3))

    assert [at for _, at, _ in one] == [0, 200, 400]
    assert [at for _, at, _ in two] == [100, 300, 500]


async def test_leaving_the_loop_early_leaves_the_line() -> None:
    """A loop that ends while it waits for a slot spends nothing."""
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
    """Time paused is not owed, so no slot is late after it."""
    limiter = aiorate.Limiter(aiorate.BurstCompensation("10/s"))
    slots = limiter.slots()
    await anext(slots)

    limiter.pause(5)
    slot = await anext(slots)

    assert (round(slot.scheduled_at, 6), slot.lag, slot.index) == (5.1, 0.0, 1)
    await slots.aclose()  # type: ignore[attr-defined]
