"""Permits taken by the handful while calls come fast: nobody may be able to tell, but by the clock on the wall.

What is handed out is booked late, as if it had been taken at the next reading of the clock; so a limiter may grant later than
its scheduler alone would, and never sooner or more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from helpers.driving import SECOND, one_loop, turns
from helpers.samples import examples, sampled
from hypothesis import given
from hypothesis import strategies as st

import aiorate
from aiorate.testing import ManualClock, VirtualLoop
from aiorate.testing.histories import Trial
from aiorate.testing.laws import LAWS, run_law

RATES = [10**4, 10**5, 10**6, 3 * 10**7, 10**9]
STRATEGIES: dict[str, Callable[[int], aiorate.Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TokenPool-burst": lambda rate: aiorate.TokenPool(rate, burst_ratio=1.5),
    "TokenPool-small": lambda rate: aiorate.TokenPool(rate, pool=200_000),
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=40),
    "TokenBucket-large": lambda rate: aiorate.TokenBucket(rate, burst=10_000, initial=0),
}

GAPS = [0, 0, 0, 1, 20, 300, 1_500, 3_000, 50_000, 200_000, 10**6, SECOND, 3_600 * SECOND, -1, -700, -(10**6)]
CALLS = ["try_acquire"] * 6 + ["acquire", "async with", "more"]
OTHERS = ["pause", "charge", "refund", "delay", "statistics", "apply", "close", "wait and leave", "lag"]
steps = st.tuples(st.sampled_from(GAPS), st.sampled_from(CALLS * 2 + OTHERS), st.sampled_from([1, 2, 5, 30, 90]))


class Caller:
    """One who asks as awkwardly as can be, and notes what was granted when."""

    def __init__(self, scheduler: aiorate.Scheduler) -> None:
        self.clock = ManualClock(SECOND)
        self.limiter = aiorate.Limiter(scheduler, clock=self.clock, catch_up=0)
        self.grants: list[tuple[int, int]] = []
        self.granted = self.refunded = 0
        self.largest = 1

    async def do(self, gap: int, call: str, number: int) -> None:
        limiter, clock = self.limiter, self.clock
        clock.set(max(0, clock.now() + gap))
        if call == "try_acquire":
            for _ in range(number):
                self.note(limiter.try_acquire(), 1)
        elif call == "more":
            number = min(number, limiter.scheduler.max_permits or number)
            self.note(limiter.try_acquire(number), number)
        elif call in ("acquire", "async with"):
            for _ in range(number):
                self.note(await self.at_once(call), 1)
        elif call == "wait and leave":
            tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(number)]
            await turns(6)
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                self.note(isinstance(outcome, float), 1)
        elif call == "pause":
            limiter.pause(number / 10**5)
            assert not limiter.try_acquire()
        elif call == "charge":
            limiter.charge(number)
        elif call == "refund":
            self.refunded += min(number, self.granted - self.refunded)
            limiter.refund(number)
        elif call == "delay":
            wait = limiter.delay()
            assert (wait == 0) == limiter.try_acquire()
            self.note(wait == 0, 1)
        elif call == "lag":
            assert limiter.lag >= 0
        elif call == "apply":
            limiter.apply(f"{limiter.rate.permits},1.0,stop")
            assert not limiter.try_acquire()
            limiter.apply(f"{limiter.rate.permits},1.0,restart")
        elif call == "close":
            await limiter.aclose()
            with pytest.raises(aiorate.LimiterClosed):
                limiter.try_acquire()
            limiter.apply(f"{limiter.rate.permits},1.0,start")
        else:
            assert limiter.statistics().granted == self.granted - self.refunded

    async def at_once(self, call: str) -> bool:
        """Acquire if it need not wait."""
        task = asyncio.ensure_future(self.limiter.acquire() if call == "acquire" else self.enter())
        await asyncio.sleep(0)
        if task.done():
            return task.result() == 0
        task.cancel()
        await turns(6)
        return False

    async def enter(self) -> float:
        async with self.limiter as waited:
            return waited

    def note(self, granted: bool, permits: int) -> None:
        if granted:
            self.grants.append((self.clock.now(), permits))
            self.granted += permits
            self.largest = max(self.largest, permits)

    def check_bound(self, bound: Callable[[int, int], int | None]) -> None:
        """No window holds more than it says; where the clock went back, it is as long as what came of it."""
        for first in range(len(self.grants)):
            total = 0
            start = end = self.grants[first][0]
            for instant, permits in self.grants[first:]:
                total += permits
                start, end = min(start, instant), max(end, instant)
                most = bound(end - start + 1, self.largest)
                assert most is None or total <= most, f"{total} permits within {end - start + 1} ns, and bound() says {most}"


class Asked(ManualClock):
    """A clock that counts how often it is read: what is handed out from a handful takes no reading."""

    reads = 0

    def now(self) -> int:
        self.reads += 1
        return super().now()


def run(history: Callable[[], Coroutine[None, None, None]]) -> None:
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(history())


@sampled
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_guarantee_holds_for_callers_of_any_kind(strategy: str, rate: int) -> None:
    """Whatever is done between two readings of the clock, and whatever the clock does."""

    @examples(15)
    @given(st.lists(steps, min_size=5, max_size=40))
    def check(history: list[tuple[int, str, int]]) -> None:
        async def ask() -> None:
            caller = Caller(STRATEGIES[strategy](rate))
            bound = STRATEGIES[strategy](rate).bound  # before the ratio is changed
            for step in history:
                await caller.do(*step)
            assert caller.limiter.statistics().granted == caller.granted - caller.refunded
            if not caller.refunded:
                caller.check_bound(bound)

        run(ask)

    check()


@one_loop
async def test_a_clock_that_goes_back_makes_nothing_handed_out_free() -> None:
    """Booked at an instant before it was taken, it would be refused, and nobody would ever pay for it."""
    clock = Asked(10 * SECOND)
    limiter = aiorate.Limiter(aiorate.TokenBucket(10**6, burst=1_000), clock=clock)
    granted = sum(limiter.try_acquire() for _ in range(300))
    assert clock.reads < 20

    clock.set(9 * SECOND)
    granted += sum(limiter.try_acquire() for _ in range(2_000))
    clock.set(10 * SECOND)
    granted += sum(limiter.try_acquire() for _ in range(2_000))

    assert granted == 1_000
    assert limiter.statistics().granted == 1_000


@one_loop
@pytest.mark.parametrize("idle", [0, 1, 200_000, 3_600 * SECOND])
async def test_what_is_left_of_a_handful_is_no_credit(idle: int) -> None:
    """Used an hour later, it is the hour's: a bucket is never fuller than full."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket(10**6, burst=1_000), clock=clock)
    before = sum(limiter.try_acquire() for _ in range(300))

    clock.set(idle)
    after = sum(limiter.try_acquire() for _ in range(5_000))

    assert before == 300
    assert after <= min(700 + idle // 1_000, 1_000)
    assert after >= min(700 + idle // 1_000, 1_000) - 256


@one_loop
@pytest.mark.parametrize("rate", [100, 10**4, 10**5, 10**6])
@pytest.mark.parametrize("kind", ["TokenPool-small", "TokenBucket"])
async def test_what_is_booked_late_costs_no_more_than_flows_in_within_200_us(kind: str, rate: int) -> None:
    """A body that is busy for seconds after a hundred fast calls, without a turn of the loop: the bucket is full again by then."""
    clock = ManualClock()
    make = {"TokenPool-small": lambda: aiorate.TokenPool(rate, pool=1_000 * SECOND // rate), "TokenBucket": lambda: STRATEGIES[kind](rate)}
    limiter, alone = aiorate.Limiter(make[kind](), clock=clock), make[kind]()
    for each in (limiter.try_acquire, lambda: alone.take(1, 0)):
        each()
    clock.set(20_000 * SECOND)
    taken = sum(limiter.try_acquire() for _ in range(35))
    assert taken == sum(alone.take(1, clock.now()) <= clock.now() for _ in range(35)) == 35

    clock.set(40_000 * SECOND)
    there = sum(limiter.try_acquire() for _ in range(1_100))
    alone_there = sum(alone.take(1, clock.now()) <= clock.now() for _ in range(1_100))

    assert alone_there - min(256, rate // 5_000) <= there <= alone_there


@one_loop
async def test_what_is_left_of_a_handful_is_put_back_when_the_loop_goes_on() -> None:
    """An idle limiter holds nothing back: after an hour the bucket is full to the last permit."""
    clock = Asked()
    limiter = aiorate.Limiter(aiorate.TokenBucket(10**6, burst=1_000), clock=clock)
    assert sum(limiter.try_acquire() for _ in range(300)) == 300
    assert clock.reads < 20

    await asyncio.sleep(0)
    clock.set(3_600 * SECOND)
    clock.reads = 0

    assert limiter.try_acquire()
    assert clock.reads  # nothing was left that could be had without
    limiter.refund(1)
    assert limiter.delay(1_000) == 0.0


def test_outside_of_a_loop_nothing_is_handed_out() -> None:
    """Nobody would put it back."""
    clock = Asked()
    limiter = aiorate.Limiter(aiorate.TokenBucket(10**6, burst=1_000), clock=clock)

    granted = sum(limiter.try_acquire() for _ in range(300))

    assert granted == 300
    assert clock.reads >= 300


def test_a_loop_that_runs_in_another_thread_is_turned_away() -> None:
    """With nothing from the handful that the first loop took: it is put back before anybody else can run."""
    limiter = aiorate.Limiter(aiorate.TokenBucket(10**6, burst=1_000), clock=ManualClock())
    outcomes: list[object] = []

    async def intrude() -> None:
        try:
            outcomes.append(await limiter.acquire())
        except RuntimeError as error:
            outcomes.append(type(error))

    async def own() -> int:
        taken = sum(limiter.try_acquire() for _ in range(300))
        await asyncio.sleep(0)
        thread = threading.Thread(target=asyncio.run, args=(intrude(),))
        thread.start()
        await asyncio.to_thread(thread.join)
        return taken + sum(limiter.try_acquire() for _ in range(2_000))

    taken = asyncio.run(own())

    assert outcomes == [RuntimeError]
    assert taken == 1_000 == limiter.statistics().granted


class ThroughLimiter(aiorate.Scheduler):
    """A limiter that looks like a scheduler, so that the laws can be tried on both together."""

    books_since = False

    def __init__(self, make: Callable[[], aiorate.Scheduler], calls: list[tuple[str, Any, int]] | None = None) -> None:
        self.make = make
        self.calls: list[tuple[str, Any, int]] = []
        self.clock = ManualClock()
        self.limiter = aiorate.Limiter(make(), clock=self.clock, catch_up=0)
        self.max_permits = self.limiter.scheduler.max_permits
        self.bound = self.limiter.scheduler.bound  # type: ignore[method-assign]
        for call in calls or ():
            self.do(*call)

    def __deepcopy__(self, memo: object) -> ThroughLimiter:
        """A limiter cannot be copied: another one is made, to which the same is done."""
        return ThroughLimiter(self.make, self.calls)

    def do(self, name: str, argument: Any, now: int) -> Any:
        self.calls.append((name, argument, now))
        self.clock.set(now)
        return getattr(self.limiter, name)(*([] if argument is None else [argument]))

    @property
    def rate(self) -> aiorate.Rate:  # type: ignore[override]
        return self.limiter.rate

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if self.do("try_acquire", permits, now):
            return now
        return self.limiter.scheduler.peek(permits, now)

    def peek(self, permits: int, now: int) -> int:
        self.do("delay", permits, now)  # which books what was handed out, and may be the first to ask at all
        return self.limiter.scheduler.peek(permits, now)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        if taken is None:
            self.do("refund", permits, now)

    def set_rate(self, rate: aiorate.Rate, now: int) -> None:
        self.do("set_rate", rate, now)

    def lag(self, now: int) -> int:
        return round(self.do("delay", None, now) * SECOND)

    def bound(self, window: int, largest: int = 1) -> int | None:
        raise NotImplementedError  # the limiter's


MORE = ("bound_holds", "granted_on_time", "more_is_never_sooner", "going_back_earns_nothing")
LAWS_OF_MORE = [law for law in LAWS if law.__name__ in MORE]


@pytest.mark.parametrize("law", LAWS_OF_MORE, ids=lambda law: law.__name__)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_laws_hold_through_the_limiter(strategy: str, law: Callable[[Trial], None]) -> None:
    """Those that say that nobody gets more or sooner; that nobody gets less is not promised within the time of a handful."""
    run_law(law, lambda: ThroughLimiter(lambda: STRATEGIES[strategy](10**6)), 40)


class Slow(VirtualLoop):
    """Virtual time on a machine on which everything takes time: each reading of the clock is later than the one before."""

    step = taken = 0  # ns

    def time(self) -> float:
        self.taken += self.step
        return super().time() + self.taken / SECOND


@pytest.mark.parametrize("step", [300, 700, 1_000, 1_500])
@pytest.mark.parametrize("kind", [aiorate.TokenPool, aiorate.TokenBucket])
@pytest.mark.parametrize("turn", [64, 256, 100_000])
def test_one_who_asks_as_fast_as_permits_come_lets_the_others_run(kind: Callable[..., aiorate.Scheduler], step: int, turn: int) -> None:
    """Each permit has just fallen due when it is asked for: nobody is ever refused, and the loop would never go on.

    Nor is it enough that it goes on now and then: time must pass in which nothing runs.
    """
    scheduler = kind(10**6, burst=10_000) if kind is aiorate.TokenBucket else kind(10**6)

    async def worker() -> int:
        loop.step = step
        limiter = aiorate.Limiter(scheduler)
        waited = 0
        for k in range(50_000):
            waited += await limiter.acquire() > 0
            if k % turn == 0:
                await asyncio.sleep(0)
        loop.step = 0
        return waited

    with asyncio.Runner(loop_factory=Slow) as runner:
        loop = cast(Slow, runner.get_loop())
        waited = runner.run(worker())

    assert waited >= 5


@one_loop
async def test_only_who_can_wait_is_kept_from_what_has_just_fallen_due() -> None:
    """Nothing is refused for the sake of others to one who will not stand in line."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket(10**6, burst=100), clock=clock, max_waiting=0)
    patient = aiorate.Limiter(aiorate.TokenBucket(10**6, burst=100), clock=clock)
    assert [limiter.try_acquire() for _ in range(101)] == [True] * 100 + [False]
    assert [patient.try_acquire() for _ in range(101)] == [True] * 100 + [False]

    clock.set(1_000)

    assert await limiter.acquire() == 0.0
    assert patient.try_acquire()
    clock.set(2_000)
    assert await patient.acquire(max_wait=0) == 0.0


@one_loop
@pytest.mark.parametrize("later", [1_000, 20_000_000])
@pytest.mark.parametrize("kind", ["TokenPool", "TokenBucket"])
async def test_who_is_kept_waiting_for_the_sake_of_others_needs_no_timer(kind: str, later: int) -> None:
    """A clock that is moved by hand rings no timer until it is moved again; the next turn of the loop is all that was wanted."""
    clock = ManualClock()
    limiter = aiorate.Limiter(STRATEGIES[kind](10**6), clock=clock)
    clock.set(SECOND)
    while limiter.try_acquire():
        pass

    clock.set(SECOND + later)
    task = asyncio.ensure_future(limiter.acquire())
    await turns(8)

    assert task.done()
    assert task.result() == 0.0


@one_loop
async def test_what_could_not_be_put_back_is_put_back_later() -> None:
    """The clock was broken when the loop went on to its next turn: nothing is lost, nothing is free."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    clock = Breaking()
    limiter = aiorate.Limiter(aiorate.TokenBucket(10**5, burst=100), clock=clock)
    taken = before = 0
    while taken < 40 or clock.reads == before:  # fast enough for handfuls of twenty, and one just taken
        before = clock.reads
        taken += limiter.try_acquire()

    clock.broken = True
    await turns(2)
    clock.broken = False
    while limiter.try_acquire():
        taken += 1

    assert taken == limiter.statistics().granted == 100


class Breaking:
    """A clock that stands still, or says something that is no instant."""

    broken = False
    reads = 0

    def now(self) -> int:
        self.reads += 1
        return None if self.broken else SECOND  # type: ignore[return-value]


@one_loop
@pytest.mark.parametrize("before", [*range(120, 136), *range(240, 264), *range(376, 400)])
async def test_a_batch_in_the_middle_of_which_time_passes_grants_no_more_than_there_was(before: int) -> None:
    """Whichever of its portions it was in: what is left of it is asked for anew."""
    clock = ManualClock(SECOND)
    limiter = aiorate.Limiter(aiorate.TicksAccumulator("1000/s", start=0), clock=clock)
    for _ in range(before):
        assert 0 == await limiter.acquire()
    clock.advance(1)

    assert 0 == await limiter.acquire()
    granted = before + 1
    while limiter.try_acquire():
        granted += 1
    assert 2001 == granted == limiter.statistics().granted


@one_loop
async def test_a_block_takes_from_the_batch_too() -> None:
    """``async with`` is an acquire: it is counted, and ends where the others end."""
    clock = ManualClock(SECOND)
    limiter = aiorate.Limiter(aiorate.TicksAccumulator("10/s", start=0), clock=clock)
    for _ in range(5):
        async with limiter as waited:
            assert 0 == waited
        assert limiter.try_acquire()

    assert 10 == limiter.statistics().granted
    assert [True, False] == [limiter.try_acquire(), limiter.try_acquire()]
