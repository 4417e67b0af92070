"""The whole limiter against a slow and plain model: one list and one scheduler, asked again at each instant that it names.

After random histories of everything that users may call, grants, `delay()` and counts must agree to the nanosecond.
The model has no drivers, no kept estimates and no offset: its time is the sum of all time that was neither paused nor stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import count

import pytest
from helpers.driving import SECOND
from helpers.strategies import EACH
from hypothesis import given, settings
from hypothesis import strategies as st

import aiorate
from aiorate._tree import tree
from aiorate.testing import ManualClock

CATCH_UP = SECOND // 50


class Model:
    """A line and a scheduler, moved from one instant at which a request is due to the next."""

    def __init__(self, scheduler: aiorate.Scheduler) -> None:
        self.scheduler = scheduler
        self.clock = self.time = self.held_for = self.paused_until = 0
        self.stopped = self.closed = False
        self.line: list[tuple[int, int, int, int]] = []  # name, permits, the limiter's time and the clock when it was asked
        self.taken = self.returned = 0
        self.granted: dict[int, tuple[int, int]] = {}  # name: when, and how long it had waited

    @property
    def held(self) -> bool:
        return self.stopped or self.clock < self.paused_until

    def run_to(self, clock: int) -> None:
        """Let time pass, and grant each request when it is due."""
        while (wake := self.serve()) is not None and wake <= clock:
            self.move_to(wake)
        self.move_to(clock)
        self.serve()

    def move_to(self, clock: int) -> None:
        if self.held:
            self.held_for += clock - self.clock
        else:
            self.time += clock - self.clock
        self.clock = clock

    def serve(self) -> int | None:
        """Grant what is due; return the instant at which to ask again, None for never."""
        if self.held:
            return None if self.stopped else self.paused_until
        if self.held_for:
            self.scheduler._shift(self.held_for)
        self.held_for = 0
        while self.line:
            name, permits, since, asked = self.line[0]
            at = self.scheduler.take(permits, self.time, max(since, self.time - CATCH_UP))
            if at > self.time:
                return self.clock + at - self.time
            self.granted[name] = self.clock, self.clock - asked
            self.taken += permits
            del self.line[0]
        return None

    def ask(self, name: int, permits: int) -> None:
        self.line.append((name, permits, self.time, self.clock))
        self.serve()

    def leave(self, name: int) -> None:
        self.line = [request for request in self.line if request[0] != name]
        self.serve()

    def delay(self, permits: int) -> float:
        """Ask in a copy, and let its time pass until the grant."""
        if self.stopped or self.closed:
            return float("inf")
        copy = deepcopy(self)
        copy.ask(-1, permits)
        while -1 not in copy.granted:
            wake = copy.serve()
            assert wake is not None
            copy.move_to(wake)
            copy.serve()
        return (copy.granted[-1][0] - self.clock) / SECOND

    def changed(self) -> None:
        most = self.scheduler.max_permits
        self.line = [request for request in self.line if most is None or request[1] <= most]
        self.serve()

    def apply(self, text: str) -> None:
        spec = aiorate.RateSpec.parse(text)
        self.scheduler.apply(spec.rate, spec.burst_ratio, self.time)
        if spec.verb == "restart":
            self.scheduler.restart(self.time)
        if spec.verb == "stop":
            self.stopped = True
        elif spec.verb != "configure":
            self.stopped = self.closed = False
        self.changed()


class Pair:
    """A limiter and its model, for which each step is done."""

    def __init__(self, factory: Callable[[], aiorate.Scheduler]) -> None:
        self.clock = ManualClock()
        self.limiter = aiorate.Limiter(factory(), clock=self.clock)
        self.model = Model(factory())
        crooked = (aiorate.SlidingWindow, aiorate.CalendarWindow, aiorate.AllOf)
        self.straight = not isinstance(self.limiter.scheduler, crooked) and getattr(self.limiter.scheduler, "burst_ratio", 1) == 1
        # The first instant that is passed starts a schedule: this must happen here, not in a copy that delay() makes.
        assert self.limiter.delay() == 0.0
        self.model.scheduler.peek(1, 0)
        self.names: Iterator[int] = count()
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.granted: dict[int, tuple[int, int]] = {}

    async def one(self, name: int, permits: int) -> None:
        waited = await self.limiter.acquire(permits)
        self.granted[name] = self.clock.now(), round(waited * SECOND)

    async def do(self, gap: int, what: str, number: int) -> None:
        limiter, model = self.limiter, self.model
        await self.clock.run(gap / SECOND)
        model.run_to(self.clock.now())
        most = limiter.scheduler.max_permits
        permits = number if most is None else min(number, most)
        if model.closed and what in ("acquire", "try_acquire"):
            return
        name = next(self.names)
        if what == "acquire":
            self.tasks[name] = asyncio.ensure_future(self.one(name, permits))
            model.ask(name, permits)
        elif what == "try_acquire":
            before = model.granted.copy()
            model.ask(name, permits)
            expected = name in model.granted
            model.leave(name)
            model.granted = before
            assert limiter.try_acquire(permits) is expected
        elif what == "cancel":
            if model.line:
                name = model.line[0 if number == 1 else number % len(model.line)][0]
                self.tasks[name].cancel()
                await self.clock.run(0)
                model.leave(name)
        elif what == "delay":
            told, exact = limiter.delay(permits), model.delay(permits)
            assert told == exact if self.straight else told <= exact
        elif what == "pause":
            limiter.pause(number / 10)
            model.paused_until = max(model.paused_until, model.clock + number * SECOND // 10)
        elif what == "resume":
            limiter.resume()
            model.paused_until = model.clock
            model.serve()
        elif what == "refund":
            limiter.refund(permits)
            model.scheduler.give_back(permits, model.time)
            model.returned += min(permits, model.taken - model.returned)
            model.serve()
        elif what == "charge":
            limiter.charge(number)
            model.scheduler.charge(number, model.time)
            model.serve()
        elif what == "set_rate":
            if not isinstance(limiter.scheduler, aiorate.AllOf):
                rate = ("3/s", "7/s", "10/s", "40/s", "20/3s")[number % 5]
                limiter.set_rate(rate)
                model.scheduler.set_rate(aiorate.Rate.parse(rate), model.time)
                model.changed()
        elif what == "close":
            await limiter.aclose()
            model.closed, model.line = True, []
        elif not isinstance(limiter.scheduler, aiorate.AllOf):
            text = f"{('7', '10', '23')[number % 3]},{('1', '1.25', '2')[number % 3]},{what}"
            limiter.apply(text)
            model.apply(text)
        await self.clock.run(0)
        self.compare()

    def compare(self) -> None:
        """Assert that all that users can see agrees."""
        statistics = self.limiter.statistics()
        assert self.granted == {name: when for name, when in self.model.granted.items() if name in self.tasks}
        assert statistics.waiting == len(self.model.line)
        assert statistics.granted == self.model.taken - self.model.returned
        assert statistics.skipped == 0
        assert self.limiter.lag == self.model.scheduler.lag(self.model.time) / SECOND

    async def finish(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        await self.clock.run(0)
        assert self.clock.timers == 0


MS = SECOND // 1000
GAPS = [0, 0, 0, 1, 10 * MS, 50 * MS, 100 * MS, 137 * MS, SECOND - 1, 3 * SECOND]
OFTEN = ["acquire", "acquire", "acquire", "try_acquire", "cancel", "delay"]
SELDOM = ["pause", "resume", "refund", "charge", "set_rate", "stop", "start", "restart", "configure", "close"]
STEPS = st.tuples(st.sampled_from(GAPS), st.sampled_from(OFTEN * 2 + SELDOM), st.sampled_from([1, 1, 1, 2, 3, 7, 14]))


def run(strategy: str, steps: list[tuple[int, str, int]]) -> None:
    async def history() -> None:
        pair = Pair(EACH[strategy])
        for step in steps:
            await pair.do(*step)
        await pair.finish()

    asyncio.run(history())


def test_a_refund_pays_a_debt_from_now_on() -> None:
    """If it did from the instant of the charge, a full bucket would have held more in between than it can."""
    for strategy in EACH:
        for in_line in (0, 1):
            asked = [(0, "acquire", 1)] * in_line
            refunded = [(SECOND, "delay", 1), (10 * MS, "refund", 7), (0, "delay", 1), (3 * SECOND, "acquire", 1)]
            run(strategy, [(0, "charge", 14), *asked, *refunded])


def compare(strategy: str, examples: int) -> None:
    @settings(max_examples=examples)
    @given(st.lists(STEPS, min_size=4, max_size=40))
    def histories(steps: list[tuple[int, str, int]]) -> None:
        run(strategy, steps)

    histories()


@pytest.fixture(autouse=True)
def no_grain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wake-ups are kept a millisecond apart because loops fire early; a ManualClock does not."""
    monkeypatch.setattr(tree, "_GRAIN_NS", 0)


@pytest.mark.parametrize("strategy", EACH)
def test_the_limiter_agrees_with_a_list_and_a_scheduler(strategy: str) -> None:
    compare(strategy, 10)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", EACH)
def test_it_agrees_in_many_histories(strategy: str) -> None:
    compare(strategy, 200)
