"""Budget(shared=budget): users, teams and an organisation, each with requests and tokens."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from helpers.calls import Calls, left
from helpers.driving import SECOND, SteppedClock, one_loop, turns

import aiorate
from aiorate import Budget, KeyedLimiter, Limiter, LimiterClosed, SlidingWindow, TokenBucket, WaitTooLong
from aiorate.http import Feedback, Quota

pytestmark = one_loop


def bucket(rate: int, burst: int) -> TokenBucket:
    return TokenBucket(rate, burst)


class Levels:
    """Two users of one team, in one organisation. Requests are limited below, tokens above, and words by the team alone."""

    def __init__(self, clock: SteppedClock, **options: Any) -> None:
        self.clock = clock
        self.top = Budget(tokens=bucket(10, 100), clock=clock, name="all", **options)
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


async def test_a_name_on_two_levels_is_taken_from_both(clock: SteppedClock) -> None:
    """Named or not: it takes 1 here, and so above."""
    top = Budget(tokens=bucket(1, 10), calls=bucket(1, 10), clock=clock)
    user = Budget(tokens=bucket(1, 4), shared=top, clock=clock)

    async with user.reserve(), user.reserve(tokens=2, calls=3):
        assert ({"tokens": 1, "calls": 7}, {"tokens": 7, "calls": 7}) == (left(user), left(top))


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


@pytest.mark.parametrize("how", ["settle", "refund", "error", "cancelled wait", "cancelled grant"])
async def test_what_comes_back_reaches_every_level(levels: Levels, how: str) -> None:
    """At once, by receipt: the next reservation of another user has it in the same step."""
    await levels.a.queue("a", tokens=40)
    if how.startswith("cancelled"):
        await levels.b.queue("b", tokens=20)
        assert not levels.b.granted
        levels.clock.set(2 * SECOND)
        if how == "cancelled wait":
            await turns(5)
            await levels.b.queue("c", tokens=20)
            levels.b.tasks["c"].cancel()
        else:
            levels.b.tasks["b"].cancel()
        await turns(5)
        taken = 20 if how == "cancelled wait" else 0
        assert [{"tokens": 20 - taken, "words": 20}, {"tokens": 80 - taken}] == levels.left[2:]
        return
    await levels.b.queue("b", tokens=30)
    if how == "settle":
        await levels.a.end("a", tokens=10, words=4)
    elif how == "refund":
        levels.a.leases["a"].refund()
        await turns(5)
    else:
        levels.a.leases["a"].refund()
        await levels.a.end("a", error=OSError("broken"))

    assert {"b": 0} == levels.b.granted
    kept = 10 if how == "settle" else 0
    words = 16 if how == "settle" else 20
    assert [{"tokens": 20 - kept, "words": words}, {"tokens": 70 - kept}] == levels.left[2:]
    assert levels.ann.available("requests") == (4 if how == "settle" else 5)


async def test_use_above_the_estimate_is_owed_on_every_level(levels: Levels) -> None:
    """Also of a dimension of which nothing was reserved."""
    await levels.a.queue("a", tokens=10)

    await levels.a.end("a", tokens=60, words=22)

    assert [2.2, 1.5, 0.0] == [levels.bob.delay(tokens=1), levels.bob.delay(words=1), levels.bob.delay()]
    assert levels.top.available("tokens") == 40


async def test_an_error_refunds_every_level(clock: SteppedClock) -> None:
    """With on_error="refund", of the budget that was asked."""
    top = Budget(tokens=bucket(1, 10), clock=clock)
    user = Budget(requests=bucket(1, 5), shared=top, clock=clock, on_error="refund")

    with pytest.raises(OSError, match="broken"):
        async with user.reserve(tokens=8):
            raise OSError("broken")

    assert ({"requests": 5, "tokens": 10}, {"tokens": 10}) == (left(user), left(top))


async def test_a_busy_user_delays_no_other_user(levels: Levels) -> None:
    """Only the first reservation of each stands in the shared line, and one that takes nothing there does not."""
    await levels.a.queue("x", tokens=50)
    await levels.a.queue(range(4), tokens=5)
    await levels.b.queue("y", tokens=5)
    await levels.b.queue("z")
    await levels.clock.run(60)

    assert {"x": 0, 0: 1, 1: 3, 2: 4, 3: 5} == {name: at // SECOND for name, at in levels.a.granted.items()}
    assert {"y": 2 * SECOND, "z": 2 * SECOND} == levels.b.granted


async def test_a_reservation_of_nothing_above_does_not_wait_above(levels: Levels) -> None:
    """Neither for permits nor for the end of a pause: it takes nothing there."""
    levels.team.pause(9)
    async with levels.ann.reserve() as lease:
        assert (0.0, None) == (lease.waited, lease.limited_by)
    with pytest.raises(WaitTooLong, match="would wait 9 s because the shared budget is paused"):
        await levels.ann.reserve(words=1, max_wait=1).__aenter__()


async def test_limited_by_names_the_dimension_of_any_level(levels: Levels) -> None:
    """The user's requests, the team's words, the tokens of all, or None where only a pause was in the way."""
    await levels.a.queue("x", tokens=50, words=20)
    await Calls(levels.top, levels.clock).queue("y", tokens=50)
    await levels.a.queue("t", tokens=2, words=0)
    await levels.b.queue("w", words=1)
    await levels.clock.run(0.6)
    await levels.b.queue("r", requests=5)
    await levels.clock.run(20)
    levels.team.pause(1)
    await levels.b.queue("p", tokens=1)
    await levels.clock.run(20)

    names = {name: calls.leases[name].limited_by for calls, name in [(levels.a, "t"), *((levels.b, each) for each in "wrp")]}
    assert {"t": "tokens", "w": "words", "r": "requests", "p": None} == names
    assert [0.5, 1.0] == [levels.b.leases[name].waited for name in "wp"]


async def test_max_wait_counts_the_levels_above(levels: Levels) -> None:
    """The error says for what."""
    await levels.a.queue("a", tokens=50)

    for amounts, why in (({"tokens": 5}, "would wait 1 s for tokens"), ({"requests": 6}, "would wait 1 s for requests")):
        if "requests" in amounts:
            await levels.b.queue("b", requests=5)
            amounts = {"requests": 1}
        with pytest.raises(WaitTooLong, match=why):
            await levels.bob.reserve(**amounts, max_wait=0.9).__aenter__()
    await levels.a.queue("c", tokens=5)
    with pytest.raises(WaitTooLong, match="would wait 2 s"):
        await levels.bob.reserve(tokens=5, max_wait=1.9).__aenter__()
    await levels.b.queue("d", tokens=5, max_wait=2)
    await levels.clock.run(9)
    assert 2 * SECOND == levels.b.granted["d"]


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
        assert f"the shared budget {name} is closed" in str(error)
    assert float("inf") == levels.ann.delay(tokens=1)
    await levels.a.end("a", tokens=0)
    assert 5 == levels.ann.available("requests")
    assert {"tokens": 0, "words": 20 if closed == "top" else 0} == left(levels.team)


async def test_closing_a_user_leaves_the_levels_above_open(levels: Levels) -> None:
    """Its reservations leave their lines, and its leases can still be settled."""
    await levels.a.queue("a", tokens=50)
    await levels.a.queue("b", tokens=5)
    await levels.b.queue("c", tokens=5)

    await levels.ann.aclose()
    await turns(5)
    assert isinstance(levels.a.tasks["b"].exception(), LimiterClosed)
    await levels.a.end("a", tokens=0)

    assert {"c": 0} == levels.b.granted
    assert levels.left[2:] == [{"tokens": 45, "words": 20}, {"tokens": 95}]


async def test_statistics_and_repr_of_levels(levels: Levels) -> None:
    """A level counts the reservations that took something of it."""
    async with levels.ann.reserve(), levels.ann.reserve(tokens=5), levels.team.reserve():
        granted = [budget.statistics().granted for budget in (levels.ann, levels.team, levels.top)]

    assert [2, 2, 2] == granted
    assert repr(levels.ann).startswith("<Budget 'ann' requests=TokenBucket(")
    assert "shared=<Budget 'team' tokens=TokenBucket(" in repr(levels.ann)
    assert 3 == levels.ann.statistics().available


async def test_a_shared_budget_may_have_a_shared_limiter(clock: SteppedClock) -> None:
    """Three kinds of levels in a row: a budget, a budget with a Limiter as a dimension, and what that shares."""
    account = Limiter(bucket(10, 100), clock=clock)
    tenant = KeyedLimiter[str](lambda key: Limiter(bucket(10, 80), clock=clock), shared=account)["acme"]
    team = Budget(words=bucket(1, 10), tokens=tenant, clock=clock)
    user = Budget(requests=bucket(1, 5), shared=team, clock=clock)
    assert ("requests", "words", "tokens") == user.dimensions

    async with user.reserve(tokens=90) as lease:
        assert {"requests": 1, "words": 0, "tokens": 80} == lease.amounts
        assert (0, 20) == (user.available("tokens"), account.statistics().available)
        lease.settle(tokens=10)
    assert (70, 90) == (user.available("tokens"), account.statistics().available)
    await account.aclose()
    with pytest.raises(LimiterClosed, match="the shared Limiter 'tokens' is closed"):
        await user.reserve(tokens=1).__aenter__()


# Bad input.

MAKE: Any = Budget


@pytest.mark.parametrize(
    ("make", "error", "hint"),
    [
        (lambda top: MAKE(requests="1/s", shared="500/min"), TypeError, r"Budget\(shared\) takes a Budget.*give it another name"),
        (lambda top: MAKE(requests="1/s", shared=Limiter("1/s")), TypeError, r"as a dimension, such as Budget\(tokens=limiter"),
        (lambda top: MAKE(requests="1/s", shared=lambda key: top), TypeError, r"KeyedBudget\(factory, shared="),
        (lambda top: MAKE(requests="1/s", shared=KeyedLimiter(lambda key: "1/s")), TypeError, "has a limit for each key"),
        (lambda top: MAKE(requests=Limiter("1/s"), words="1/s", shared=top), ValueError, "'requests'.*dimension of the shared budget"),
        (lambda top: MAKE(shared=top), TypeError, "at least one dimension"),
        (lambda top: MAKE(requests="1/s", shared=Budget(tokens="1/s", max_waiting=3)), ValueError, "max_waiting=3.*budgets that share"),
        (lambda top: MAKE(requests="1/s", shared=top).reserve(words=1), TypeError, "'words'; the dimensions are requests, tokens"),
        (lambda top: MAKE(requests="1/s", shared=top).reserve(tokens=-1), ValueError, "tokens"),
        (lambda top: MAKE(requests="1/s", shared=top).delay(words=1), TypeError, "'words'"),
        (lambda top: MAKE(requests="1/s", shared=top).available("words"), TypeError, "'words'"),
    ],
)
async def test_bad_arguments_of_levels_are_refused(levels: Levels, make: Any, error: type[Exception], hint: str) -> None:
    """The error says what to write instead, and nothing is spent."""
    with pytest.raises(error, match=hint):
        make(levels.top)

    assert 100 == levels.top.available("tokens")


async def test_64_levels_of_budgets_work(clock: SteppedClock) -> None:
    """More are refused."""
    budget = Budget(tokens=bucket(1, 1), clock=clock)
    for _ in range(63):
        budget = Budget(tokens=bucket(2, 2), shared=budget, clock=clock)
    calls = Calls(budget, clock)
    await calls.queue("abc")
    await clock.run(5)

    assert {"a": 0, "b": SECOND, "c": 2 * SECOND} == calls.granted
    with pytest.raises(ValueError, match="64 are the most"):
        Budget(tokens="1/s", shared=budget, clock=clock)


async def test_each_level_is_late_by_its_own_catch_up(clock: SteppedClock) -> None:
    """After a stall of a second, the team's ten permits came in a tenth of a second, where its bound is two."""
    top = Budget(tokens=bucket(100, 1), clock=clock, catch_up=1)
    team = Budget(tokens=bucket(10, 1), shared=top, clock=clock, catch_up=0)
    user = Calls(Budget(tokens=bucket(100, 1), shared=team, clock=clock, catch_up=1), clock)
    await user.queue(range(40))
    await clock.run(1)
    clock.set(clock.now() + SECOND)
    await asyncio.sleep(0)
    await clock.run(10)

    instants = sorted(user.granted.values())
    assert 40 == len(instants)
    assert all(later - at >= SECOND // 10 for at, later in itertools.pairwise(instants))
