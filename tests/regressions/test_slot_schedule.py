"""`slots()`: the index and the instant of each slot follow the schedule, and skipped slots are counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, one_loop, turns

import aiorate
from aiorate.testing import ManualClock, VirtualLoop

PACING: dict[str, Callable[[int], aiorate.Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=1),
    "BurstCompensation": aiorate.BurstCompensation,
    "SmoothBursty": lambda rate: aiorate.SmoothBursty(rate, max_burst=0),
}


@pytest.mark.asyncio(loop_factories=["virtual"])
@pytest.mark.parametrize("rate", [97, 331, 1000])
@pytest.mark.parametrize("strategy", PACING)
async def test_the_index_of_a_slot_follows_the_schedule(strategy: str, rate: int) -> None:
    """The fraction of a permit left over at each stall was dropped: 4735 instead of 5145 after 1000 slow bodies."""
    limiter, dice = aiorate.Limiter(PACING[strategy](rate), catch_up=0.02), random.Random(13)

    behind, taken = [], 0
    async for slot in limiter.slots():
        taken += 1
        # Where the schedule was when the slot began.
        behind.append((slot.scheduled_at + slot.lag) * rate - slot.index)
        assert slot.index == taken - 1 + limiter.statistics().skipped
        if taken == 1000:
            break
        await asyncio.sleep(dice.uniform(0, 0.1))

    # At most the catch-up, the pool and part of a permit, however long the run.
    assert -1e-6 < min(behind)
    assert max(behind) < 0.02 * rate + 3


@pytest.mark.parametrize("what", ["pause", "resume"])
def test_the_index_of_a_slot_follows_the_schedule_over_changes(what: str) -> None:
    """Every pause and resume dropped the fraction of a permit again: 4374 instead of 4809."""

    async def main() -> tuple[int, float]:
        limiter, dice = aiorate.Limiter(aiorate.TokenBucket(97, burst=1)), random.Random(13)
        missed = 0.0  # permits that fell into pauses
        slots = limiter.slots()
        for _ in range(1000):
            slot = await anext(slots)
            if what == "pause":
                limiter.pause(0.001)
                missed += 0.097
            else:
                limiter.resume()
            await asyncio.sleep(dice.uniform(0.001, 0.1))
        slot = await anext(slots)
        await slots.aclose()
        return slot.index, (slot.scheduled_at + slot.lag) * 97 - missed

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        index, schedule = runner.run(main())

    assert schedule - 5 < index <= schedule + 1


async def two_slots(limiter: aiorate.Limiter) -> list[tuple[int, float]]:
    """Return the index and instant of two slots, with a body of 1.05 s in between."""
    seen = []
    async for slot in limiter.slots():
        seen.append((slot.index, slot.scheduled_at))
        if len(seen) == 2:
            return seen
        await asyncio.sleep(1.05)
    return seen


def test_a_slot_was_scheduled_where_its_index_says() -> None:
    """Slot 10 at ten per second claimed to be scheduled at 0.1 s, where slot 1 belongs: response times came out 0.9 s too long."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        seen = runner.run(two_slots(aiorate.Limiter(aiorate.BurstCompensation("10/s"), catch_up=0.02)))

    index, at = seen[1]
    assert abs(index - at * 10) < 1


def virtually(main: Any) -> Any:
    """Run it in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def test_slots_go_on_counting_skipped_ones_after_a_reset() -> None:
    """reset() made new counters, and slots() still looked at the old ones."""

    async def main() -> tuple[list[int], int]:
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
        seen = []
        async for slot in limiter.slots():
            seen.append(slot.index)
            if len(seen) == 2:
                limiter.reset()
            if len(seen) == 4:
                break
            await asyncio.sleep(1.05 if len(seen) == 3 else 0)
        return seen, limiter.statistics().skipped

    seen, skipped = virtually(main)

    assert skipped > 5
    assert seen == [0, 1, 2, 3 + skipped]


@one_loop
async def test_fraction_of_a_skipped_permit_is_dropped_with_its_rate() -> None:
    """A fraction measured at a slow rate counted as thousands of permits at a fast one."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(aiorate.TokenBucket("10000/day", burst=1), clock=clock), clock)
    await crowd.queue("AB")
    clock.set(clock.now() + 10 * SECOND)
    await turns(5)
    crowd.limiter.set_rate("100/s")
    crowd.ask("C")
    await turns(3)
    clock.set(clock.now() + 1 * SECOND)
    await turns(5)

    assert crowd.limiter.statistics().skipped < 110
    assert not crowd.pending
