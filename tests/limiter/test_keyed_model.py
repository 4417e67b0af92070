"""A KeyedLimiter against its model, in random histories: the instants of all grants must agree to the nanosecond."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from helpers.driving import SECOND, others, turns
from helpers.keyed_model import EXACT, GAPS, MS, Limit, Model
from helpers.samples import examples, sampled
from helpers.strategies import EACH
from hypothesis import given
from hypothesis import strategies as st

import aiorate
from aiorate.testing import ManualClock
from aiorate.waiting.asyncio import view
from aiorate.waiting.fair_queue import Flow


class Pair:
    """A KeyedLimiter and its model, for which each step is done."""

    def __init__(self, kinds: dict[str, str], shared: str | None, by_function: bool) -> None:
        self.clock = ManualClock()
        self.kinds = kinds
        self.shared = None if shared is None else self.limiter(shared)
        self.keyed = aiorate.KeyedLimiter(self.make, shared=(lambda key: self.shared) if by_function else self.shared, max_keys=2)
        self.model = Model(None if shared is None else self.begun(shared))
        self.names = count()
        self.asked: dict[int, str | None] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.granted: dict[int, int] = {}
        self.failed: set[int] = set()
        self.evicted = 0

    def begun(self, kind: str) -> aiorate.Scheduler:
        scheduler = EACH[kind]()
        scheduler.peek(1, self.clock.now())  # the first instant that is passed starts a schedule
        return scheduler

    def limiter(self, kind: str) -> aiorate.Limiter:
        return aiorate.Limiter(self.begun(kind), clock=self.clock)

    def make(self, key: str) -> aiorate.Limiter:
        return self.limiter(self.kinds[key])

    def of(self, key: str | None) -> aiorate.Limiter:
        """The limiter of the key; where it is made again, its model is too."""
        if key is None:
            assert self.shared is not None
            return self.shared
        if key not in self.keyed and not (key in self.model.keys and self.kinds[key] in EXACT):
            self.model.keys[key] = Limit(self.begun(self.kinds[key]), self.clock.now())
        if key not in self.keyed:
            self.model.flows[key] = Flow(1)
        limiter = self.keyed[key]
        self.evicted += sum(each not in self.keyed for each in self.model.keys)
        return limiter

    async def one(self, name: int, key: str | None, permits: int) -> None:
        try:
            await (self.of(None).acquire(permits) if key is None else self.keyed.acquire(key, permits))
            self.granted[name] = self.clock.now()
        except ValueError:
            self.failed.add(name)

    async def do(self, gap: int, what: str, key: str | None, number: int) -> None:
        model = self.model
        if model.shared is None and key is None:
            key = "a"
        await self.clock.run(gap / SECOND)
        model.run_to(self.clock.now())
        limiter = self.of(key)
        limit = model.of(key)
        most = [each.scheduler.max_permits for each in ([limit] if model.shared is None else [limit, model.shared])]
        permits = min([number, *(each for each in most if each is not None)])
        if what == "acquire":
            name = next(self.names)
            self.asked[name] = key
            del limiter
            self.tasks[name] = asyncio.ensure_future(self.one(name, key, permits))
            await turns(1)
            model.ask(name, key, permits)
        elif what == "try_acquire":
            expected = model.try_acquire(key, permits)
            assert expected is limiter.try_acquire(permits)
        elif what == "cancel":
            waiting = [name for name, asked in self.asked.items() if asked == key and not self.tasks[name].done()]
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
        elif what == "refund":
            limiter.refund(permits)
            for each in model.path(key):
                each.scheduler.give_back(permits, each.time)
                each.altered = True  # its bound no longer applies
            for each in reversed(model.path(key)):
                model.serve(each)
        elif what == "charge":
            limiter.charge(number)
            for each in model.path(key):
                each.scheduler.charge(number, each.time)
            for each in reversed(model.path(key)):
                model.serve(each)
        elif what == "evict":
            self.keyed.evict()
        elif not isinstance(limiter.scheduler, aiorate.AllOf):
            rate = ("3/s", "7/s", "10/s", "40/s", "20/3s")[number % 5]
            limiter.set_rate(rate)
            limit.scheduler.set_rate(aiorate.Rate.parse(rate), limit.time)
            model.rate_changed(limit)
        await self.clock.run(0)
        self.compare()

    def compare(self) -> None:
        """Assert that all that users can see agrees."""
        model = self.model
        assert (model.granted, model.failed) == (self.granted, self.failed)
        for key, limit in model.keys.items():
            assert len(limit.line) == (self.keyed[key].statistics().waiting if key in self.keyed else 0)
        if model.shared is not None:
            assert len(model.shared.line) == self.of(None).statistics().waiting

    async def finish(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        await self.clock.run(0)
        assert (0, set()) == (self.clock.timers, others())
        for limit in self.model.limits:
            if not limit.altered:
                keeps_its_bounds(limit)


def keeps_its_bounds(limit: Limit) -> None:
    """Assert that no window exceeds the scheduler's bound; nothing is late here, so no catch-up is added to it."""
    for window in (1, SECOND // 10, SECOND, 3 * SECOND):
        bound = limit.scheduler.bound(window, limit.largest)
        for begin, _ in limit.granted:
            assert bound is None or bound >= sum(permits for at, permits in limit.granted if begin <= at < begin + window)


OFTEN = ["acquire"] * 6 + ["try_acquire", "cancel", "cancel", "evict"]
SELDOM = ["pause", "resume", "refund", "charge", "set_rate"]
STEPS = st.tuples(
    st.sampled_from(GAPS),
    st.sampled_from(OFTEN * 2 + SELDOM),
    st.sampled_from(["a", "a", "b", "c", "d", None]),
    st.sampled_from([1, 1, 1, 2, 3, 7]),
)


def run(kinds: dict[str, str], shared: str | None, steps: list[tuple[int, str, str | None, int]], by_function: bool = False) -> None:
    """Run one history."""

    async def history() -> None:
        pair = Pair(kinds, shared, by_function)
        for step in steps:
            await pair.do(*step)
        await pair.finish()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(history())


@pytest.mark.parametrize("kind", EACH)
def test_newcomer_behind_shared_limit_is_not_booked_early(kind: str) -> None:
    """The time that the first of a key spends in the shared line is not a late wake-up, for which the next one might catch up."""
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


@sampled
@pytest.mark.parametrize("shared", [*EACH, None])
def test_a_keyed_limiter_agrees_with_its_model(shared: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They agree after any sequence of requests, cancellations, pauses, changes and evictions."""
    # Wake-ups are kept a millisecond apart because loops fire early; a ManualClock does not.
    monkeypatch.setattr(view, "GRAIN_NS", 0)

    @examples(30)
    @given(
        st.fixed_dictionaries({key: st.sampled_from(list(EACH)) for key in "abcd"}),
        st.lists(STEPS, min_size=4, max_size=40),
        st.booleans(),
    )
    def compare(kinds: dict[str, str], steps: list[tuple[int, str, str | None, int]], by_function: bool) -> None:
        run(kinds, shared, steps, by_function)

    compare()
