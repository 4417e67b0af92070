"""Limits above limits: every level grants, refunds, closes and estimates with those below it."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import SECOND, one_loop, turns
from helpers.server import most_in_any_window
from helpers.strategies import EACH

import aiorate
from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket
from aiorate.testing import ManualClock, VirtualLoop


class Tower:
    """Four levels of one bucket each, of ten permits and as many a second, by a clock moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock(SECOND)
        top = self.bucket()
        region = KeyedLimiter[str](lambda key: self.bucket(), shared=top)["region"]
        team = KeyedLimiter[str](lambda key: self.bucket(), shared=region)["team"]
        self.user = KeyedLimiter[str](lambda key: self.bucket(), shared=team)["user"]
        self.levels = [self.user, team, region, top]

    def bucket(self) -> Limiter:
        return Limiter(TokenBucket("10/s", burst=10), clock=self.clock)

    @property
    def available(self) -> list[int]:
        return [limiter.scheduler.available(self.clock.now()) for limiter in self.levels]

    @property
    def at_rest(self) -> bool:
        return self.clock.timers == 0 and not any(limiter.statistics().waiting for limiter in self.levels)


@one_loop
async def test_pause_of_any_level_holds_the_levels_below() -> None:
    """Meanwhile no request stands in the lines above it."""
    for level in range(1, 4):
        tower = Tower()
        top = tower.levels[-1]
        top.charge(10)
        waiting = asyncio.ensure_future(tower.user.acquire())
        await turns(3)
        assert [1] * 4 == [limiter.statistics().waiting for limiter in tower.levels], level

        tower.levels[level].pause(3)
        assert [1] * (level + 1) + [0] * (3 - level) == [limiter.statistics().waiting for limiter in tower.levels], level
        await tower.clock.run(2.5)
        assert not waiting.done(), level
        await tower.clock.run(0.6)

        assert (3 if level < 3 else 3.1) == waiting.result(), level
        assert tower.at_rest, level


@pytest.mark.parametrize("first", [0, 3])
def test_next_event_loop_begins_without_a_line_at_any_level(first: int) -> None:
    """Whichever level is asked first. Grants that could not resume leave no count behind."""
    tower = Tower()
    tower.levels[2].charge(9)
    tasks: list[asyncio.Task[float]] = []

    async def wait() -> None:
        tasks.extend(asyncio.ensure_future(tower.user.acquire()) for _ in range(3))
        await turns(3)
        assert [2, 1, 1, 0] == [limiter.statistics().waiting for limiter in tower.levels]
        tower.clock.advance(0.1)  # grants one, which can no longer resume
        asyncio.get_running_loop().stop()

    async def ask() -> None:
        tower.levels[first].delay()
        assert not tower.user.try_acquire()
        await tower.clock.run(1)
        assert tower.user.try_acquire()
        assert [0] * 4 == [limiter.statistics().waiting for limiter in tower.levels]

    loop = asyncio.new_event_loop()
    begun = loop.create_task(wait())
    loop.run_forever()
    del begun
    asyncio.run(ask())
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()
    assert tower.at_rest


@one_loop
@pytest.mark.parametrize("name", ["TokenPool", "BurstRatio"])
async def test_a_shared_limit_is_late_by_its_own_catch_up(name: str) -> None:
    """After a stall of 1 s, ten permits came in a tenth of a second, where the shared limit's bound is two."""
    clock = ManualClock(SECOND)
    shared = top = Limiter(EACH[name](), catch_up=0, clock=clock)
    shared = KeyedLimiter[str](lambda key: Limiter("100/s", catch_up=1, clock=clock), shared=shared)["between"]
    keyed = KeyedLimiter[str](lambda key: Limiter("9/s", catch_up=1, clock=clock), shared=shared)
    granted: list[int] = []

    async def ask() -> None:
        await keyed.acquire("a")
        granted.append(clock.now())

    tasks = [asyncio.ensure_future(ask()) for _ in range(60)]
    await clock.run(1)
    for _ in range(3):
        clock.set(clock.now() + SECOND)  # timers fire a second late
        await clock.run(0.3)
    await clock.run(20)

    assert all(task.done() for task in tasks)
    for seconds in (0.05, 0.1, 0.2, 0.5, 1):
        assert most_in_any_window(granted, int(seconds * SECOND)) <= (top.bound(seconds) or 0)


@one_loop
async def test_the_estimate_counts_the_lines_of_all_levels() -> None:
    """With a request in line, only two levels were asked, so max_wait admitted callers that could not be served in time."""
    tower = Tower()
    tower.levels[-1].set_rate("1/s")
    tower.levels[-1].charge(10)
    waiting = [asyncio.ensure_future(limiter.acquire()) for limiter in (tower.user, tower.user, tower.levels[1], tower.levels[2])]
    await turns(3)

    assert [5, 4, 3, 2] == [limiter.delay() for limiter in tower.levels]
    with pytest.raises(aiorate.WaitTooLong):
        await tower.user.acquire(max_wait=4.9)
    late = asyncio.ensure_future(tower.user.acquire(max_wait=5))
    await tower.clock.run(10)

    assert [1, 2, 3, 4, 5] == sorted([task.result() for task in [*waiting, late]])
    assert tower.at_rest


@pytest.mark.parametrize("look", ["statistics", "available"])
def test_first_look_at_a_shared_limit_is_by_the_loops_clock(look: str) -> None:
    """It was by the monotonic clock, and in a loop of virtual time the shared limit granted nothing for hours."""

    async def main(looks: bool) -> float:
        shared = Limiter(EACH["TokenBucket"]())
        if look == "statistics":
            key = KeyedLimiter[str](lambda key: "1000/s", shared=shared)["a"]
            if looks:
                key.statistics()
        else:
            budget = Budget(tokens="1000/s", calls=shared)
            if looks:
                budget.available("calls")
        return sum([await shared.acquire() for _ in range(20)])

    waited: list[float] = []
    for looks in (False, True):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            waited.append(runner.run(main(looks)))
    assert waited[1] == pytest.approx(waited[0], abs=0.2)  # which is how long it takes to earn a permit or two


def test_every_key_follows_the_loop_of_its_callers() -> None:
    """The second key to be asked in a loop that was seen to turn kept the time of the loop before: it got a burst too many, or hung."""
    keyed = KeyedLimiter[str](lambda key: Limiter(TokenBucket("1/h", burst=5)), shared=Limiter(TokenBucket("10000/s", burst=1000)))
    keys = keyed["a"], keyed["b"]  # held, or they would be evicted

    async def tries() -> list[int]:
        return [sum(key.try_acquire() for _ in range(10)) for key in keys]

    async def acquired() -> list[float]:
        return [round(await asyncio.wait_for(key.acquire(5), 10**6) / 3600, 1) for key in keys]

    assert [5, 5] == asyncio.run(tries())
    loop = keys[0]._node.tree.loop
    assert loop is not None
    loop.check.until = 0  # as 5 ms later
    for _ in range(2):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            assert [0, 0] == runner.run(tries())
            assert [5, 0] == runner.run(acquired())
