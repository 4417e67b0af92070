"""Defects of ours in errors and refusals: numbers 6, 7, 8, 9, 14, 16, 17, 18, 19, 30 and 31."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, one_loop, turns
from helpers.loops import FACTORIES
from helpers.strategies import EACH

import aiorate
from aiorate.testing import ManualClock, VirtualLoop

MS = SECOND // 1000


# Copies.


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda limiter: pickle.loads(pickle.dumps(limiter))], ids=["copy", "deepcopy", "pickle"]
)
def test_a_limiter_refuses_to_be_copied(duplicate: Callable[[Any], Any], precise: bool) -> None:
    """Defect 6: a deep copy of a used one closed a descriptor that another loop had got by then."""
    used, unused = aiorate.Limiter("1000/s", precise=precise), aiorate.Limiter("1000/s", precise=precise)

    asyncio.run(used.acquire(3))

    held = () if duplicate is copy.copy else ({"limiter": used}, used.of(2))  # a shallow copy shares it
    for limiter in (used, unused, *held):
        with pytest.raises(TypeError, match=r"[Ss]hare it, or create another"):
            duplicate(limiter)
    assert 0 <= asyncio.run(used.acquire(3))


# Threads.


class Watched(asyncio.SelectorEventLoop):
    """A loop that has something done when it is asked whether it is closed."""

    when_asked: Callable[[], None] | None = None

    def is_closed(self) -> bool:
        done, self.when_asked = self.when_asked, None
        if done is not None:
            done()
        return super().is_closed()


def test_a_loop_of_another_thread_may_get_its_kernel_timer_meanwhile() -> None:
    """Defect 7: the timers of all loops are in one dictionary, which grew while it was iterated over."""
    first, waited = Watched(), []

    def other_thread() -> None:
        waited.append(asyncio.run(aiorate.Limiter("1000/s", precise=True).acquire(2)))

    def meanwhile() -> None:
        thread.start()
        thread.join(0.5)  # or it waits for us

    thread = threading.Thread(target=other_thread)
    first.run_until_complete(aiorate.Limiter("1000/s", precise=True).acquire(2))
    first.when_asked = meanwhile
    asyncio.run(aiorate.Limiter("1000/s", precise=True).acquire(2))
    first.when_asked = None
    if thread.ident is not None:
        thread.join()
    first.close()

    assert len(waited) == (thread.ident is not None)


@pytest.mark.slow
def test_loops_in_many_threads_have_kernel_timers_of_their_own() -> None:
    """Defect 7: as it was found, 3200 loops in 32 threads: every one of them waits and goes on."""
    errors: list[BaseException] = []

    def one() -> None:
        try:
            for _ in range(100):
                asyncio.run(aiorate.Limiter("1000/s", precise=True).acquire(2))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(32)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert [] == errors


# The end of a program.


CLEANING: dict[str, tuple[Callable[[], asyncio.AbstractEventLoop], Callable[[], aiorate.Scheduler], int]] = {
    **{f"virtual-{name}": (VirtualLoop, strategy, 150) for name, strategy in EACH.items()},
    **{f"{name}-TokenPool": (factory, lambda: aiorate.TokenPool("2000/s"), 20) for name, factory in FACTORIES.items()},
    **{f"{name}-TokenBucket": (factory, lambda: aiorate.TokenBucket("2000/s", burst=1), 20) for name, factory in FACTORIES.items()},
}


@pytest.mark.parametrize("case", CLEANING)
def test_a_permit_for_cleaning_up_is_to_be_had_while_the_loop_shuts_down(case: str, caplog: pytest.LogCaptureFixture) -> None:
    """Defect 8: ``asyncio.run()`` cancels the filler together with those who then clean up; 90 of 150 got a RuntimeError."""
    loop, strategy, workers = CLEANING[case]
    limiter = aiorate.Limiter(strategy())
    ends: list[object] = []

    async def work() -> None:
        try:
            while True:
                await limiter.acquire()
        finally:
            try:
                ends.append(await limiter.acquire() >= 0)
            except Exception as error:
                ends.append(error)

    async def main() -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        await asyncio.sleep(0.005)
        return tasks

    with caplog.at_level(logging.DEBUG, "asyncio"), asyncio.Runner(loop_factory=loop) as runner:
        tasks = runner.run(main())
    tasks.clear()
    gc.collect()

    assert [True] * workers == ends
    assert [] == [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("loop", FACTORIES.values(), ids=FACTORIES)
@pytest.mark.parametrize("strategy", EACH)
def test_a_loop_that_is_closed_between_grant_and_run_makes_no_noise(
    strategy: str, loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 16: what was granted went to the next in line, whom a closed loop cannot wake: "Exception ignored in", on stderr."""
    noise: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    clock, native = SteppedClock(), loop()
    native.set_exception_handler(lambda _, context: None)  # that tasks are pending is the program's own fault
    limiter = aiorate.Limiter(EACH[strategy](), clock=clock)
    while limiter.try_acquire():
        pass

    async def begin() -> list[asyncio.Task[float]]:
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(3)]
        await turns(3)
        return tasks

    tasks = native.run_until_complete(begin())
    clock.fire()
    native.close()
    tasks.clear()
    gc.collect()

    assert [] == [str(each.exc_value) for each in noise]
    assert 0 == limiter.statistics().waiting
    clock.advance(3600)
    assert limiter.try_acquire()


# An error for each.


def entries(error: BaseException) -> int:
    return len(traceback.extract_tb(error.__traceback__))


@pytest.mark.asyncio
@pytest.mark.parametrize("strategy", EACH)
async def test_each_waiter_is_sent_away_with_an_error_of_its_own(strategy: str) -> None:
    """Defect 9: one instance was raised in 1000 tasks, and its traceback grew by each: 2000 entries, which kept all their frames."""
    limiter = aiorate.Limiter(EACH[strategy](), clock=ManualClock())
    while limiter.try_acquire():
        pass
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(100)]
    await turns(3)

    await limiter.aclose()
    errors = await asyncio.gather(*tasks, return_exceptions=True)

    assert {aiorate.LimiterClosed} == {type(error) for error in errors}
    assert 1 == len({str(error) for error in errors})
    assert 100 == len({id(error) for error in errors})
    assert all(entries(error) < 5 for error in errors if isinstance(error, BaseException))


class Broken(aiorate.TokenBucket):
    """A strategy that fails once its time has come, with an error that wants more than it keeps."""

    class Failure(Exception):
        def __init__(self, name: str, number: int) -> None:
            super().__init__(f"{name} {number}")

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if now >= SECOND:
            raise self.Failure("failure", 1)
        return super().take(permits, now, since)


@one_loop
@pytest.mark.parametrize("kind", ["a clock that fails", "a strategy that fails"])
async def test_a_failure_is_told_to_each_waiter_by_an_error_of_its_own(kind: str) -> None:
    """Defect 9: so were the errors of a broken clock or strategy, and of drivers."""

    class BrokenClock(ManualClock):
        def now(self) -> int:
            if super().now() >= SECOND and kind == "a clock that fails":
                raise OSError(5, "no clock")
            return super().now()

    clock = BrokenClock()
    limiter = aiorate.Limiter(Broken("1/s", burst=1), clock=clock)
    assert limiter.try_acquire()
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(100)]
    await turns(3)

    clock.advance(2)
    errors = await asyncio.gather(*tasks, return_exceptions=True)

    assert 1 == len({str(error) for error in errors})
    assert 100 == len({id(error) for error in errors})
    assert all(entries(error) < 20 for error in errors if isinstance(error, BaseException))


# Who counts.


@one_loop
@pytest.mark.parametrize("strategy", EACH)
@pytest.mark.parametrize("most", [1, 2, 50])
async def test_who_was_cancelled_takes_no_place_in_a_line_that_is_full(strategy: str, most: int) -> None:
    """Defect 14: LineFull, because of a waiter that was cancelled but had not run since."""
    clock = ManualClock()
    limiter = aiorate.Limiter(EACH[strategy](), clock=clock, max_waiting=most)
    crowd = Crowd(limiter, clock)
    while limiter.try_acquire():
        pass
    await crowd.queue(range(most))

    crowd.tasks[most - 1].cancel()
    waiting = limiter.statistics().waiting
    await asyncio.wait_for(limiter_joined(limiter, clock), None)

    assert most - 1 == waiting
    assert crowd.tasks[most - 1].cancelled()
    await clock.run(60)
    assert list(range(most - 1)) == list(crowd.granted)


async def limiter_joined(limiter: aiorate.Limiter, clock: ManualClock) -> None:
    """Acquire in this very step, and let time pass until that is done."""
    mover = asyncio.ensure_future(clock.run(60))
    await limiter.acquire()
    await mover


# Schedulers of several limiters.


@pytest.mark.parametrize("strategy", EACH)
def test_a_scheduler_belongs_to_one_limiter(strategy: str) -> None:
    """Defect 17: two limiters on one scheduler each took what the other had been promised: 1 to 14 grants where 6 were fair."""
    scheduler = EACH[strategy]()
    first = aiorate.Limiter(scheduler, name="first")

    with pytest.raises(ValueError, match="'first'"):
        aiorate.Limiter(scheduler)
    with pytest.raises(ValueError, match="share that limiter"):
        aiorate.Limiter(aiorate.AllOf(aiorate.TokenBucket("10/s", burst=5), scheduler))

    assert first.try_acquire()


def test_a_member_of_all_of_belongs_to_its_limiter_too() -> None:
    """Defect 17: alone or as a member of another one, at any depth; and who is refused has claimed nothing."""
    inner, outer = aiorate.TokenBucket("10/s", burst=5), aiorate.TokenBucket("20/s", burst=5)
    limiter = aiorate.Limiter(aiorate.AllOf(aiorate.AllOf(inner), outer))

    for scheduler in (inner, outer):
        with pytest.raises(ValueError, match="belongs to"):
            aiorate.Limiter(scheduler)
    free = aiorate.TokenBucket("10/s", burst=1)
    with pytest.raises(ValueError, match="belongs to"):
        aiorate.Limiter(aiorate.AllOf(free, inner))

    assert aiorate.Limiter(free).try_acquire()
    assert limiter.try_acquire(5)


# Nothing, and a fresh start.


@one_loop
@pytest.mark.parametrize("strategy", EACH)
async def test_charging_and_refunding_nothing_does_nothing(strategy: str) -> None:
    """Defect 18: ``charge(used - estimate)`` failed when the estimate was exact."""
    clock = ManualClock()
    limiter, untouched = (aiorate.Limiter(EACH[strategy](), clock=clock) for _ in range(2))
    for each in (limiter, untouched):
        while each.try_acquire():
            pass
    crowd = Crowd(limiter, clock)
    await crowd.queue("A")

    limiter.charge(0)
    limiter.refund(0)

    due = untouched.delay()
    assert due == limiter.statistics().next_at
    assert (0, untouched.statistics().granted) == (limiter.statistics().refunded, limiter.statistics().granted)
    await clock.run(due)
    assert {"A": round(due * SECOND)} == crowd.granted
    for call in (limiter.charge, limiter.refund):
        with pytest.raises(TypeError):
            call(False)
        with pytest.raises(TypeError):
            call(0.0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="1 or more"):
            call(-1)


@one_loop
@pytest.mark.parametrize(
    "scheduler",
    [
        lambda: aiorate.TokenPool("10/s", burst_ratio=1.5),
        lambda: aiorate.TicksAccumulator("10/s"),
        lambda: aiorate.BurstCompensation("10/s", strictness=0),
        lambda: aiorate.BurstRatio("10/s", ratio=1.5),
    ],
    ids=["TokenPool", "TicksAccumulator", "BurstCompensation", "BurstRatio"],
)
async def test_restart_restarts_a_limiter_that_was_stopped(scheduler: Callable[[], aiorate.Scheduler]) -> None:
    """Defect 19: ``apply("10,1.5,restart")`` after a stop was a mere start: pools stayed full and the backlog was made up for."""
    clock = ManualClock()
    limiter = aiorate.Limiter(scheduler(), clock=clock)
    crowd = Crowd(limiter, clock)
    assert limiter.try_acquire()
    clock.advance(10)
    behind = limiter.lag
    limiter.apply("10,1.5,stop")
    await crowd.queue("ABC")
    await clock.run(5)
    assert {} == crowd.granted

    limiter.apply("10,1.5,restart")
    lag = limiter.lag
    await clock.run(1)

    assert behind > 9
    assert 0 == lag
    # An empty pool needs a permit's time for A, or a slot begins at once; nobody comes sooner than at the rate.
    first = (15_100 if isinstance(limiter.scheduler, aiorate.TokenPool) else 15_000) * MS
    assert {"A": first, "B": first + 100 * MS, "C": first + 200 * MS} == crowd.granted
    assert limiter.statistics().paused_until is None


# Numbers.


@pytest.mark.parametrize(
    ("text", "permits", "period_ns"),
    [
        ("9.9^2", 9801, 100 * SECOND),
        ("9.9^2,1.2,restart", 9801, 100 * SECOND),
        ("1.5^3", 3375, 1000 * SECOND),
        ("0.5^2", 25, 100 * SECOND),
        ("2.50^1", 25, 10 * SECOND),
        ("1.1^2K", 1210, SECOND),
        ("2^10", 1024, SECOND),
    ],
)
def test_the_base_of_a_power_may_be_a_decimal(text: str, permits: int, period_ns: int) -> None:
    """Defect 30: ``9.9^2`` was refused; the original takes it, and it is 98.01 exactly."""
    rate = aiorate.RateSpec.parse(text).rate

    assert Fraction(permits, period_ns) == Fraction(rate.permits, rate.period_ns)


@pytest.mark.parametrize(
    ("rate", "permits", "period_ns"),
    [
        (lambda: aiorate.Rate.parse("10/1.1s"), 10, 1_100 * MS),
        (lambda: aiorate.Rate.parse("10/1.5s"), 10, 1_500 * MS),
        (lambda: aiorate.Rate.parse("10/1100ms"), 10, 1_100 * MS),
        (lambda: aiorate.Rate.parse("10/0.25min"), 10, 15 * SECOND),
        (lambda: aiorate.Rate(10, 1.1), 10, 1_100 * MS),
        (lambda: aiorate.Rate(10, Fraction(11, 10)), 10, 1_100 * MS),
        (lambda: aiorate.Rate(10, 1 / 3), 10, 333_333_333),
        (lambda: aiorate.Rate(10, 2 / 3), 10, 666_666_667),
        # A period that is no whole nanosecond is scaled, with the permits, as little as it can be.
        (lambda: aiorate.Rate(10, Fraction(1, 3)), 30, SECOND),
        (lambda: aiorate.Rate.parse("10/1.5ns"), 20, 3),
        (lambda: aiorate.Rate.parse("0.5/1.5s"), 1, 3 * SECOND),
        (lambda: aiorate.Rate.parse("100/60s"), 100, 60 * SECOND),
    ],
)
def test_a_rate_keeps_the_numbers_that_were_given(rate: Callable[[], aiorate.Rate], permits: int, period_ns: int) -> None:
    """Defect 31: ``10/1.1s`` became 100 per 11 s, so a window granted 100 at one instant."""
    made = rate()

    assert (permits, period_ns) == (made.permits, made.period_ns)


def test_a_window_grants_as_many_at_once_as_its_rate_says() -> None:
    """Defect 31: as users met it."""
    for text in ("10/1.1s", "10/1.5s", "10/0.3s"):
        limiter = aiorate.Limiter(aiorate.SlidingWindow(text), clock=ManualClock())

        assert limiter.try_acquire(10)
        assert not limiter.try_acquire()
        assert float(text[3:-1]) == limiter.delay(10)
