"""Defects that other libraries had with several limits, callers, loops or threads at once."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress
from itertools import permutations
from time import monotonic

import pytest
from helpers.driving import LONG, SECOND, Crowd, SteppedClock, one_loop, turns
from helpers.loops import FACTORIES
from helpers.server import most_in_any_window
from helpers.strategies import EACH
from helpers.threads import Recorded, in_thread

import aiorate
from aiorate.testing import ManualClock, simulate


@one_loop
@pytest.mark.parametrize("name", ["TokenBucket", "SlidingWindow", "CalendarWindow", "AllOf"])
async def test_a_hundred_at_once_are_charged_before_they_go(name: str) -> None:
    """BerriAI/litellm#18730: all of them passed, since each was charged at its end."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    most = crowd.limiter.scheduler.max_permits

    await crowd.queue(range(100))

    assert len(crowd.granted) == most


@one_loop
@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket", "CalendarWindow"])
async def test_a_permit_that_comes_back_serves_one(name: str) -> None:
    """temporalio/temporal#7590: a recycled token let two waiters through."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    while crowd.limiter.try_acquire():
        pass
    await crowd.queue(range(5))

    crowd.limiter.refund(1)
    await turns(12)

    assert list(crowd.granted) == [0]


@one_loop
async def test_the_place_of_a_limit_among_others_changes_nothing() -> None:
    """envoyproxy/envoy#46390: a limit that came first kept another from being checked."""
    orders = permutations(("TokenBucket", "SlidingWindow", "AllOf"))

    schedules = [simulate(aiorate.AllOf(*(EACH[name]() for name in order)), [0] * 50) for order in orders]

    assert all(schedule == schedules[0] for schedule in schedules)


@one_loop
@pytest.mark.parametrize("turned", [False, True])
async def test_limits_that_contradict_each_other_are_all_kept(turned: bool) -> None:
    """vutran1710/PyrateLimiter 4.3 (#239): lists of rates in the wrong order were enforced wrongly, without an error."""
    members = [aiorate.SlidingWindow("10/s"), aiorate.SlidingWindow("5/min")]
    both = aiorate.AllOf(*(reversed(members) if turned else members))

    instants = simulate(both, [0] * 12)

    assert instants == [0] * 5 + [60 * SECOND] * 5 + [120 * SECOND] * 2
    assert (both.bound(SECOND), both.bound(60 * SECOND), both.rate) == (5, 5, aiorate.Rate(5, per=60))


@one_loop
@pytest.mark.parametrize("name", EACH)
async def test_parallel_callers_share_the_rate(name: str) -> None:
    """golang/go#43858, golang/go#45245: grants to parallel callers added up to more than the rate."""
    clock = ManualClock()
    limiter = aiorate.Limiter(EACH[name](), clock=clock)
    granted: list[int] = []

    async def worker() -> None:
        while True:
            await limiter.acquire()
            granted.append(clock.now())

    workers = [asyncio.ensure_future(worker()) for _ in range(20)]
    await clock.run(10)
    for task in workers:
        task.cancel()
    await turns(3)

    assert granted == simulate(EACH[name](), [0] * len(granted))
    assert simulate(EACH[name](), [0] * (len(granted) + 1))[-1] > 10 * SECOND


@one_loop
async def test_pause_of_one_limiter_does_not_pause_another() -> None:
    """alexei-led/ccgram#171, python-telegram-bot/python-telegram-bot#3765: one flooded chat froze all the others."""
    clock = ManualClock()
    flooded, free = (aiorate.Limiter("10/s", clock=clock) for _ in range(2))
    flooded.pause(60)

    assert (flooded.delay(), free.delay()) == (60.0, 0.0)
    assert free.try_acquire()


@one_loop
@pytest.mark.parametrize("name", EACH)
async def test_granted_task_may_cancel_all_others_at_once(name: str) -> None:
    """dotnet/runtime#85523: a cancellation from inside a grant waited for the lock that the grant held."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    while crowd.limiter.try_acquire():
        pass

    async def first() -> None:
        await crowd.limiter.acquire()
        for who in "ABC":
            crowd.tasks[who].cancel()
        crowd.ask("again")

    task = asyncio.ensure_future(first())
    await turns(2)
    await crowd.queue("ABC")
    await clock.run(5)

    assert task.done()
    assert list(crowd.granted) == ["again"]
    assert crowd.limiter.statistics().cancelled == 3


@one_loop
@pytest.mark.parametrize("name", EACH)
async def test_cancelled_callers_take_no_permits(name: str) -> None:
    """python/asyncio#270, thrasher-corp/gocryptotrader#2363, mvanhorn/cli-printing-press#4441: their tokens were gone."""
    dice, clock, quiet = random.Random(4), ManualClock(), ManualClock()
    limiter, twin = aiorate.Limiter(EACH[name](), clock=clock), aiorate.Limiter(EACH[name](), clock=quiet)
    while limiter.try_acquire():
        assert twin.try_acquire()
    crowd = Crowd(limiter, clock)

    await crowd.queue(range(30))
    for who in sorted(crowd.tasks, key=lambda _: dice.random()):
        crowd.tasks[who].cancel()
        await turns(dice.randrange(2))
    await turns(5)

    for instant in (0, SECOND // 20, 2 * SECOND):
        clock.set(instant)
        quiet.set(instant)
        assert limiter.delay() == twin.delay()


@one_loop
async def test_clock_stepping_back_and_forth_grants_within_the_bound() -> None:
    """golang/go#65508, golang/go#23145, golang/go#56287: each step back was paid for as time that passed."""
    for name in (name for name in EACH if name != "TicksAccumulator" and "half" not in name):
        dice, clock = random.Random(name), ManualClock()
        limiter = aiorate.Limiter(EACH[name](), clock=clock)
        granted = 0
        for _ in range(2_000):
            clock.set(dice.randrange(SECOND))
            granted += limiter.try_acquire()

        assert granted <= (limiter.bound(1) or 0)


KEPT = ["TokenPool", "TokenBucket", "SlidingWindow", "CalendarWindow", "AllOf"]


class Nested:
    """A key's limit and its shared limit, each with a twin that waits for no other limit."""

    def __init__(self, own: str, shared: str) -> None:
        self.clock = SteppedClock()
        self.own, self.shared = EACH[own](), EACH[shared]()
        self.twins = EACH[own](), EACH[shared]()
        self.keyed = aiorate.KeyedLimiter(
            lambda key: aiorate.Limiter(self.own, clock=self.clock), shared=aiorate.Limiter(self.shared, clock=self.clock)
        )
        self.crowd = Crowd(self.keyed["a"], self.clock)
        for scheduler in (self.own, self.shared, *self.twins):
            scheduler.peek(1, 0)  # starts every schedule

    def twins_take(self, instant: int) -> None:
        for twin in self.twins:
            assert twin.take(1, instant) <= instant

    def as_twins(self) -> bool:
        """True if each limit stands as if only the grants had ever been asked of it."""
        instants = [self.clock.now() + later for later in (0, SECOND // 9, SECOND // 2, 2 * SECOND)]
        return all(
            twin.peek(permits, instant) == scheduler.peek(permits, instant)
            for scheduler, twin in zip((self.own, self.shared), self.twins, strict=True)
            for permits in range(1, 1 + (scheduler.max_permits or 3))
            for instant in instants
        )


@one_loop
@pytest.mark.parametrize("shared", KEPT)
@pytest.mark.parametrize("own", KEPT)
async def test_request_waiting_for_both_limits_is_charged_once_to_each(own: str, shared: str) -> None:
    """dotnet/runtime#113314: chained limiters counted twice when the inner one queued."""
    nested = Nested(own, shared)

    await nested.crowd.queue(range(50))
    await nested.clock.run(30)

    assert len(nested.crowd.granted) == 50
    for instant in nested.crowd.granted.values():
        nested.twins_take(instant)
    assert nested.as_twins()
    assert nested.keyed.shared is not None
    assert (50, 50) == (nested.keyed["a"].statistics().granted, nested.keyed.shared.statistics().granted)


@one_loop
@pytest.mark.parametrize("shared", KEPT)
@pytest.mark.parametrize("own", KEPT)
async def test_a_refusal_of_either_limit_takes_from_neither(own: str, shared: str) -> None:
    """milvus-io/milvus#25597, grafana/dskit#1007: the first limit was consumed although the second refused."""
    nested = Nested(own, shared)
    keyed = nested.keyed
    while keyed.try_acquire("a"):
        nested.twins_take(0)

    for _ in range(20):
        assert not keyed.try_acquire("a")
        with pytest.raises(aiorate.WaitTooLong):
            await keyed.acquire("a", max_wait=0.01)
        task = asyncio.ensure_future(keyed.acquire("a"))
        await turns(2)
        task.cancel()
        await turns(2)

    assert nested.as_twins()
    assert nested.clock.timers == 0


@one_loop
@pytest.mark.parametrize("names", list(permutations(("TokenBucket", "SlidingWindow", "CalendarWindow"), 2)), ids="-".join)
async def test_for_one_key_it_does_not_matter_which_limit_is_shared(names: tuple[str, str]) -> None:
    """envoyproxy/envoy#46390: a limit that came first kept another from being checked."""
    one, other = Nested(*names), Nested(*reversed(names))
    for nested in (one, other):
        await nested.crowd.queue(range(40))
        await nested.clock.run(60)

    assert len(one.crowd.granted) == 40
    assert one.crowd.granted == other.crowd.granted


@one_loop
@pytest.mark.parametrize(("own", "shared"), [("10/s", "5/min"), ("5/min", "10/s")])
async def test_shared_limit_that_contradicts_the_keys_is_kept(own: str, shared: str) -> None:
    """vutran1710/PyrateLimiter 4.3 (#239): of rates in the wrong order, one was enforced wrongly, without an error."""
    clock = ManualClock()
    keyed = aiorate.KeyedLimiter(
        lambda key: aiorate.Limiter(aiorate.SlidingWindow(own), clock=clock),
        shared=aiorate.Limiter(aiorate.SlidingWindow(shared), clock=clock),
    )
    crowd = Crowd(keyed["a"], clock)

    await crowd.queue(range(12))
    await clock.run(150)

    assert [0] * 5 + [60 * SECOND] * 5 + [120 * SECOND] * 2 == list(crowd.granted.values())
    with pytest.raises(ValueError, match="5 is the most"):
        await keyed.acquire("a", 6)


@one_loop
@pytest.mark.parametrize("name", EACH)
async def test_parallel_keys_share_the_shared_rate(name: str) -> None:
    """golang/go#43858, golang/go#45245: grants to parallel callers added up to more than the rate."""
    clock = ManualClock()
    keyed = aiorate.KeyedLimiter(
        lambda key: aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=50), clock=clock),
        shared=aiorate.Limiter(EACH[name](), clock=clock),
    )
    granted: list[tuple[int, int]] = []

    async def worker(key: int) -> None:
        while True:
            await keyed.acquire(key)
            granted.append((clock.now(), key))

    workers = [asyncio.ensure_future(worker(number % 7)) for number in range(20)]
    await clock.run(10)
    for task in workers:
        task.cancel()
    await turns(3)

    instants = [at for at, _ in granted]
    assert simulate(EACH[name](), [0] * len(granted)) == instants
    assert simulate(EACH[name](), [0] * (len(granted) + 1))[-1] > 10 * SECOND
    shares = [sum(who == key for _, who in granted) for key in range(7)]
    assert min(shares) >= len(granted) // 14  # no key is left out, though a burst may go to the first


def test_parallel_waiters_never_add_up_to_more_than_the_rate() -> None:
    """golang/go#43858, #45245: parallel waiters got more than the limit. Here many loops and threads, some of which give up."""
    bucket = Recorded("2000/s", burst=5)
    limiter = aiorate.Limiter(bucket, scope="process")
    end = monotonic() + 0.5
    kept: list[int] = []
    begin, factories = threading.Barrier(8), list(FACTORIES.values())

    def work_in_loop(number: int) -> None:
        dice, count = random.Random(number), 0

        async def task() -> None:
            nonlocal count
            while monotonic() < end:
                with suppress(TimeoutError):
                    async with asyncio.timeout(dice.choice((0, 0.001, 0.005, 10))):
                        await limiter.acquire()
                        count += 1

        async def main() -> None:
            await asyncio.gather(*(task() for _ in range(10)))

        begin.wait(LONG)
        with asyncio.Runner(loop_factory=factories[number % len(factories)]) as runner:
            runner.run(main())
        kept.append(count)

    def work_without(number: int) -> None:
        count = 0
        begin.wait(LONG)
        while monotonic() < end:
            limiter.acquire_blocking()
            count += 1
        kept.append(count)

    threads = [in_thread(lambda n=n: (work_in_loop if n < 6 else work_without)(n)) for n in range(8)]  # type: ignore[misc]
    for thread in threads:
        thread.result(LONG)

    for window in (1_000_000, 10_000_000, 100_000_000, SECOND):
        bound = limiter.bound(window / SECOND)
        assert bound is not None
        assert most_in_any_window(bucket.kept(), window) <= bound
    statistics = limiter.statistics()
    assert (0, sum(kept)) == (statistics.waiting, statistics.granted)
