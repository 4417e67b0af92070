"""Help for users' tests: a manual clock, a loop in virtual time, a simulation."""

from __future__ import annotations

import asyncio
import time

import pytest

import aiorate
from aiorate.testing import ManualClock, VirtualLoop, simulate

SECOND = 1_000_000_000


def test_timers_fire_in_order_at_their_instants() -> None:
    """Timers of one instant fire in the order in which they were set; a cancelled one does not."""
    clock, log = ManualClock(5), list[tuple[str, int]]()
    for name, at in (("c", 30), ("a", 10), ("b", 10), ("off", 20)):
        timer = clock.call_at(at, lambda name=name: log.append((name, clock.now())))  # type: ignore[misc]
    timer.cancel()

    clock.set(40)

    assert [name for name, _ in log] == ["a", "b", "c"]
    assert clock.timers == 0


@pytest.mark.asyncio
async def test_a_run_lets_tasks_run_at_their_instants() -> None:
    """On a real loop: no waiting, and each task sees the instant it was woken for."""
    clock = ManualClock()
    limiter = aiorate.Limiter("4/s", clock=clock)
    seen = []

    async def worker() -> None:
        for _ in range(4):
            await limiter.acquire()
            seen.append(clock.now())

    task = asyncio.ensure_future(worker())
    await clock.run(10)

    assert task.done()
    assert seen == [0, SECOND // 4, SECOND // 2, 3 * SECOND // 4]
    assert clock.now() == 10 * SECOND


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_virtual_loop_jumps_to_the_next_timer() -> None:
    """A day passes at once, and a limiter on such a loop needs no other clock."""
    loop, limiter = asyncio.get_running_loop(), aiorate.Limiter("1/h")

    await asyncio.sleep(86_400)
    await limiter.acquire()
    waited = await limiter.acquire()

    assert waited == 3600.0
    assert loop.time() == 86_400 + 3600


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_grants_in_virtual_time_are_exact_at_any_hour() -> None:
    """To the nanosecond: the loop's time is a float, and must not round an instant to another."""
    loop, limiter = asyncio.get_running_loop(), aiorate.Limiter(aiorate.BurstCompensation("7/s"))
    await asyncio.sleep(123_456.789)
    await limiter.acquire()
    start = round(loop.time() * SECOND)

    off = []
    for k in range(1, 200):
        await limiter.acquire()
        off.append(round(loop.time() * SECOND) - start - -(-k * SECOND // 7))

    assert set(off) <= {-1, 0, 1}


def test_code_that_spins_in_virtual_time_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a test of it would run for ever."""
    monkeypatch.setattr(VirtualLoop, "_MOST_TURNS", 1000)

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner, pytest.raises(RuntimeError, match="something spins"):
        runner.run(spin())


def test_simulate_gives_the_instants_of_one_line() -> None:
    """As a limiter on a perfect loop would grant them."""
    bucket = aiorate.TokenBucket("10/s", burst=2)

    assert simulate(bucket, [0, 0, 0, (0, 2), SECOND]) == [0, 0, SECOND // 10, 3 * SECOND // 10, SECOND]


@pytest.mark.parametrize("years", [1, 30, 200])
def test_virtual_time_advances_despite_float_rounding(years: int) -> None:
    """asyncio runs timers due within 1 ns. After 194 days that is less than the next float, so no timer would be due."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(years * 365 * 86_400)
        limiter = aiorate.Limiter(aiorate.TokenBucket("1/day", burst=1))
        begin = loop.time()
        instants = []
        for _ in range(40):
            await limiter.acquire()
            instants.append(loop.time() - begin)
        return instants

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        instants = runner.run(main())

    assert [round(instant, 3) for instant in instants] == [86_400.0 * day for day in range(40)]


def test_closing_a_virtual_loop_waits_for_threads() -> None:
    """From CPython 3.12 on, asyncio waits 300 s for them, which would pass at once in virtual time."""

    async def main() -> None:
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.2)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
