"""Limits that budgets share: another budget, on any number of levels, or a Limiter as a dimension."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial, reduce
from typing import Any

import pytest
from helpers.calls import Calls, left
from helpers.driving import SECOND, SteppedClock, one_loop, others, turns
from helpers.strategies import EACH
from helpers.turns import furthest

import aiorate
from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, LimiterClosed, SlidingWindow, TokenBucket, WaitTooLong
from aiorate.http import Feedback, Quota
from aiorate.testing import ManualClock

pytestmark = one_loop


def bucket(rate: int, burst: int) -> TokenBucket:
    return TokenBucket(rate, burst)


class Levels:
    """Two users of one team, in one organisation. Requests are limited below, tokens above, and words by the team alone."""

    def __init__(self, clock: SteppedClock) -> None:
        self.clock = clock
        self.top = Budget(tokens=bucket(10, 100), clock=clock, name="all")
        self.team = Budget(tokens=bucket(5, 50), words=bucket(2, 20), shared=self.top, clock=clock, name="team")
        self.ann, self.bob = (Budget(requests=bucket(1, 5), shared=self.team, clock=clock, name=name) for name in ("ann", "bob"))
        self.a, self.b = Calls(self.ann, clock), Calls(self.bob, clock)

    @property
    def left(self) -> list[dict[str, int]]:
        return [left(budget) for budget in (self.ann, self.bob, self.team, self.top)]


@pytest.fixture
def levels(clock: SteppedClock) -> Levels:
    return Levels(clock)


async def test_amounts_are_taken_from_every_level_by_name(levels: Levels) -> None:
    """A name that is only above takes 0 where it is not named, and may be named."""
    assert (("requests", "tokens", "words"), ("tokens", "words")) == (levels.ann.dimensions, levels.team.dimensions)
    async with levels.ann.reserve() as one, levels.bob.reserve(tokens=30, words=4) as two:
        assert ({"requests": 1, "tokens": 0, "words": 0}, {"requests": 1, "tokens": 30, "words": 4}) == (one.amounts, two.amounts)
        ann, bob, team, top = levels.left
    assert {"requests": 4, "tokens": 20, "words": 16} == ann == bob
    assert ({"tokens": 20, "words": 16}, {"tokens": 70}) == (team, top)


async def test_estimates_are_lowered_to_the_least_level(clock: SteppedClock) -> None:
    """Whichever level that is. An event says so, once for each dimension."""
    events: list[aiorate.Event] = []
    top = Budget(tokens=SlidingWindow("30/min"), words=SlidingWindow("9/min"), clock=clock)
    team = Budget(tokens=SlidingWindow("40/min"), words=SlidingWindow("7/min"), shared=top, clock=clock)
    user = Budget(requests=SlidingWindow("2/min"), shared=team, clock=clock, on_event=events.append)
    async with user.reserve(tokens=100, words=100) as lease:
        assert {"requests": 1, "tokens": 30, "words": 7} == lease.amounts
    user.reserve(tokens=50, words=8)
    assert [("clamped", "tokens", 30), ("clamped", "words", 7)] == [(event.kind, event.key, event.permits) for event in events]
    assert [60.0, 60.0, 0.0] == [user.delay(tokens=1), user.delay(words=1), user.delay()]


async def test_what_comes_back_reaches_every_level(clock: SteppedClock) -> None:
    """At once, by receipt: the next reservation of another user has it in the same step."""
    for how in ("settle", "refund", "error"):
        levels = Levels(clock)
        levels.a.ask("a", tokens=40, on_error="refund")
        await turns(3)
        await levels.b.queue("b", tokens=30)
        if how == "settle":
            await levels.a.end("a", tokens=10, words=4)
        elif how == "refund":
            levels.a.leases["a"].refund()
            await turns(5)
        else:
            await levels.a.end("a", error=OSError("broken"))

        kept, words = (10, 16) if how == "settle" else (0, 20)
        assert ["b"] == list(levels.b.granted)
        assert [{"tokens": 20 - kept, "words": words}, {"tokens": 70 - kept}] == levels.left[2:], how
        assert levels.ann.available("requests") == (4 if how == "settle" else 5)


async def test_use_above_the_estimate_is_owed_on_every_level(levels: Levels) -> None:
    await levels.a.queue("a", tokens=10)
    await levels.a.end("a", tokens=60, words=22)
    assert [2.2, 1.5, 0.0] == [levels.bob.delay(tokens=1), levels.bob.delay(words=1), levels.bob.delay()]
    assert levels.top.available("tokens") == 40


async def test_max_wait_and_limited_by_know_the_levels_above(levels: Levels) -> None:
    await levels.a.queue("x", tokens=50)
    with pytest.raises(WaitTooLong, match="tokens"):
        await levels.bob.reserve(tokens=5, max_wait=0.9).__aenter__()
    await levels.b.queue("y", tokens=5, max_wait=1)
    await levels.b.queue("z", requests=5)
    await levels.clock.run(9)
    assert {"y": SECOND, "z": 2 * SECOND} == levels.b.granted
    assert ["tokens", "requests"] == [levels.b.leases[name].limited_by for name in "yz"]


async def test_budgets_take_turns_by_their_first_dimension(clock: SteppedClock) -> None:
    """Where one reserves five times as many tokens at a time, it gets a fifth of the reservations."""
    top = Budget(tokens=TokenBucket("100/s", burst=50, initial=0), requests=TokenBucket("1000/s", burst=50), clock=clock)
    keyed = KeyedBudget[str](lambda key: Budget(tokens=bucket(9999, 9999), clock=clock), shared=top)
    sizes, grants = {"large": 25, "small": 5}, list[tuple[str, int]]()

    async def reserve(key: str) -> None:
        async with keyed.reserve(key, tokens=sizes[key]):
            grants.append((key, sizes[key]))

    tasks = [asyncio.ensure_future(reserve(key)) for _ in range(150) for key in sizes]
    await turns(3)
    while len(grants) < 150:
        clock.fire()
        await turns(6)

    assert furthest(grants[:150], {"large": 1, "small": 1}) <= 25
    for task in tasks:
        task.cancel()
    await turns(4)
    assert clock.next_timer is None


async def test_a_reservation_of_nothing_above_does_not_wait_above(levels: Levels) -> None:
    """Neither for permits nor for the end of a pause: it takes nothing there."""
    levels.team.pause(9)
    async with levels.ann.reserve() as lease:
        assert (0.0, None) == (lease.waited, lease.limited_by)
    with pytest.raises(WaitTooLong, match="9 s"):
        await levels.ann.reserve(words=1, max_wait=1).__aenter__()


async def test_a_pause_concerns_the_budget_that_heard_of_it(levels: Levels) -> None:
    """A quota of a dimension that is only above lowers it there, for all."""
    levels.ann.observe(Feedback(429, pause=5.0, quotas=(Quota("words", remaining=3, reset=9.0, unit="words"),)))
    paused = [budget.statistics().paused_until for budget in (levels.ann, levels.bob, levels.team, levels.top)]
    assert [5.0, None, None, None] == paused
    assert 3 == levels.bob.available("words")
    levels.clock.advance(9)
    assert 20 == levels.ann.available("words")


@pytest.mark.parametrize("closed", ["top", "team"])
async def test_the_error_says_which_level_is_closed(levels: Levels, closed: str) -> None:
    """For reservations in the shared line, those behind them, and later ones; nothing is spent, and what is open goes on."""
    await levels.a.queue("a", tokens=50)
    await levels.a.queue("bc", tokens=5)
    await (levels.top if closed == "top" else levels.team).aclose()
    await turns(5)
    await levels.a.queue("d", tokens=5)
    await levels.clock.run(2)

    name = "'all'" if closed == "top" else "'team'"
    for each in "bcd":
        error = levels.a.tasks[each].exception()
        assert isinstance(error, LimiterClosed)
        assert name in str(error)
    assert float("inf") == levels.ann.delay(tokens=1)
    await levels.a.end("a", tokens=0)
    assert 5 == levels.ann.available("requests")
    assert {"tokens": 0, "words": 20 if closed == "top" else 0} == left(levels.team)


async def test_bad_arguments_of_levels_are_refused(levels: Levels) -> None:
    make, top = partial(Budget, requests="1/s"), levels.top
    rows: list[tuple[Any, type[Exception], str]] = [
        (lambda: make(shared="500/min"), TypeError, "shared"),
        (lambda: make(shared=Limiter("1/s")), TypeError, "shared"),
        (lambda: make(shared=lambda key: top), TypeError, "shared"),
        (lambda: make(shared=KeyedLimiter(lambda key: "1/s")), TypeError, "shared"),
        (lambda: make(requests=Limiter("1/s"), words="1/s", shared=top), ValueError, "requests"),
        (lambda: Budget(shared=top), TypeError, "dimension"),
        (lambda: make(shared=Budget(tokens="1/s", max_waiting=3)), ValueError, "max_waiting"),
        (lambda: reduce(lambda below, _: make(shared=below), range(64), top), ValueError, "64"),
        (lambda: make(requests=Limiter("5/s"), tokens=Limiter("5/s"), words="1/s"), ValueError, "requests and tokens"),
        (lambda: Budget(tokens=Limiter("5/s")), TypeError, "dimension"),
        (lambda: make(shared=top).reserve(words=1), TypeError, "words"),
        (lambda: make(shared=top).available("words"), TypeError, "words"),
    ]
    for call, error, hint in rows:
        with pytest.raises(error, match=hint):
            call()

    assert 100 == levels.top.available("tokens")


# A Limiter as a dimension.


@pytest.fixture
def shared(clock: SteppedClock) -> Limiter:
    return Limiter(TokenBucket("10/s", burst=100), clock=clock)


def chat(shared: Limiter, clock: ManualClock, **options: Any) -> Calls:
    return Calls(Budget(requests=TokenBucket("1/s", burst=5), tokens=shared, clock=clock, **options), clock)


async def test_two_budgets_share_the_tokens_of_one_account(shared: Limiter, clock: SteppedClock) -> None:
    one, two = chat(shared, clock), chat(shared, clock)
    one.ask("a", tokens=60)
    two.ask("b", tokens=60)
    direct = asyncio.ensure_future(shared.acquire(30))
    await clock.run(60)
    assert (one.granted, two.granted) == ({"a": 0}, {"b": 2 * SECOND})
    assert direct.result() == 5.0
    await one.end("a")
    await two.end("b")


async def test_a_waiting_reservation_takes_from_neither_limit(shared: Limiter, clock: SteppedClock) -> None:
    calls = chat(shared, clock)
    await calls.queue("a", requests=5)
    await calls.queue("b", requests=2, tokens=50)
    await clock.run(1.5)
    assert shared.statistics().available == 100
    shared.charge(100)
    await clock.run(10)
    assert calls.granted == {"a": 0, "b": 6.5 * SECOND}
    assert calls.leases["b"].limited_by == "tokens"


async def test_a_shared_limit_is_settled_too(shared: Limiter, clock: SteppedClock) -> None:
    """What was not used comes back at once, by receipt; what was used on top is a debt that all who share it pay."""
    one, two = chat(shared, clock), chat(shared, clock)
    await one.queue("ab", tokens=50)
    await two.queue("c", tokens=20)
    await one.end("a", tokens=20)

    assert two.granted == {"c": 0}
    assert shared.statistics().available == 10
    await one.end("b", tokens=80)
    assert shared.delay(1) == 2.1
    assert shared.statistics().granted == 20 + 50 + 20
    await two.end("c", tokens=0)
    assert shared.statistics().available == 0


class Scene:
    """Two budgets and a direct caller at one shared limit: "b" is cancelled at a given iteration after a given timer."""

    def __init__(self, name: str) -> None:
        self.clock = SteppedClock()
        self.shared = Limiter(EACH[name](), clock=self.clock)
        self.own = [TokenBucket("5/s", burst=1), TokenBucket("5/s", burst=1)]
        self.one, self.two = (Calls(Budget(own=own, tokens=self.shared, clock=self.clock), self.clock) for own in self.own)

    async def play(self, step: int, turn: int) -> dict[str, int]:
        """The instant of each grant. Timers are fired one by one, each followed by eight iterations of the loop."""
        self.shared.delay()  # its schedule begins now
        while self.shared.try_acquire():
            pass
        for name in "abc":
            self.one.ask(name)
            self.two.ask(name.upper())
        direct = asyncio.ensure_future(self.shared.acquire())
        await turns(5)
        fired = 0
        while self.clock.next_timer is not None and fired < 40:
            self.clock.fire()
            fired += 1
            for count in range(8):
                if fired == step and count == turn:
                    self.one.tasks["b"].cancel()
                await turns(1)
        assert direct.done()
        return {**self.one.granted, **self.two.granted}


@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket", "SlidingWindow"])
async def test_a_reservation_may_be_cancelled_at_every_point(name: str) -> None:
    """No permit is lost by one in its own line, at its head, in the shared line, granted in either, or inside."""
    ended = set()
    for step, turn in itertools.product(range(6), range(8)):
        scene = Scene(name)
        granted = await scene.play(step, turn)
        task = scene.one.tasks["b"]
        ended.add((task.cancelled(), "b" in granted))
        for calls in (scene.one, scene.two):
            await calls.end(*calls.granted)
        await turns(3)

        assert set(granted) | ({"b"} if task.cancelled() else set()) == set("abcABC")
        assert scene.shared.statistics().granted - len(granted) == EACH[name]().available(0) + 1
        assert (0, 0, 0) == (scene.shared.statistics().waiting, scene.one.budget.waiting, scene.two.budget.waiting)
        assert (scene.clock.timers, others()) == (0, set())
    assert ended == {(True, False), (True, True), (False, True)}


async def test_a_lowered_limit_two_levels_up_fails_reservations_now_too_large(clock: SteppedClock) -> None:
    """Their budget compared a number of requests with what the limit allows, and asked again for ever."""
    limiter = Limiter(SlidingWindow("10/s"), clock=clock)
    team = Budget(requests="100/s", tokens=limiter, clock=clock)
    user = Calls(Budget(requests="50/s", shared=team, clock=clock), clock)
    for name, tokens in (("first", 10), ("large", 8), ("small", 2)):
        user.ask(name, tokens=tokens)
        await turns(3)

    limiter.set_rate("4/s")
    await clock.run(3)

    with pytest.raises(ValueError, match=r"for 8 .*: 4 is"):
        user.tasks["large"].result()
    assert "small" in user.granted
