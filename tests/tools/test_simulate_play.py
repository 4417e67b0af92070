"""A simulation against real limiters: the same arrivals, and the same waits and refusals."""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aiorate
from aiorate import KeyedLimiter, Limiter, LineFull, Rate, WaitTooLong
from aiorate._demo.strategies import NAMES, code, make
from aiorate._simulate.arrivals import Arrivals
from aiorate._simulate.play import REFUSED, Admission, play
from aiorate.testing import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NS = 1_000_000_000
GRAIN = 2_000  # ns: a virtual clock is a float of seconds


def arrivals_at(instants: Sequence[int], keys: Sequence[int] | None = None) -> Arrivals:
    return Arrivals("here", "test", 0, array("q", instants), None if keys is None else array("l", keys), "none", False, 0, 0, 0)


def simulated(name: str, rate: str, arrivals: Arrivals, admission: Admission) -> list[int]:
    return [wait for waits in play(lambda: make(name, Rate.parse(rate), origin=0), arrivals, admission) for wait in waits]


async def limited(limiter: Callable[[int], Limiter], arrivals: Arrivals, admission: Admission, most: list[int] | None = None) -> list[int]:
    """The waits of the same requests at real limiters, made by tasks."""
    loop = asyncio.get_running_loop()
    begin = loop.time() + 0.01
    waits = [REFUSED] * len(arrivals.instants)
    max_wait = None if admission.max_wait is None else admission.max_wait / NS

    async def request(number: int, key: int, asked: float) -> None:
        try:
            await limiter(key).acquire(admission.permits, max_wait=max_wait)
        except (WaitTooLong, LineFull):
            return
        waits[number] = max(0, round((loop.time() - asked) * NS))

    async with asyncio.TaskGroup() as group:
        for number, instant in enumerate(arrivals.instants):
            await asyncio.sleep(begin + instant / NS - loop.time())
            group.create_task(request(number, arrivals.keys[number] if arrivals.keys else 0, loop.time()))
            await asyncio.sleep(0)
    return waits


def played(name: str, rate: str, arrivals: Arrivals, admission: Admission) -> list[int]:
    """On a virtual loop. The calendar begins with the first request, as in the simulation."""
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        origin = -round((loop.time() + 0.01) * NS)
        made = Limiter(make(name, Rate.parse(rate), origin=origin), max_waiting=admission.max_waiting)
        return await limited(lambda key: made, arrivals, admission)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def check_same(name: str, rate: str, arrivals: Arrivals, admission: Admission) -> None:
    expected = played(name, rate, arrivals, admission)
    found = simulated(name, rate, arrivals, admission)
    assert [wait == REFUSED for wait in found] == [wait == REFUSED for wait in expected]
    assert all(abs(one - other) <= GRAIN for one, other in zip(found, expected, strict=True))


def trace(seed: int, requests: int, per_second: float) -> list[int]:
    """Bursts and pauses, with instants that fall on no slot."""
    chance = random.Random(seed)
    now, instants = 0, []
    for _ in range(requests):
        instants.append(now)
        pause = chance.choice((0, 0, 1, 1, 1, 6))
        now += round(chance.expovariate(per_second) * NS * pause * 0.7 / 1_000) * 1_000 + (17_000 if pause else 0)
    return instants


@pytest.mark.parametrize("permits", [1, 3])
@pytest.mark.parametrize(
    "limits", [{}, {"max_wait": 300_013_000}, {"max_waiting": 4}, {"max_wait": 500_017_000, "max_waiting": 7}, {"max_waiting": 0}]
)
@pytest.mark.parametrize("name", NAMES)
def test_waits_and_refusals_are_those_of_a_limiter(name: str, limits: dict[str, int], permits: int) -> None:
    """On a virtual clock, within what a float of seconds resolves."""
    rate = "30/s"

    check_same(name, rate, arrivals_at(trace(7, 400, 40 / permits)), Admission(permits, **limits))
