"""A KeyedLimiter in random histories: against its model to the nanosecond, and in turns on one to three levels."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.driving import SECOND, SteppedClock, others, turns
from helpers.keyed_model import EXACT, GAPS, MS, Limit, Model
from helpers.strategies import EACH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aiorate
from aiorate import KeyedLimiter, Limiter
from aiorate.testing import ManualClock
from aiorate.waiting.asyncio import view


class Pair:
    """A KeyedLimiter and its model, for which each step is done."""

    def __init__(self, kinds: dict[str, str], shared: str | None, by_function: bool) -> None:
        self.clock = ManualClock()
        self.kinds = kinds
        self.shared = None if shared is None else Limiter(self.begun(shared), clock=self.clock)
        self.keyed = KeyedLimiter[str](
            lambda key: Limiter(self.begun(kinds[key]), clock=self.clock),
            shared=(lambda key: self.shared) if by_function else self.shared,
            max_keys=2,
        )
        self.model = Model(None if shared is None else self.begun(shared))
        self.asked: list[str | None] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.granted: dict[int, int] = {}

    def begun(self, kind: str) -> aiorate.Scheduler:
        scheduler = EACH[kind]()
        scheduler.peek(1, self.clock.now())  # the first instant that is passed starts a schedule
        return scheduler

    def of(self, key: str | None) -> Limiter:
        """The limiter of the key; where it is made again, its model is too."""
        if key is None:
            assert self.shared is not None
            return self.shared
        if key not in self.keyed:
            self.model.flows.pop(key, None)
            if not (key in self.model.keys and self.kinds[key] in EXACT):
                self.model.keys[key] = Limit(self.begun(self.kinds[key]), self.clock.now())
        return self.keyed[key]

    async def one(self, name: int, key: str | None, permits: int) -> None:
        await (self.of(None).acquire(permits) if key is None else self.keyed.acquire(key, permits))
        self.granted[name] = self.clock.now()

    async def do(self, gap: int, what: str, key: str | None, number: int) -> None:
        model = self.model
        if model.shared is None and key is None:
            key = "a"
        await self.clock.run(gap / SECOND)
        model.run_to(self.clock.now())
        limiter, limit = self.of(key), model.of(key)
        permits = min(number, *(each.scheduler.max_permits or number for each in (limit, model.shared or limit)))
        if what == "acquire":
            name = len(self.tasks)
            del limiter
            self.asked.append(key)
            self.tasks.append(asyncio.ensure_future(self.one(name, key, permits)))
            await turns(1)
            model.ask(name, key, permits)
        elif what == "try_acquire":
            assert model.try_acquire(key, permits) is limiter.try_acquire(permits)
        elif what == "cancel":
            waiting = [name for name, asked in enumerate(self.asked) if asked == key and not self.tasks[name].done()]
            if waiting:
                name = waiting[0 if number < 3 else number % len(waiting)]
                self.tasks[name].cancel()
                await self.clock.run(0)
                model.leave(name, key)
        elif what == "pause":
            limiter.pause(number / 10)
            limit.paused_until = max(limit.paused_until, model.clock + number * SECOND // 10)
            model.serve(limit)
        elif what == "resume":
            limiter.resume()
            limit.paused_until = model.clock
            limit.move_to(model.clock)
            model.serve(limit)
        elif what in ("refund", "charge"):
            getattr(limiter, what)(permits)
            for each in model.path(key):
                (each.scheduler.give_back if what == "refund" else each.scheduler.charge)(permits, each.time)
            for each in reversed(model.path(key)):
                model.serve(each)
        else:
            self.keyed.evict()
        await self.clock.run(0)
        assert model.granted == self.granted
        for key, limit in model.keys.items():
            assert len(limit.line) == (self.keyed[key].statistics().waiting if key in self.keyed else 0)
        if model.shared is not None:
            assert len(model.shared.line) == self.of(None).statistics().waiting

    async def finish(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.clock.run(0)
        assert (0, set()) == (self.clock.timers, others())


STEPS = st.tuples(
    st.sampled_from(GAPS),
    st.sampled_from([*["acquire"] * 12, *["try_acquire", "cancel", "cancel", "evict"] * 2, "pause", "resume", "refund", "charge"]),
    st.sampled_from(["a", "a", "b", "c", "d", None]),
    st.sampled_from([1, 1, 1, 2, 3, 7]),
)
KINDS = [kind for kind in EACH if not kind.startswith("TokenPool")]
"""Without the pools, which grant an iteration of the loop later."""


def run(kinds: dict[str, str], shared: str | None, steps: list[tuple[int, str, str | None, int]], by_function: bool = False) -> None:

    async def history() -> None:
        pair = Pair(kinds, shared, by_function)
        for step in steps:
            await pair.do(*step)
        await pair.finish()

    asyncio.run(history())


def test_a_newcomer_behind_the_shared_limit_is_not_booked_early() -> None:
    """The time that the first of a key spends in the shared line is not a late wake-up, for which the next one might catch up."""
    for kind in KINDS:
        run(
            dict.fromkeys("abcd", kind),
            "SlidingWindow",
            [
                (0, "acquire", "a", 1),
                (0, "pause", None, 7),
                (0, "acquire", "a", 1),
                (700 * MS, "try_acquire", "a", 1),
                *[(0, "acquire", "a", 1)] * 6,
                (SECOND, "acquire", "a", 1),
            ],
        )


@settings(max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    kinds=st.fixed_dictionaries({key: st.sampled_from(KINDS) for key in "abcd"}),
    shared=st.sampled_from([*KINDS, None]),
    steps=st.lists(STEPS, min_size=4, max_size=40),
    by_function=st.booleans(),
)
def test_a_keyed_limiter_agrees_with_its_model(
    kinds: dict[str, str], shared: str | None, steps: list[tuple[int, str, str | None, int]], by_function: bool
) -> None:
    """After any sequence of requests, cancellations, pauses, changes and evictions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view, "GRAIN_NS", 0)  # wake-ups are a millisecond apart because loops fire early; a ManualClock does not
        run(kinds, shared, steps, by_function)


# Turns on several levels.

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
            assert (0, False) == (limiter.statistics().waiting, limiter.scheduler.receipts)
        permits, seen = sum(permits for _, permits, _ in self.granted), self.top.statistics()
        assert seen.granted <= permits <= seen.granted + seen.refunded
        assert self.clock.next_timer is None


@settings(max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(levels=st.sampled_from([1, 1, 2, 3]), steps=st.lists(STEP, min_size=1, max_size=40))
def test_nothing_is_lost_and_each_key_is_served_in_order(levels: int, steps: list[tuple[str, Any, Any]]) -> None:
    """Whatever is cancelled, paused, refunded or changed meanwhile, at one level or at several."""

    async def main() -> None:
        world = World(levels)
        for step in steps:
            await world.step(*step)
        await world.end()

    asyncio.run(main())
