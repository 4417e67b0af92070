"""Under trio: the same limiter, line and instants as under asyncio, with trio's clock, scopes and tasks."""

from __future__ import annotations

import gc
import math
import random
import weakref
from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio
import pytest
import trio
import trio.testing
from helpers.driving import SECOND
from helpers.strategies import EACH
from helpers.under_trio import Crowd, now, run, run_on, settled, tenths

import aiorate
from aiorate.testing import simulate

MS = SECOND // 1000


# The instants are those of the schedule.


@pytest.mark.parametrize("permits", [1, 3])
@pytest.mark.parametrize("name", EACH)
def test_a_line_is_served_at_the_instants_of_its_schedule(name: str, permits: int) -> None:
    """Not a millisecond and not a permit differ from the simulation."""

    permits = min(permits, EACH[name]().max_permits or permits)

    async def main() -> dict[int, int]:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter(EACH[name]()), nursery)
            await crowd.queue(range(30), permits)
        return crowd.granted

    instants = run(main)

    assert dict(enumerate(simulate(EACH[name](), [(0, permits)] * 30))) == instants


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", EACH)
def test_requests_of_all_sizes_are_granted_as_simulated(name: str, seed: int) -> None:
    """Lines that form, empty and form again, with idle time in between."""
    dice = random.Random(seed)
    most = EACH[name]().max_permits or 3
    requests = sorted((dice.randrange(6000) * MS, min(most, dice.choice((1, 1, 2, 3)))) for _ in range(40))
    requests = [(0, 1), *((at + place, size) for place, (at, size) in enumerate(requests))]
    # The simulation books each request from its arrival. A limiter does so up to catch_up, which matters if one member waits for another.
    catch_up = 1000 if name == "AllOf" else 0.02

    async def main() -> dict[int, int]:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter(EACH[name](), catch_up=catch_up), nursery)
            for place, (at, size) in enumerate(requests):
                await trio.sleep_until(at / SECOND)
                crowd.ask(place, size)
        return crowd.granted

    instants = run(main)

    assert dict(enumerate(simulate(EACH[name](), requests))) == instants


@pytest.mark.parametrize("name", EACH)
def test_workers_are_paced_as_under_asyncio(name: str) -> None:
    """Ten workers that acquire again and again, at the instants of asyncio's drivers."""

    async def main() -> list[int]:
        limiter = aiorate.Limiter(EACH[name]())
        granted: list[int] = []

        async def worker() -> None:
            for _ in range(10):
                await limiter.acquire()
                granted.append(now())
                await anyio.sleep(0.05)

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(worker)
        return granted

    assert run_on("asyncio", main) == run_on("trio", main)


@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket", "TicksAccumulator"])
def test_thousands_due_at_once_are_woken_as_under_asyncio(name: str) -> None:
    """After a pause, in portions, so that other tasks run in between."""
    fast = {
        "TokenPool": lambda: aiorate.TokenPool("10000/s", burst_ratio=10, pool=SECOND),
        "TokenBucket": lambda: aiorate.TokenBucket("10000/s", burst=5000),
        "TicksAccumulator": lambda: aiorate.TicksAccumulator("10000/s"),
    }

    async def main() -> list[int]:
        limiter = aiorate.Limiter(fast[name]())
        await limiter.acquire()
        await anyio.sleep(1)
        limiter.pause(1)
        granted: list[int] = []

        async def one() -> None:
            await limiter.acquire()
            granted.append(now())

        async with anyio.create_task_group() as tasks:
            for _ in range(5000):
                tasks.start_soon(one)
        return granted

    assert run_on("asyncio", main) == run_on("trio", main)


@pytest.mark.parametrize("days", [0, 30, 100, 400])
def test_a_clock_that_has_run_for_long_is_still_exact(days: int) -> None:
    """Its seconds are a float, which after some weeks is coarser than a nanosecond: no wake-up is early because of that."""

    async def main() -> list[int]:
        await trio.sleep(days * 86_400)
        limiter = aiorate.Limiter("7/s")
        begun, granted = trio.current_time(), []
        for _ in range(200):
            await limiter.acquire()
            granted.append(round((trio.current_time() - begun) * SECOND))
        return granted

    expected = simulate(aiorate.TokenPool("7/s"), [0] * 200)

    assert max(abs(instant - exact) for instant, exact in zip(run(main), expected, strict=True)) <= 16 * (days > 0)


# All calls of users.


def test_every_way_to_ask_stands_in_one_line() -> None:
    """`async with`, `of()`, functions, generators and slots stand in one line."""

    async def main() -> list[tuple[str, int]]:
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
        three = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=3))
        seen: list[tuple[str, int]] = []

        @limiter
        async def function() -> None:
            seen.append(("function", now()))

        @limiter.of(1)
        async def generator() -> AsyncIterator[int]:
            seen.append(("generator", now()))
            yield 1

        async with limiter as waited:
            seen.append(("with", now()))
        assert waited == 0.0
        async with limiter.of(1) as waited:
            seen.append(("of", now()))
        assert waited == 0.1
        await function()
        async with aclosing(generator()) as steps:
            async for _ in steps:
                pass
        async with aclosing(limiter.slots()) as slots:
            async for slot in slots:
                seen.append(("slot", round(slot.scheduled_at * SECOND)))
                if slot.index == 2:
                    break
        async with three.of(3):
            pass
        async with three.of(2) as waited:
            seen.append(("of 2", round(waited * SECOND)))
        return seen

    names = ["with", "of", "function", "generator", "slot", "slot", "slot"]
    assert [*((name, place * SECOND // 10) for place, name in enumerate(names)), ("of 2", SECOND // 5)] == run(main)


@pytest.mark.parametrize("name", EACH)
def test_slots_are_those_of_asyncio(name: str) -> None:
    """Index, instant and lag, where the body is slow now and then."""

    async def main() -> list[tuple[int, float, float]]:
        seen = []
        async with aclosing(aiorate.Limiter(EACH[name]()).slots()) as slots:
            async for slot in slots:
                seen.append((slot.index, slot.scheduled_at, slot.lag))
                if len(seen) % 7 == 0:
                    await anyio.sleep(0.35)
                if len(seen) == 40:
                    return seen
        return seen

    assert run_on("asyncio", main) == run_on("trio", main)


def test_try_acquire_never_passes_the_line() -> None:
    """Nor in the step in which the first request is due."""

    async def main() -> list[bool]:
        answers = []
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter("10/s"), nursery)
            answers.append(crowd.limiter.try_acquire())
            await crowd.queue("AB")
            answers.append(crowd.limiter.try_acquire())
            for _ in range(3):
                await trio.sleep(0.1)
                answers.append(crowd.limiter.try_acquire())
        assert tenths(A=1, B=2) == crowd.granted
        return answers

    assert [True, False, False, False, True] == run(main)


def test_delay_and_max_wait_are_exact_to_the_nanosecond() -> None:
    """A request that would wait too long fails at once and spends nothing."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter("10/s"), nursery)
            await crowd.queue("ABC")

            assert (0.3, 0.1) == (crowd.limiter.delay(), crowd.limiter.statistics().next_at)
            crowd.ask("patient", max_wait=0.3)
            await settled()
            crowd.ask("hasty", max_wait=0.399)
            await settled()

            assert isinstance(crowd.failed["hasty"], aiorate.WaitTooLong)
            assert (0, 3, 1) == (now(), crowd.limiter.statistics().waiting, crowd.limiter.statistics().refused)
        assert tenths(A=0, B=1, C=2, patient=3) == crowd.granted
        assert {"A": 0.0, "B": 0.1, "C": 0.2, "patient": 0.3} == crowd.waited

    run(main)


def test_a_full_line_refuses() -> None:
    """``max_waiting`` counts waiting requests."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter("10/s", max_waiting=2), nursery)
            await crowd.queue("ABCD")
            assert isinstance(crowd.failed["D"], aiorate.LineFull)
            await trio.sleep(0.1)
            await settled()
            crowd.ask("E")
        assert tenths(A=0, B=1, C=2, E=3) == crowd.granted

    run(main)


@pytest.mark.parametrize("first", [True, False])
def test_a_cancelled_waiter_leaves_its_place_at_once(first: bool) -> None:
    """A task that only has to run once more to end does not hold a place in line."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter("10/s", max_waiting=2), nursery)
            await crowd.queue("ABC")

            crowd.cancel("B" if first else "C")
            assert crowd.limiter.statistics().waiting == 1
            waited = await crowd.limiter.acquire()

            assert (0.2, 2) == (waited, len(crowd.granted))

    run(main)


def test_a_shielded_waiter_stays_in_line() -> None:
    """A scope that cannot reach a task has not cancelled it."""

    async def main() -> None:
        limiter = aiorate.Limiter("10/s")
        await limiter.acquire()

        async def shielded() -> None:
            with trio.CancelScope(shield=True):
                assert await limiter.acquire() == 0.1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(shielded)
            await settled()
            nursery.cancel_scope.cancel()
            assert limiter.statistics().waiting == 1
        assert (2, 0, SECOND // 10) == (limiter.statistics().granted, limiter.statistics().cancelled, now())

    run(main)


# Nothing is left.


@pytest.mark.parametrize("name", EACH)
def test_an_idle_limiter_leaves_nothing_behind(name: str) -> None:
    """No task, no deadline, and no reference to the limiter or to tasks that waited."""

    async def main() -> None:
        before = trio.lowlevel.current_statistics().tasks_living
        limiter = aiorate.Limiter(EACH[name]())
        tasks = []

        async def one(limiter: aiorate.Limiter) -> None:
            tasks.append(weakref.ref(trio.lowlevel.current_task()))
            await limiter.acquire()

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one, limiter)
            await settled()
            assert before + 20 >= trio.lowlevel.current_statistics().tasks_living
        await settled()
        after = trio.lowlevel.current_statistics()
        assert (before, math.inf) == (after.tasks_living, after.seconds_to_next_deadline)
        gc.collect()
        assert [None] * 20 == [task() for task in tasks]
        gone = weakref.ref(limiter)
        del limiter
        gc.collect()
        assert gone() is None

    run(main)


def test_the_line_does_not_keep_a_task_that_has_left() -> None:
    """The first may wait for an hour; tasks that were cancelled behind it must not stay in memory that long."""

    async def main() -> None:
        coroutines = []
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter("10/s"), nursery)

            async def leaves() -> None:
                coroutines.append(weakref.ref(trio.lowlevel.current_task().coro))
                with trio.move_on_after(0.01):
                    await crowd.limiter.acquire()

            await crowd.queue("AB")
            nursery.start_soon(leaves)
            await trio.sleep(0.02)
            gc.collect()
            assert (1, [None]) == (crowd.limiter.statistics().waiting, [coroutine() for coroutine in coroutines])

    run(main)
