"""One dimension of a budget may be a Limiter that other budgets share, and that is awaited directly too."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from helpers.calls import Calls
from helpers.driving import SECOND, SteppedClock, one_loop, others, turns
from helpers.server import most_in_any_window
from helpers.strategies import EACH

import aiorate
from aiorate import Budget, Limiter, SlidingWindow, TokenBucket
from aiorate.http import Feedback, Quota
from aiorate.testing import ManualClock

pytestmark = one_loop


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def shared(clock: SteppedClock) -> Limiter:
    return Limiter(TokenBucket("10/s", burst=100), clock=clock)


@pytest.fixture
def shared_in_real_time() -> Limiter:
    return Limiter(TokenBucket("1/h", burst=100))


def chat(shared: Limiter, clock: ManualClock, **options: Any) -> Calls:
    """A budget of requests of its own and tokens that are shared, and its calls."""
    return Calls(Budget(requests=TokenBucket("1/s", burst=5), tokens=shared, clock=clock, **options), clock)


def at_rest(shared: Limiter, *all_calls: Calls) -> bool:
    """Whether nothing of any request is left anywhere."""
    return (
        not shared.scheduler.receipts
        and shared.statistics().waiting == shared.dispatcher.resuming == 0
        and all(calls.budget.waiting == 0 for calls in all_calls)
    )


async def test_two_budgets_share_what_they_do_not_have_twice(shared: Limiter, clock: SteppedClock) -> None:
    """Chat and embeddings of one account: requests of their own, the same tokens."""
    one, two = chat(shared, clock), chat(shared, clock)
    one.ask("a", tokens=60)
    two.ask("b", tokens=60)
    direct = asyncio.ensure_future(shared.acquire(30))

    await clock.run(60)

    assert (one.granted, two.granted) == ({"a": 0}, {"b": 2 * SECOND})
    assert direct.result() == 5.0
    await one.end("a")
    await two.end("b")
    assert at_rest(shared, one, two)


async def test_a_busy_budget_is_one_of_those_in_the_shared_line(shared: Limiter, clock: SteppedClock) -> None:
    """Only its first stands there: a hundred of one budget delay another by one request."""
    busy, quiet = chat(shared, clock), chat(shared, clock)
    assert shared.try_acquire(100)
    await busy.queue(range(5), tokens=10)
    await quiet.queue("q", tokens=10)

    await clock.run(60)

    assert {name: at // SECOND for name, at in busy.granted.items()} == {0: 1, 1: 3, 2: 4, 3: 5, 4: 6}
    assert quiet.granted == {"q": 2 * SECOND}


async def test_a_reservation_that_waits_for_its_own_takes_nothing_that_is_shared(shared: Limiter, clock: SteppedClock) -> None:
    """And nothing of its own while it waits for the shared."""
    calls = chat(shared, clock)
    await calls.queue("a", requests=5)
    await calls.queue("b", requests=2, tokens=50)

    await clock.run(1.5)

    assert shared.statistics().available == 100
    shared.charge(100)
    await clock.run(10)
    assert calls.granted == {"a": 0, "b": 6.5 * SECOND}
    assert calls.leases["b"].limited_by == "tokens"


async def test_what_is_waited_for_may_be_shared(shared: Limiter, clock: SteppedClock) -> None:
    """The one at the head stood in the shared line; the next waited for the same, the last for its own."""
    calls = chat(shared, clock)
    shared.charge(100)
    await calls.queue("ab", tokens=10)
    await calls.queue("c", requests=5, tokens=1)

    await clock.run(60)

    assert [calls.leases[name].limited_by for name in "abc"] == ["tokens", "tokens", "requests"]


async def test_a_shared_limit_is_settled_too(shared: Limiter, clock: SteppedClock) -> None:
    """Less comes back to it at once, by receipt; more is its debt, and that of all who share it."""
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
    assert at_rest(shared, one, two)
    assert shared.statistics().available == 0


async def test_what_was_reserved_before_a_reset_does_not_come_back(clock: SteppedClock) -> None:
    """The limit begins anew; permits of the old schedule are not of the new."""
    shared = Limiter(aiorate.TokenPool("1/s", pool=10 * SECOND), clock=clock)
    assert shared.try_acquire()
    clock.advance(20)
    calls = Calls(Budget(requests="1/s", tokens=shared, clock=clock), clock)
    await calls.queue("a", tokens=10)
    clock.advance(1)

    shared.reset()
    await calls.end("a", tokens=0)

    assert shared.statistics().available == 1


async def test_a_lower_rate_sends_those_away_who_ask_for_too_much(clock: SteppedClock) -> None:
    """Only them: those behind them are served."""
    shared = Limiter(SlidingWindow("10/s"), clock=clock)
    calls = Calls(Budget(requests=TokenBucket("1/s", burst=1), tokens=shared, clock=clock), clock)
    await calls.queue("a", tokens=1)
    await calls.queue("b", tokens=8)
    await calls.queue("c", tokens=2)

    shared.set_rate("5/s")
    await clock.run(10)

    assert calls.granted == {"a": 0, "c": SECOND}
    assert isinstance(calls.tasks["b"].exception(), ValueError)


async def test_a_closed_shared_limit_sends_everybody_away(shared: Limiter, clock: SteppedClock) -> None:
    """Those in its line, those behind them, and those who come."""
    calls = chat(shared, clock)
    shared.charge(100)
    await calls.queue("ab", tokens=10)

    await shared.aclose()
    await calls.queue("c", tokens=10)
    await calls.queue("d", tokens=10, max_wait=1)  # not WaitTooLong: it would wait for ever
    await clock.run(1)

    assert all(isinstance(task.exception(), aiorate.LimiterClosed) for task in calls.tasks.values())
    assert calls.budget.delay() == float("inf")
    assert at_rest(shared, calls)


async def test_a_closed_budget_leaves_the_shared_limit_open(shared: Limiter, clock: SteppedClock) -> None:
    """And nobody of it in that line; who holds a lease may settle it."""
    calls, other = chat(shared, clock), chat(shared, clock)
    await calls.queue("a", tokens=100)
    await calls.queue("bc", tokens=10)
    await other.queue("d", tokens=10)

    await calls.budget.aclose()
    await turns(3)

    for name in "bc":
        assert isinstance(calls.tasks[name].exception(), aiorate.LimiterClosed)
    assert calls.budget.delay() == float("inf")
    assert calls.budget.available("tokens") == 0
    with pytest.raises(aiorate.LimiterClosed):
        await calls.budget.reserve().__aenter__()
    await calls.end("a", tokens=50)
    assert other.granted == {"d": 0}
    assert shared.statistics().available == 40
    await other.end("d")
    assert at_rest(shared, calls, other)


async def test_a_pause_of_one_budget_holds_up_no_other(shared: Limiter, clock: SteppedClock) -> None:
    """It stands aside in the shared line until its pause is over."""
    one, two = chat(shared, clock), chat(shared, clock)
    shared.charge(100)
    await one.queue("a", tokens=10)
    await two.queue("b", tokens=10)

    one.budget.observe(Feedback(429, pause=5.0))
    await clock.run(10)

    assert (one.granted, two.granted) == ({"a": 5 * SECOND}, {"b": SECOND})


async def test_a_quota_of_the_shared_dimension_lowers_it_for_all(shared: Limiter, clock: SteppedClock) -> None:
    """The server counts the tokens of all budgets."""
    one, two = chat(shared, clock), chat(shared, clock)

    one.budget.observe(Feedback(200, quotas=(Quota("tokens", remaining=15, reset=3.0, unit="tokens"),)))
    await two.queue("ab", tokens=10)
    await clock.run(10)

    assert two.granted == {"a": 0, "b": 3 * SECOND}


async def test_several_shared_limits_in_one_budget_are_refused(shared: Limiter, clock: SteppedClock) -> None:
    """All of several lines or none would have each wait for the other; where all share all, one budget is shared."""
    another = Limiter("5/s", clock=clock)

    with pytest.raises(ValueError, match=r"requests and tokens are.*share one Budget"):
        Budget(requests=another, tokens=shared, words="1/s")
    with pytest.raises(ValueError, match="adds nothing"):
        Budget(tokens=shared)
    with pytest.raises(ValueError, match="requests and tokens are"):
        Budget(requests=shared, tokens=shared)


# Cancelled.


class Scene:
    """Two budgets and a direct caller at one shared limit: the first of one budget is cancelled at a given turn of a given step."""

    def __init__(self, name: str, *, cancelled: bool) -> None:
        self.clock = SteppedClock()
        self.shared = Limiter(EACH[name](), clock=self.clock)
        self.own = [TokenBucket("5/s", burst=1), TokenBucket("5/s", burst=1)]
        self.one, self.two = (Calls(Budget(own=own, tokens=self.shared, clock=self.clock), self.clock) for own in self.own)
        self.cancelled = cancelled
        self.step = 0

    async def play(self, step: int, turn: int) -> dict[str, int]:
        """Who was granted when. Timers are fired one by one, each followed by so many turns."""
        self.shared.delay()  # its schedule begins now
        while self.shared.try_acquire():
            pass
        for name in "abc":
            self.one.ask(name) if name != "b" or self.cancelled else None
            self.two.ask(name.upper())
        direct = asyncio.ensure_future(self.shared.acquire())
        await turns(5)
        fired = 0
        while self.clock.next_timer is not None and fired < 40:
            self.clock.fire()
            fired += 1
            for count in range(8):
                if self.cancelled and fired == step and count == turn:
                    self.one.tasks["b"].cancel()
                await turns(1)
        assert direct.done()
        return {**self.one.granted, **self.two.granted}


@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket", "TokenBucket-paced", "SlidingWindow"])
async def test_a_reservation_may_be_cancelled_at_every_point(name: str) -> None:
    """In its own line, at its head, in the shared line, granted there, granted here, before it runs, inside: nothing is lost."""
    ended = set()
    for step in range(12):
        for turn in range(8):
            scene = Scene(name, cancelled=True)
            granted = await scene.play(step, turn)
            task = scene.one.tasks["b"]
            cancelled = task.cancelled()
            ended.add((cancelled, "b" in granted))
            for calls in (scene.one, scene.two):
                await calls.end(*calls.granted)
            await turns(3)

            assert set(granted) | ({"b"} if cancelled else set()) == set("abcABC")
            assert at_rest(scene.shared, scene.one, scene.two)
            assert not any(own.receipts for own in scene.own)
            assert scene.shared.statistics().granted - len(granted) == EACH[name]().available(0) + 1
            assert (scene.clock.timers, others()) == (0, set())
    assert ended == {(True, False), (True, True), (False, True)}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket", "SlidingWindow", "BurstCompensation-strict"])
async def test_nothing_is_lost_and_no_bound_exceeded_whoever_leaves_when(name: str, seed: int) -> None:
    """Three budgets and direct callers at one shared limit, half of them cancelled at random turns."""
    dice, clock = random.Random(seed), SteppedClock()
    shared = Limiter(EACH[name](), clock=clock)
    most = shared.scheduler.max_permits or 3
    own = [TokenBucket("3/s", burst=2) for _ in range(3)]
    everybody = [Calls(Budget(own=part, tokens=shared, clock=clock), clock) for part in own]
    used: list[int] = []

    async def direct() -> None:
        await shared.acquire()
        used.append(clock.now())

    tasks: list[asyncio.Task[None]] = []
    for number in range(60):
        calls = dice.choice(everybody)
        if dice.random() < 0.8:
            tasks.append(calls.ask(number, tokens=dice.randint(1, min(3, most))))
        else:
            tasks.append(asyncio.ensure_future(direct()))
        for _ in range(dice.choice((0, 0, 1, 3))):
            if clock.next_timer is not None:
                clock.fire()
            for _ in range(6):
                if dice.random() < 0.06:
                    dice.choice(tasks).cancel()
                await turns(1)
        for inside in [name for name in calls.granted if not calls.tasks[name].done()]:
            if dice.random() < 0.3:
                await calls.end(inside)
    await clock.run(120)
    for calls in everybody:
        await calls.end(*calls.granted)

    for calls, part in zip(everybody, own, strict=True):
        instants = list(calls.granted.values())
        assert not part.receipts
        assert most_in_any_window(instants, SECOND) <= part.bound_when_late(SECOND, 1, SECOND // 50)
        used += [at for name, at in calls.granted.items() for _ in range(calls.leases[name].amounts["tokens"])]
    assert at_rest(shared, *everybody)
    assert all(task.done() for task in tasks)
    assert most_in_any_window(used, SECOND) <= shared.bound(1, 3)
    assert shared.statistics().granted == len(used)
    assert (clock.timers, others()) == (0, set())


async def test_a_reservation_is_undone_that_is_cancelled_while_it_lets_the_loop_turn(shared_in_real_time: Limiter) -> None:
    """Granted at once, but the loop has been kept for long: it yields, and may be cancelled there."""
    shared, own = shared_in_real_time, TokenBucket("1/h", burst=10)
    budget = Budget(own=own, tokens=shared)

    async def greedy() -> None:
        async with budget.reserve(tokens=3):
            time.sleep(0.02)  # noqa: ASYNC251  # the loop is not run meanwhile
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
            async with budget.reserve(tokens=5):
                pytest.fail("the loop has not turned")

    task = asyncio.ensure_future(greedy())
    await asyncio.gather(task, return_exceptions=True)

    assert task.cancelled()
    assert (budget.available("own"), budget.available("tokens")) == (9, 97)
    assert (own.receipts, shared.scheduler.receipts) == (False, False)


async def test_waiters_are_undone_that_are_cancelled_while_they_let_the_loop_turn(shared_in_real_time: Limiter) -> None:
    """Ten are granted in one step out of the shared line; slow bodies have those behind yield, and each has the next one cancelled."""
    shared, own = shared_in_real_time, TokenBucket("1/h", burst=50)
    budget = Budget(own=own, tokens=shared)
    shared.pause(3600)
    inside = 0

    async def slow(number: int) -> None:
        nonlocal inside
        async with budget.reserve():
            inside += 1
            time.sleep(0.02)  # noqa: ASYNC251
            if number < 9:
                asyncio.get_running_loop().call_soon(tasks[number + 1].cancel)

    tasks = [asyncio.ensure_future(slow(number)) for number in range(10)]
    await turns(3)

    shared.resume()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert 0 < inside < 10
    assert inside == sum(not task.cancelled() for task in tasks)
    assert (50 - inside, 100 - inside) == (budget.available("own"), budget.available("tokens"))
    assert (shared.statistics().granted, shared.dispatcher.resuming) == (inside, 0)
    assert (own.receipts, shared.scheduler.receipts) == (False, False)


async def test_who_stood_in_the_shared_line_may_be_cancelled_after_that(shared_in_real_time: Limiter) -> None:
    """It has left that line when it resumes; letting the loop turn afterwards, it must not leave it once more."""
    shared = shared_in_real_time
    budget = Budget(own=TokenBucket("1/h", burst=50), tokens=shared)
    shared.pause(3600)
    goes = asyncio.Event()

    async def hog() -> None:
        await goes.wait()
        time.sleep(0.02)  # noqa: ASYNC251  # so that the loop is watched from now on
        async with budget.reserve():
            time.sleep(0.02)  # noqa: ASYNC251
            asyncio.get_running_loop().call_soon(tasks[1].cancel)

    async def call() -> None:
        async with budget.reserve():
            pass

    tasks = [asyncio.ensure_future(each()) for each in (hog, call, call)]
    await turns(3)
    goes.set()  # so the hog runs before those who are granted now
    shared.resume()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert [False, True, False] == [task.cancelled() for task in tasks]
    assert (shared.statistics().granted, shared.dispatcher.resuming) == (2, 0)
    assert (budget.available("own"), budget.available("tokens")) == (48, 98)


async def test_permits_that_came_while_the_loop_turned_are_taken() -> None:
    """Whoever is refused and has to let the loop turn looks again afterwards."""
    budget = Budget(tokens=TokenBucket("1/h", burst=5))
    async with budget.reserve(tokens=5) as lease:
        time.sleep(0.02)  # noqa: ASYNC251
        asyncio.get_running_loop().call_soon(lambda: lease.settle(tokens=3))
        async with budget.reserve(tokens=2, max_wait=0) as other:
            assert (other.waited, budget.available("tokens")) == (0.0, 0)
