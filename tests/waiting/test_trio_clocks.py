"""Under trio: clocks that the user passes, waits of a thousand years, and tasks of anyio."""

from __future__ import annotations

import anyio
import pytest
import trio
import trio.testing
from helpers.driving import SECOND
from helpers.strategies import EACH
from helpers.under_trio import Crowd, now, run, run_on, settled, tenths

import aiorate
from aiorate.testing import ManualClock, simulate

MS = SECOND // 1000


# Clocks that the user passes.


def test_a_manual_clock_wakes_waiters_under_trio() -> None:
    """Users test their code with it, under asyncio and trio alike."""

    async def main() -> None:
        clock = ManualClock()
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter("10/s", clock=clock), nursery)
            await crowd.queue("ABCD")
            served = [len(crowd.granted)]
            for _ in range(2):
                clock.advance(0.099999999)
                await settled()
                served.append(len(crowd.granted))
                clock.advance(0.000000001)
                await settled()
                served.append(len(crowd.granted))
            crowd.cancel("C")
            await settled()
            assert 1 == clock.timers
            clock.advance(0.1)
        assert [1, 1, 2, 2, 3] == served
        assert {"A": 0.0, "B": 0.1, "C": 0.2, "D": 0.3} == crowd.waited | {"C": 0.2}
        assert (0, 0) == (clock.timers, now())

    run(main)


def test_a_manual_clock_wakes_all_due_waiters_at_once() -> None:
    """With the loop's own timers it would be a thousand at a time; a manual clock calls back only once."""

    async def main() -> int:
        clock = ManualClock()
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1500), clock=clock)
        limiter.pause(1)
        async with trio.open_nursery() as nursery:
            for _ in range(1500):
                nursery.start_soon(limiter.acquire)
            await settled()
            clock.advance(1)
        return clock.timers

    assert 0 == run(main)


@pytest.mark.parametrize("name", EACH)
def test_a_clock_without_timers_uses_trios_deadlines(name: str) -> None:
    """Such a clock only tells the time; here, one with another origin."""

    class Shifted:
        def now(self) -> int:
            return round((trio.current_time() + 1_000) * SECOND)

    async def main() -> list[int]:
        await trio.sleep(5)
        limiter = aiorate.Limiter(EACH[name](), clock=Shifted())
        granted = []
        for _ in range(20):
            await limiter.acquire()
            granted.append(Shifted().now())
        return granted

    # Deadlines are relative, in float seconds.
    expected = simulate(EACH[name](), [1_005 * SECOND] * 20)
    assert max(abs(instant - exact) for instant, exact in zip(run(main), expected, strict=True)) <= 2 * MS


def test_a_waiter_waits_for_a_thousand_years() -> None:
    """A deadline is a float, and an instant any whole number."""

    async def main() -> bool:
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
        limiter.charge(10**400)
        async with trio.open_nursery() as nursery:
            crowd = Crowd(limiter, nursery)
            await crowd.queue("AB")
            for _ in range(20):  # no timer is set for longer than a day, and a waiter that it wakes waits on
                await trio.sleep(86_400)
                assert (2, {}) == (limiter.statistics().waiting, crowd.failed)
            limiter.reset()
        return {"A": 20 * 86_400 * SECOND, "B": 20 * 86_400 * SECOND + SECOND // 10} == crowd.granted

    assert run(main)


def test_a_waiter_woken_in_vain_leaves_its_place_when_cancelled() -> None:
    """Its own timer ended its wait, which does not count as cancelled; being cancelled later does."""

    async def main() -> None:
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
        limiter.charge(10**10)
        async with trio.open_nursery() as nursery:
            crowd = Crowd(limiter, nursery)
            for day in range(20):
                await crowd.queue([day])
                await trio.sleep(86_400)
                limiter.apply("10,1.0,stop")  # before or after the timer fires, as trio likes
                assert limiter.statistics().waiting == 1
                await settled()
                crowd.cancel(day)
                assert limiter.statistics().waiting == 0
                limiter.apply("10,1.0,start")
                await settled()

    run(main)


def test_precise_changes_nothing_under_trio() -> None:
    """Kernel timers are asyncio's."""

    async def main(precise: bool) -> list[int]:
        limiter = aiorate.Limiter("10/s", precise=precise)
        granted = []
        for _ in range(5):
            await limiter.acquire()
            granted.append(now())
        return granted

    assert run(main, False) == run(main, True) == [place * SECOND // 10 for place in range(5)]


def test_tasks_of_anyio_are_tasks() -> None:
    """Its groups and scopes work as trio's do."""

    async def main() -> None:
        limiter = aiorate.Limiter("10/s")
        async with anyio.create_task_group() as tasks:
            crowd = Crowd(limiter, tasks)
            for name in "ABC":
                crowd.ask(name)
                await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(0.05) as scope:
                await limiter.acquire()
            assert scope.cancelled_caught
            with pytest.raises(TimeoutError), anyio.fail_after(0.01):
                await limiter.acquire()
            crowd.cancel("B")
        assert tenths(A=0, C=1) == crowd.granted
        assert 3 == limiter.statistics().cancelled

    run_on("trio", main)
