"""Defects that others had, as tests of ours: loops, ends and settings. Several runs in turn are in test_limiter_runs.py."""

from __future__ import annotations

import asyncio
import random

import pytest
from helpers.driving import SECOND, Crowd

import aiorate
from aiorate.testing import ManualClock, VirtualLoop

MODULE_LEVEL = aiorate.Limiter("10/s")


def test_a_limiter_made_at_import_serves_five_loops() -> None:
    """L1, mjpieters/aiolimiter#292; L2, open-webui/open-webui#29973: pinned to the loop that imported it."""

    async def main() -> float:
        async with MODULE_LEVEL:
            return await MODULE_LEVEL.acquire()

    for _ in range(5):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            assert runner.run(main()) <= 0.2


@pytest.mark.asyncio
async def test_a_thousand_settings_later_the_rate_is_the_last_one() -> None:
    """L6, SGrondin/bottleneck#185: an update of the settings broke the refill for good."""
    dice, clock = random.Random(17), ManualClock()
    crowd = Crowd(aiorate.Limiter("10/s", clock=clock), clock)
    await crowd.queue(range(200))

    for _ in range(1000):
        crowd.limiter.set_rate(dice.choice(("1/s", "7/s", "50/s", "3/250ms")))
        await clock.run(0.001)
    crowd.limiter.set_rate("10/s")
    await clock.run(30)

    instants = list(crowd.granted.values())
    assert len(instants) == 200
    assert {later - at for at, later in zip(instants[-50:], instants[-49:], strict=False)} == {SECOND // 10}


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_waiting_never_holds_up_the_loop() -> None:
    """L7, Arize-ai/phoenix#15462: a blocking sleep inside a coroutine."""
    beats = []

    async def heartbeat() -> None:
        for _ in range(20):
            beats.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.01)

    limiter = aiorate.Limiter("10/s")
    await asyncio.gather(heartbeat(), limiter.acquire(), limiter.acquire(), limiter.acquire())

    assert [round(beat * 100) for beat in beats] == list(range(20))
