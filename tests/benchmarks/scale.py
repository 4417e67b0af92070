"""aiorate alone: the cost of a grant as the work grows.

* *by waiters*: one limiter at 10 000 per second, and a number of tasks that ask again and again. CPU for each grant.
* *by limiters*: a number of limiters in one loop, each with one waiter, at 1 000 per second all together. CPU for each grant.
  The limiters share no timer, so there is about one wake-up for each grant.
* *at a rate of*: nanoseconds for an `await acquire()` with permits in hand, and CPU for each of 1 000 waiters in virtual time, in
  which a day's wait takes no time.
* *idle*: many limiters, each used once. Bytes for each limiter, and the tasks and timers that all of them leave in the loop.

In the first two, the garbage collector ignores the objects made before the measurement.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from functools import partial
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING

import aiorate
from aiorate.testing import VirtualLoop
from benchmarks.measure import Failed, Measured, Plan, alternate, in_tens, part, run_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAME = "scale"
TITLE = "Scale: waiters, limiters, rates"

WAITING, LIMITERS, IN_HAND, IN_LINE = (
    "us of CPU a grant, by waiters",
    "us of CPU a grant, by limiters",
    "ns an acquire, permits in hand, at a rate of",
    "us of CPU a wait, in virtual time, at a rate of",
)
LEFT = "left in the loop"
TIMEOUT = 120
TURN = 5_000
RATES = {
    "1/day": aiorate.Rate(1, 86_400),
    "1/h": aiorate.Rate(1, 3_600),
    "1/min": aiorate.Rate(1, 60),
    "1/s": aiorate.Rate(1),
    "100/s": aiorate.Rate(100),
    "10 000/s": aiorate.Rate(10_000),
    "1 000 000/s": aiorate.Rate(1_000_000),
    "10 000 000/s": aiorate.Rate(10_000_000),
}
# Strategies by a rate and the instant before which nothing is granted (None: no such instant).
PACED: dict[str, Callable[[aiorate.Rate, int | None], aiorate.Scheduler]] = {
    "aiorate TokenPool": lambda rate, start: aiorate.TokenPool(rate, start=start),
    "aiorate TokenBucket": lambda rate, start: aiorate.TokenBucket(rate, 1, start=start),
    "aiorate BurstCompensation": lambda rate, start: aiorate.BurstCompensation(rate, start=start),
    "aiorate TicksAccumulator": lambda rate, start: aiorate.TicksAccumulator(rate, start=start),
}


async def with_waiting(make: Callable[..., aiorate.Scheduler], waiting: int, grants: int) -> float:
    """CPU (us) for each grant with that many waiters."""
    limiter = aiorate.Limiter(make(aiorate.Rate(10_000), None))
    await limiter.acquire()
    return await _cost([limiter] * waiting, grants, 0)


async def with_limiters(make: Callable[..., aiorate.Scheduler], limiters: int, grants: int) -> float:
    """CPU (us) for each grant of that many limiters, which take turns 1 ms apart."""
    # The first grant is due when all limiters are made and have a waiter.
    first = time.monotonic_ns() + 200_000_000 + limiters * 150_000
    rate = aiorate.Rate(1_000, limiters)
    return await _cost([aiorate.Limiter(make(rate, first + place * 1_000_000)) for place in range(limiters)], grants, first)


async def _cost(limiters: list[aiorate.Limiter], grants: int, first: int) -> float:
    """CPU (us) for each grant while a task asks each limiter again and again. No grant is due before ``first``, if it is not 0."""
    left = 0
    tasks: list[asyncio.Task[None]] = []
    done = asyncio.get_running_loop().create_future()

    async def caller(limiter: aiorate.Limiter) -> None:
        nonlocal left
        while True:
            await limiter.acquire()
            left -= 1
            if not left:
                done.set_result(process_time_ns())

    gc.disable()
    try:
        tasks = [asyncio.create_task(caller(limiter)) for limiter in limiters]
        for _ in range(5):
            await asyncio.sleep(0)  # until all stand in line, and the drivers have settled
        gc.collect()
        gc.freeze()
        gc.enable()
        early = first - time.monotonic_ns()
        if first and early < 0:
            raise Failed(f"not all were made in time: {-early // 1_000_000} ms late")
        await asyncio.sleep(max(0.0, early / 1e9 - 0.02))
        begin, left = process_time_ns(), grants
        took = await done - begin
        return float(took / grants / 1_000)
    finally:
        gc.unfreeze()
        gc.enable()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


HAND: dict[str, Callable[[aiorate.Rate, int], aiorate.Scheduler]] = {
    "aiorate TokenPool": lambda rate, permits: aiorate.TokenPool(
        rate, pool=(permits + 2) * rate.interval_ns, start=time.monotonic_ns() - (permits + 2) * rate.interval_ns
    ),
    "aiorate TokenBucket": lambda rate, permits: aiorate.TokenBucket(rate, permits),
}


async def in_hand(make: Callable[[aiorate.Rate, int], aiorate.Scheduler], rate: aiorate.Rate, calls: int) -> float:
    """Nanoseconds for each call, none of which has to wait."""
    limiter = aiorate.Limiter(make(rate, calls + 1))
    await limiter.acquire()
    took = 0
    for first in range(0, calls, TURN):
        await asyncio.sleep(0)  # lets the loop turn
        begin = perf_counter_ns()
        for _ in range(min(TURN, calls - first)):
            await limiter.acquire()
        took += perf_counter_ns() - begin
    if limiter.statistics().waited_total:
        raise Failed("some calls waited")
    return took / calls


def in_line(make: Callable[..., aiorate.Scheduler], rate: aiorate.Rate, waiters: int) -> float:
    """CPU (us) for each waiter, from its request to its grant, on a loop in virtual time."""

    async def main() -> float:
        limiter = aiorate.Limiter(make(rate, None))
        await limiter.acquire()
        begin = process_time_ns()
        await asyncio.gather(*(limiter.acquire() for _ in range(waiters)))
        return (process_time_ns() - begin) / waiters / 1_000

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


async def idle(make: Callable[..., aiorate.Scheduler], limiters: int) -> tuple[float, int, int]:
    """Bytes of a limiter, and the tasks and timers of all of them."""
    loop, rate = asyncio.get_running_loop(), aiorate.Rate(1_000)
    tasks = len(asyncio.all_tasks())
    gc.collect()
    tracemalloc.start()
    made = [aiorate.Limiter(make(rate, None)) for _ in range(limiters)]
    for limiter in made:
        await limiter.acquire()
    gc.collect()
    size = tracemalloc.get_traced_memory()[0] / limiters
    tracemalloc.stop()
    timers: list[asyncio.TimerHandle] = getattr(loop, "_scheduled", [])
    return size, len(asyncio.all_tasks()) - tasks, len(timers)


def run(plan: Plan) -> Iterator[Measured]:
    """All ways to grow."""
    yield from growing(plan)
    yield from at_rates(plan)
    yield from idling(plan)


def growing(plan: Plan) -> Iterator[Measured]:
    """By the number of waiters, and by the number of limiters."""
    for what, unit, grants in (
        (with_waiting, WAITING, plan.pick(200, 5_000, 20_000)),
        (with_limiters, LIMITERS, plan.pick(50, 1_000, 3_000)),
    ):
        for many in plan.pick((1, 100), (1, 10, 100, 1_000, 10_000), (1, 10, 100, 1_000, 10_000, 100_000)):
            for loop in plan.loops:
                case = in_tens(many)
                jobs = {
                    (loop, what.__name__, case, name): partial(run_in, loop, partial(what, PACED[name], many, grants), TIMEOUT)
                    for name in _among(plan, PACED)
                }
                for (_, _, _, name), results in alternate(plan.at_most(3), jobs).items():
                    yield Measured.of(NAME, loop, name, case, unit, results)


def at_rates(plan: Plan) -> Iterator[Measured]:
    """From a permit a day to ten million a second."""
    loop, calls, waiters = plan.loops[0], plan.pick(1_000, 20_000, 100_000), plan.pick(50, 1_000, 1_000)
    for text, rate in RATES.items():
        hands = {(text, name): partial(run_in, loop, partial(in_hand, HAND[name], rate, calls), TIMEOUT) for name in _among(plan, HAND)}
        for (_, name), results in alternate(plan, hands).items():
            yield Measured.of(NAME, loop, name, text, IN_HAND, results)
        lines = {(text, name): partial(in_line, PACED[name], rate, waiters) for name in _among(plan, PACED)}
        for (_, name), results in alternate(plan, lines).items():
            yield Measured.of(NAME, "", name, text, IN_LINE, results)


def idling(plan: Plan) -> Iterator[Measured]:
    """Limiters that are no longer used."""
    limiters = plan.pick(100, 10_000, 100_000)
    case = f"{in_tens(limiters)} idle"
    jobs = {(case, name): partial(run_in, "asyncio", partial(idle, PACED[name], limiters), TIMEOUT) for name in _among(plan, PACED)}
    for (_, name), results in alternate(plan.at_most(1), jobs).items():
        for place, (what, unit) in enumerate((("bytes each", "bytes"), ("tasks", LEFT), ("timers", LEFT))):
            yield Measured.of(NAME, "", name, f"{case}: {what}", unit, part(results, place))


def _among(plan: Plan, names: dict[str, Callable[..., aiorate.Scheduler]]) -> list[str]:
    asked = {subject.name for subject in plan.subjects}
    return [name for name in names if name in asked]
