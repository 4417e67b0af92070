"""A simulation against real limiters: the same arrivals, and the same waits and refusals."""

from __future__ import annotations

import asyncio
import random
from array import array
from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aiorate
from aiorate import KeyedLimiter, Limiter, LineFull, Rate, WaitTooLong
from aiorate._demo.strategies import NAMES, make
from aiorate._simulate.arrivals import arrange
from aiorate._simulate.play import REFUSED, Admission, play
from aiorate.testing import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiorate._simulate.arrivals import Arrivals

NS = 1_000_000_000
GRAIN = 1_001_000  # ns: a limiter sets no two timers within 1 ms, and a virtual clock is a float of seconds


def arrivals_at(instants: Sequence[int], keys: Sequence[int] | None = None) -> Arrivals:
    """In order of time; with keys, those of one key after those of another."""
    numbers = None if keys is None else array("l", keys)
    return arrange("here", "test", array("q", instants), numbers, None, whole=False, skipped=0, seed=0)


def simulated(name: str, rate: str, arrivals: Arrivals, admission: Admission) -> list[int]:
    return [wait for waits in play(lambda: make(name, Rate.parse(rate), origin=0), arrivals, admission) for wait in waits]


async def limited(
    limiter: Callable[[int], Limiter], instants: Sequence[int], admission: Admission, made: list[int] | None = None
) -> list[int]:
    """The waits at real limiters, of which ``limiter`` chooses that of each request. ``made`` is told when they were really made."""
    loop = asyncio.get_running_loop()
    begin = loop.time() + 0.01
    waits = [REFUSED] * len(instants)
    max_wait = None if admission.max_wait is None else admission.max_wait / NS

    async def request(number: int, asked: float) -> None:
        try:
            await limiter(number).acquire(admission.permits, max_wait=max_wait)
        except (WaitTooLong, LineFull):
            return
        waits[number] = max(0, round((loop.time() - asked) * NS))

    async with asyncio.TaskGroup() as group:
        for number, instant in enumerate(instants):
            await asyncio.sleep(begin + instant / NS - loop.time())
            now = loop.time()
            group.create_task(request(number, now))
            if made is not None:
                made.append(round((now - begin) * NS))
            await asyncio.sleep(0)
    return waits


def played(name: str, rate: str, arrivals: Arrivals, admission: Admission) -> list[int]:
    """On a virtual loop. The calendar begins with the first request, as in the simulation."""

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        origin = -round((loop.time() + 0.01) * NS)
        made = Limiter(make(name, Rate.parse(rate), origin=origin), max_waiting=admission.max_waiting)
        return await limited(lambda number: made, arrivals.instants, admission)

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
    """Refusals to the last one, and waits within the grain of the timers."""
    rate = "30/s"

    check_same(name, rate, arrivals_at(trace(7, 400, 40 / permits)), Admission(permits, **limits))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    gaps=st.lists(st.integers(0, 60).map(lambda step: step * 5_000_000), min_size=1, max_size=40),
    permits=st.integers(1, 2),
    max_wait=st.none() | st.integers(0, 150).map(lambda step: step * 5_000_000 + 2_113_000),
    max_waiting=st.none() | st.integers(0, 5),
)
def test_any_trace_is_played_as_by_a_limiter(
    name: str, gaps: list[int], permits: int, max_wait: int | None, max_waiting: int | None
) -> None:
    """Whatever the arrivals are."""
    instants = [sum(gaps[:number]) for number in range(len(gaps))]

    check_same(name, "20/s", arrivals_at(instants), Admission(permits, max_wait, max_waiting))


@pytest.mark.parametrize("name", ["TokenBucket", "SlidingWindow", "TokenPool"])
def test_each_key_has_a_line_as_in_a_keyed_limiter(name: str) -> None:
    """Three clients, whose requests are mixed."""
    instants = trace(3, 300, 30)
    keys = [(number * number) % 3 for number in range(len(instants))]
    arrivals = arrivals_at(instants, keys)
    admission = Admission(1, 200_013_000, None)

    async def main() -> list[int]:
        limiter = KeyedLimiter[int](lambda key: make(name, Rate.parse("10/s")))
        return await limited(lambda number: limiter[keys[number]], instants, admission)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        mixed = runner.run(main())
    expected = [wait for key in range(3) for wait, its in zip(mixed, keys, strict=True) if its == key]

    found = simulated(name, "10/s", arrivals, admission)
    assert [wait == REFUSED for wait in found] == [wait == REFUSED for wait in expected]
    assert 0 < found.count(REFUSED) < len(found)
    assert all(abs(one - other) <= GRAIN for one, other in zip(found, expected, strict=True))


def mean_of(waits: list[int]) -> float:
    return fmean(wait for wait in waits if wait != REFUSED)


@pytest.mark.slow
def test_a_run_in_real_time_has_the_same_waits() -> None:
    """Eight seconds of arrivals, on the loop and the clock that programs have: waits and refusals within 1 %.

    A busy machine makes requests late, so what is simulated are the instants at which they were made. The waits are long, so that a few
    milliseconds of delay are less than 1 %. A window is not among them: it never catches up, so it has the delays of all its timers.
    """
    names = ("TokenPool", "TokenBucket", "BurstCompensation")
    planned, admission = arrivals_at(trace(11, 170, 24)), Admission(1, 3_637_000_000)  # not a multiple of the period

    async def run(name: str, made: list[int]) -> list[int]:
        limiter = Limiter(make(name, Rate.parse("14/s")))
        return await limited(lambda number: limiter, planned.instants, admission, made)

    async def main() -> list[tuple[list[int], list[int]]]:
        made: list[list[int]] = [[] for _ in names]
        waits = await asyncio.gather(*map(run, names, made))
        return list(zip(waits, made, strict=True))

    differences: list[list[float]] = []
    for _ in range(3):
        differences.append([])
        for name, (waits, made) in zip(names, asyncio.run(main()), strict=True):
            found = simulated(name, "14/s", arrivals_at(made), admission)
            assert 0 < found.count(REFUSED) < len(found) / 2
            differences[-1] += [abs(waits.count(REFUSED) - found.count(REFUSED)) / len(found), abs(mean_of(waits) / mean_of(found) - 1)]
        if max(differences[-1]) <= 0.01:
            break
    assert max(differences[-1]) <= 0.01, differences


def test_a_request_that_can_never_be_granted_is_an_error() -> None:
    """As at a limiter."""
    bucket = aiorate.TokenBucket("10/s", burst=2)

    with pytest.raises(ValueError, match="3 permits can never be granted"):
        list(play(lambda: bucket, arrivals_at([0]), Admission(3)))
