"""A KeyedLimiter in random histories of one to three levels: nothing is lost, and each key is served in order."""

from __future__ import annotations

import asyncio
from typing import Any

from helpers.driving import SteppedClock, turns
from hypothesis import given, settings
from hypothesis import strategies as st

import aiorate

LARGEST = 5
KEYS, DIRECT = "abcd", ""
WEIGHTS = {"a": 1, "b": 1, "c": 3, "d": 20}
CALLERS = st.sampled_from([*KEYS, DIRECT])
STEP = st.one_of(
    st.tuples(st.just("ask"), CALLERS, st.lists(st.integers(1, LARGEST), min_size=1, max_size=20)),
    st.tuples(st.just("run"), st.sampled_from([1, 7, 50, 400]), st.none()),
    st.tuples(st.just("cancel"), st.integers(0, 200), st.none()),
    st.tuples(st.just("cancel granted"), st.integers(0, 3), st.none()),
    st.tuples(st.just("pause"), CALLERS, st.sampled_from([0.05, 0.5])),
    st.tuples(st.just("resume"), CALLERS, st.none()),
    st.tuples(st.just("set_rate"), CALLERS, st.sampled_from(["20/s", "100/s"])),
    st.tuples(st.sampled_from(["refund", "charge", "delay"]), CALLERS, st.integers(1, 5)),
)


class World:
    """A limit that four keys share, and callers that ask it directly."""

    def __init__(self, levels: int) -> None:
        self.clock = SteppedClock()
        self.top = aiorate.Limiter(aiorate.TokenBucket("50/s", burst=LARGEST, initial=0), clock=self.clock)
        shared = self.top
        for _ in range(levels - 1):
            between = aiorate.KeyedLimiter[str](lambda key: self.limiter("5000/s"), shared=shared)
            shared = between["only"]
        self.shared = shared
        self.keyed = aiorate.KeyedLimiter[str](lambda key: self.limiter("5000/s"), shared=shared, weight=WEIGHTS.__getitem__)
        self.tasks: list[asyncio.Task[None]] = []
        self.granted: list[tuple[str, int, int]] = []  # whose, how many permits, and the number of the request

    def limiter(self, rate: str) -> aiorate.Limiter:
        return aiorate.Limiter(aiorate.TokenBucket(rate, burst=1000), clock=self.clock)

    def at(self, key: str) -> aiorate.Limiter:
        return self.shared if key == DIRECT else self.keyed[key]

    async def step(self, kind: str, one: Any, two: Any) -> None:
        if kind == "ask":
            self.tasks += [asyncio.ensure_future(self.ask(one, permits, len(self.tasks) + place)) for place, permits in enumerate(two)]
        elif kind == "run":
            await self.clock.run(one / 1000)
        elif kind == "cancel":
            for task in [task for task in self.tasks if not task.done()][one % 20 : one % 20 + 1]:
                task.cancel()
        elif kind == "cancel granted":
            self.clock.fire()  # and before any task runs
            for task in [task for task in self.tasks if not task.done()][one :: one + 1]:
                task.cancel()
        else:
            getattr(self.at(one), kind)(*([] if two is None else [two]))
        await turns(3)

    async def ask(self, key: str, permits: int, number: int) -> None:
        await self.at(key).acquire(permits)
        self.granted.append((key, permits, number))

    async def end(self) -> None:
        """Every request that was not cancelled is granted in the end, in order within its key, and nothing is left behind."""
        for key in [*KEYS, DIRECT]:
            self.at(key).resume()
        self.top.set_rate("1000/s")
        await self.step("run", 60_000, None)
        assert all(task.done() for task in self.tasks)
        assert len(self.granted) == sum(not task.cancelled() for task in self.tasks)
        for key in [*KEYS, DIRECT]:
            numbers = [number for name, _, number in self.granted if name == key]
            assert numbers == sorted(numbers)
        for limiter in (self.top, self.shared, *(self.at(key) for key in KEYS)):
            assert 0 == limiter.statistics().waiting
        permits, seen = sum(permits for _, permits, _ in self.granted), self.top.statistics()
        assert seen.granted <= permits <= seen.granted + seen.refunded
        assert self.clock.next_timer is None


@settings(max_examples=40)
@given(levels=st.sampled_from([1, 1, 2, 3]), steps=st.lists(STEP, min_size=1, max_size=40))
def test_nothing_is_lost_and_each_key_is_served_in_order(levels: int, steps: list[tuple[str, Any, Any]]) -> None:
    """Whatever is cancelled, paused, refunded or changed meanwhile, at one level or at several."""

    async def main() -> None:
        world = World(levels)
        for step in steps:
            await world.step(*step)
        await world.end()

    asyncio.run(main())
