"""Real time, real loops: the few tests that must wait. Tolerances are ratios, and generous where only the machine is late."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest

import aiorate

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

KINDS: dict[str, Callable[[str], aiorate.Scheduler]] = {
    "filler": lambda rate: aiorate.TokenPool(rate),
    "alarm": lambda rate: aiorate.BurstCompensation(rate),
}
both = pytest.mark.parametrize("kind", KINDS)


async def hammer(limiter: aiorate.Limiter, tasks: int, seconds: float) -> list[int]:
    """The instants at which so many tasks in a loop were granted."""
    instants: list[int] = []
    end = time.monotonic_ns() + round(seconds * 1e9)

    async def worker() -> None:
        while time.monotonic_ns() < end:
            await limiter.acquire()
            instants.append(time.monotonic_ns())

    await asyncio.gather(*(worker() for _ in range(tasks)))
    return instants


@both
@pytest.mark.parametrize("rate", [100, 1_000, 10_000])
async def test_what_is_asked_is_delivered(kind: str, rate: int) -> None:
    """100 tasks for 3 s: delivered/asked from 0.995 to 1.001, from the first grant to the last; none before its instant."""
    instants = await hammer(aiorate.Limiter(KINDS[kind](f"{rate}/s")), 100, 3)

    first, count = instants[0], len(instants)
    ratio = (count - 1) / rate / ((instants[-1] - first) / 1e9)
    # A pool may hand out what its two permits or 1 ms allow, before the schedule has come to it.
    ahead = max(2, rate // 1000) + 1 if kind == "filler" else 0
    early = [k for k, at in enumerate(instants) if (at - first) * rate < (k - ahead) * 10**9 - rate]

    assert early == []
    assert 0.995 <= ratio <= 1.001 + (ahead + 1) / (3 * rate)


@both
async def test_waiting_costs_next_to_nothing(kind: str) -> None:
    """At 1000 per second less than 10 % of a core: it sleeps, it does not spin."""
    limiter = aiorate.Limiter(KINDS[kind]("1000/s"))
    before = time.process_time()

    await hammer(limiter, 100, 2)

    assert time.process_time() - before < 0.10 * 2.1


@both
async def test_a_blocked_loop_is_made_up_for_only_within_the_bound(kind: str) -> None:
    """Half a second of blocking: what fell due then is not sent as one burst, but counted as skipped."""
    limiter = aiorate.Limiter(KINDS[kind]("1000/s"))
    instants: list[int] = []

    async def worker() -> None:
        while len(instants) < 600:
            await limiter.acquire()
            instants.append(time.monotonic_ns())

    async def block() -> None:
        await asyncio.sleep(0.1)
        time.sleep(0.5)  # noqa: ASYNC251 - the point of the test

    await asyncio.gather(block(), *(worker() for _ in range(20)))
    bound = limiter.bound(0.1)
    assert bound is not None
    # A grant is seen when its task runs, up to 10 ms (a tenth) after it was made.
    most = max(sum(at <= other < at + 90_000_000 for other in instants) for at in instants)

    assert most <= bound
    assert 400 <= limiter.statistics().skipped <= 520


@both
async def test_a_hundred_thousand_waiters_leave_in_random_order_in_three_seconds(kind: str) -> None:
    """One Condition for all of them took 24 s, since the standard one looks for who leaves."""
    limiter = aiorate.Limiter(KINDS[kind]("1/h"))
    assert limiter.try_acquire()
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(100_000)]
    await asyncio.sleep(0)
    random.Random(9).shuffle(tasks)

    before = time.perf_counter()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    took = time.perf_counter() - before

    assert took < 3.0
    assert limiter.statistics().waiting == 0
    assert limiter.statistics().cancelled == 100_000
