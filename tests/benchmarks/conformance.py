"""A limit of 50 per second, in each library's own way, and 100 callers that ask again and again.

A figure is the most grants in any one second, wherever it begins, divided by 50.

* *cold*: the limiter is new.
* *after idle*: the limiter is used once, and then idle for two seconds.
* *after a stall*: the event loop stands still for half a second in the middle.
* *bound*: the promise of `bound(1)`, divided by 50.

A grant counts when its caller runs, a little after the grant. So the windows are 5 ms shorter than the second. Otherwise, a delay
of the first caller would make the next window look too full.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

import aiorate
from benchmarks.measure import Measured, Plan, alternate, run_in
from benchmarks.subjects import STRATEGIES, Calls, Subject, limited, rate_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NAME = "conformance"
TITLE = "Conformance: the most in any one second"

LIMIT = 50
CALLERS = 100
SHORTER = 0.005  # of a period
UNIT = "granted/limit"
COLD, IDLE, STALL = "cold", "after idle", "after a stall"

# "50 per second" in the way of these strategies. The others take the whole limit as their burst.
NATURAL: dict[str, Callable[[float], aiorate.Scheduler]] = {
    "TokenPool": lambda rate: aiorate.TokenPool(rate_of(rate)),
    "TicksAccumulator": lambda rate: aiorate.TicksAccumulator(rate_of(rate)),
    "SmoothBursty": lambda rate: aiorate.SmoothBursty(rate_of(rate), max_stored=LIMIT),
}
# These peers spread their permits by default. The others grant the whole limit at once.
PACED_PEERS = ("asynciolimiter", "asynciolimiter-strict")


def natural(subject: Subject, period: float) -> Calls:
    """A limiter for 50 in each period."""
    rate = LIMIT / period
    name = subject.name.removeprefix("aiorate ")
    if subject.family == "aiorate":
        return limited(NATURAL[name](rate) if name in NATURAL else STRATEGIES[name](rate, LIMIT))
    return subject.make(rate, 1 if name in PACED_PEERS else LIMIT)


def most_in_any(window: int, instants: Sequence[int]) -> int:
    """The most instants (ns, in order) in a window of that length, without the instant of its end."""
    most = first = 0
    for place, instant in enumerate(instants):
        while instants[first] <= instant - window:
            first += 1
        most = max(most, place - first + 1)
    return most


def stall(seconds: float) -> None:
    """Block the event loop."""
    time.sleep(seconds)


async def grants(subject: Subject, period: float, case: str) -> float:
    """The most grants in any window, over the limit."""
    calls = natural(subject, period)
    acquire = calls.acquire
    assert acquire is not None
    instants: list[int] = []

    async def caller() -> None:
        while True:
            await acquire()
            instants.append(time.monotonic_ns())

    if case == IDLE:
        await acquire()
        await asyncio.sleep(2 * period)
    tasks = [asyncio.create_task(caller()) for _ in range(CALLERS)]
    if case == STALL:
        await asyncio.sleep(0.7 * period)
        await asyncio.sleep(0)  # callers with a grant run first
        stall(0.5 * period)
    await asyncio.sleep((2.3 if case == COLD else 1.3) * period)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await subject.close(calls)
    return most_in_any(round(period * (1 - SHORTER) * 1e9), instants) / LIMIT


async def promised(subject: Subject, period: float) -> float | None:
    """The limiter's own bound, over the limit."""
    limiter = natural(subject, period).limiter
    assert isinstance(limiter, aiorate.Limiter)
    bound = limiter.bound(period)
    return None if bound is None else bound / LIMIT


def run(plan: Plan) -> Iterator[Measured]:
    """Every case, then the bounds."""
    loop, period = plan.loops[0], plan.pick(0.1, 1.0, 1.0)
    subjects = plan.of("aiorate", "peer")
    for case in (COLD, IDLE, STALL):
        jobs = {(case, subject.name): partial(run_in, loop, partial(grants, subject, period, case), 20) for subject in subjects}
        for (_, name), results in alternate(plan.at_most(plan.pick(1, 1, 3)), jobs).items():
            yield Measured.of(NAME, loop, name, case, UNIT, results)
    for subject in plan.of("aiorate"):
        bound = run_in(loop, partial(promised, subject, period), 20)
        yield Measured(NAME, loop, subject.name, "bound", UNIT, () if bound is None else (bound,), "none" if bound is None else "")
