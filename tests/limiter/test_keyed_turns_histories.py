"""Random histories of keys that take turns at a shared limit: nothing is lost, arrival order holds within a key, shares follow weights."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from fractions import Fraction
from itertools import accumulate
from typing import Any

from helpers.driving import SteppedClock, turns
from helpers.samples import examples, sampled
from hypothesis import given
from hypothesis import strategies as st

import aiorate

LARGEST = 5
KEYS = "abcd"
WEIGHTS = {"a": 1, "b": 1, "c": 3, "d": 20, "": 1}
DIRECT = ""

STEP = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from([*KEYS, DIRECT]), st.lists(st.integers(1, LARGEST), min_size=1, max_size=20)),
    st.tuples(st.just("run"), st.sampled_from([1, 7, 50, 400]), st.none()),
    st.tuples(st.just("cancel"), st.integers(0, 200), st.none()),
    st.tuples(st.just("cancel granted"), st.integers(0, 3), st.none()),
    st.tuples(st.just("pause"), st.sampled_from([*KEYS, DIRECT]), st.sampled_from([0.05, 0.5])),
    st.tuples(st.just("resume"), st.sampled_from([*KEYS, DIRECT]), st.none()),
    st.tuples(st.just("set_rate"), st.sampled_from([*KEYS, DIRECT]), st.sampled_from(["20/s", "100/s"])),
    st.tuples(st.just("refund"), st.sampled_from([*KEYS, DIRECT]), st.integers(1, 5)),
    st.tuples(st.just("charge"), st.sampled_from([*KEYS, DIRECT]), st.integers(1, 5)),
    st.tuples(st.just("delay"), st.sampled_from([*KEYS, DIRECT]), st.integers(1, 5)),
)


class Arrival:
    """A request: which key's, how many permits, and its place among those of the key."""

    def __init__(self, key: str, permits: int, place: int) -> None:
        self.key, self.permits, self.place = key, permits, place


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
        self.tasks: dict[asyncio.Task[Any], Arrival] = {}
        self.granted: list[Arrival] = []
        self.places: defaultdict[str, int] = defaultdict(int)

    def limiter(self, rate: str) -> aiorate.Limiter:
        return aiorate.Limiter(aiorate.TokenBucket(rate, burst=1000), clock=self.clock)

    def at(self, key: str) -> aiorate.Limiter:
        return self.shared if key == DIRECT else self.keyed[key]

    def waiting(self) -> set[str]:
        """The keys that have requests in line."""
        return {arrival.key for task, arrival in self.tasks.items() if not task.done()}

    async def step(self, kind: str, one: Any, two: Any) -> None:
        if kind == "ask":
            for permits in two:
                self.places[one] += 1
                arrival = Arrival(one, permits, self.places[one])
                self.tasks[asyncio.ensure_future(self.ask(arrival))] = arrival
            await turns(3)
        elif kind == "run":
            await self.run(one)
        elif kind == "cancel":
            pending = [task for task in self.tasks if not task.done()]
            if pending:
                pending[one % len(pending)].cancel()
            await turns(3)
        elif kind == "cancel granted":
            self.clock.fire()  # and before any task runs
            for task in [task for task in self.tasks if not task.done()][one :: one + 1]:
                task.cancel()
            await turns(3)
        elif kind == "delay":
            assert self.at(one).delay(two) >= 0
        else:
            getattr(self.at(one), kind)(*([] if two is None else [two]))
            await turns(3)

    async def run(self, ms: int) -> None:
        await self.clock.run(ms / 1000)
        await turns(3)

    async def ask(self, arrival: Arrival) -> None:
        await self.at(arrival.key).acquire(arrival.permits)
        self.granted.append(arrival)

    async def end(self) -> None:
        """Every request that was not cancelled is granted in the end, in order within its key, and nothing is left behind."""
        for key in [*KEYS, DIRECT]:
            self.at(key).resume()
        self.top.set_rate("1000/s")
        await self.run(60_000)
        assert all(task.done() for task in self.tasks)
        assert len(self.granted) == sum(not task.cancelled() for task in self.tasks)
        for key in [*KEYS, DIRECT]:
            places = [arrival.place for arrival in self.granted if arrival.key == key]
            assert places == sorted(places)
        for limiter in (self.top, self.shared, *(self.at(key) for key in KEYS)):
            dispatcher = limiter._dispatcher
            assert (len(dispatcher.line), dispatcher.waiters.resuming, dispatcher.counters.returnable) == (0, 0, 0)
        permits, seen = sum(arrival.permits for arrival in self.granted), self.top.statistics()
        assert seen.granted <= permits <= seen.granted + seen.refunded
        assert self.clock.next_timer is None


@sampled
@examples(400)
@given(levels=st.sampled_from([1, 1, 2, 3]), steps=st.lists(STEP, min_size=1, max_size=40))
def test_nothing_is_lost_and_each_key_is_served_in_order(levels: int, steps: list[tuple[str, Any, Any]]) -> None:
    """Whatever is cancelled, paused, refunded or changed meanwhile, at one level or at several."""

    async def main() -> None:
        world = World(levels)
        for step in steps:
            await world.step(*step)
        await world.end()

    asyncio.run(main())


@sampled
@examples(200)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("run"), st.sampled_from([7, 100, 400, 2_000]), st.none()),
            st.tuples(st.just("cancel"), st.integers(0, 2_000), st.none()),
            st.tuples(st.just("set_rate"), st.just(DIRECT), st.sampled_from(["20/s", "100/s"])),
            st.tuples(st.just("refund"), st.just(DIRECT), st.integers(1, 5)),
            st.tuples(st.just("charge"), st.just(DIRECT), st.integers(1, 5)),
            st.tuples(st.just("pause"), st.just(DIRECT), st.sampled_from([0.05, 0.5])),
        ),
        min_size=5,
        max_size=30,
    ),
    seed=st.integers(0, 1000),
)
def test_shares_hold_through_cancellations_and_changes(steps: list[tuple[str, Any, Any]], seed: int) -> None:
    """Over any grants between which all keys wait, each key is within two largest requests of its share."""

    async def main() -> None:
        world = World(1)
        await world.step("ask", DIRECT, [number % LARGEST + 1 for number in range(seed, seed + 200)])
        for key in KEYS:
            await world.step("ask", key, [(number * 7 + seed) % LARGEST + 1 for number in range(400)])
        for step in steps:
            await world.step(*step)
            if world.waiting() != set(WEIGHTS):
                break
        total = sum(WEIGHTS.values())
        for key, weight in WEIGHTS.items():
            steps_ahead = [Fraction(each.permits * ((each.key == key) * total - weight), total) for each in world.granted]
            ahead = list(accumulate(steps_ahead, initial=Fraction(0)))
            assert max(ahead) - min(ahead) <= 2 * LARGEST
        for task in world.tasks:
            task.cancel()
        await turns(3)
        assert world.clock.next_timer is None

    asyncio.run(main())
